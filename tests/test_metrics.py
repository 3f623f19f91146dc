from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import normalized_mutual_info_score, pair_confusion_matrix

from facelink.errors import InputError
from facelink.metrics import bcubed, nmi, pairwise

labelings = st.integers(1, 30).flatmap(
    lambda n: st.tuples(*[st.lists(st.integers(0, 5), min_size=n, max_size=n)] * 2)
)


def obvious_bcubed(truth, predicted):
    """The definition: an average over items of an average over items."""
    truth, predicted = np.asarray(truth), np.asarray(predicted)
    correct = (truth[:, None] == truth) & (predicted[:, None] == predicted)
    precision = np.mean(
        [row[predicted == c].mean() for row, c in zip(correct, predicted, strict=True)]
    )
    recall = np.mean([row[truth == c].mean() for row, c in zip(correct, truth, strict=True)])
    return precision, recall


@settings(max_examples=100, deadline=None)
@given(labelings)
def test_bcubed_equals_its_definition(pair):
    found = bcubed(*pair)
    assert found[:2] == pytest.approx(obvious_bcubed(*pair))
    p, r = found[:2]
    assert found.f == pytest.approx(2 * p * r / (p + r))


@settings(max_examples=100, deadline=None)
@given(labelings)
def test_pairwise_equals_counting_pairs(pair):
    (_, wrong), (missed, right) = pair_confusion_matrix(*pair)
    found = pairwise(*pair)
    assert found.precision == pytest.approx(right / (right + wrong) if right + wrong else 1)
    assert found.recall == pytest.approx(right / (right + missed) if right + missed else 1)


@settings(max_examples=100, deadline=None)
@given(labelings, st.sampled_from(["geometric", "arithmetic"]))
def test_nmi_equals_scikit_learns(pair, average):
    wanted = normalized_mutual_info_score(*pair, average_method=average)
    assert nmi(*pair, average=average) == pytest.approx(wanted, abs=1e-7)


def test_by_hand():
    truth, predicted = [0, 0, 1, 1], [0, 0, 0, 1]
    assert bcubed(truth, predicted) == pytest.approx((2 / 3, 3 / 4, 12 / 17))
    assert pairwise(truth, predicted) == pytest.approx((1 / 3, 1 / 2, 2 / 5))


def test_without_singletons_leaves_out_who_is_alone():
    truth, predicted = [0, 0, 1, 1, 2], [0, 0, 0, 1, 2]
    assert bcubed(truth, predicted, without_singletons=True) == pytest.approx(
        bcubed(truth[:3], predicted[:3])
    )
    assert pairwise(truth, predicted, without_singletons=True) == pytest.approx(
        pairwise(truth[:3], predicted[:3])
    )
    assert nmi(truth, predicted, without_singletons=True) == pytest.approx(
        nmi(truth[:3], predicted[:3])
    )


def test_nobody_left_scores_zero():
    assert bcubed([0, 1], [0, 1], without_singletons=True) == (0, 0, 0)
    assert pairwise([0, 1], [0, 1], without_singletons=True) == (0, 0, 0)
    assert nmi([0, 1], [0, 1], without_singletons=True) == 0


def test_names_are_labels_too():
    assert bcubed(["ann", "bob", "ann"], [5, 6, 5]).f == 1


def test_labels_need_not_be_small(monkeypatch):
    assert nmi([10**15, -3, 10**15], [2**62, 0, 2**62]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("truth", "predicted", "said"),
    [
        ([0, 1], [0], "got 2 and 1"),
        ([], [], "empty"),
        ([[0, 1]], [0, 1], "one label per item"),
        ([0, np.nan], [0, 1], "truth contain NaN"),
        ([0, 1], [0, None], "predicted should be whole numbers or text"),
    ],
)
def test_labels_that_do_not_match_are_refused(truth, predicted, said):
    for metric in (bcubed, pairwise, nmi):
        with pytest.raises(InputError, match=said):
            metric(truth, predicted)


def test_an_unknown_average_is_refused():
    with pytest.raises(InputError, match="geometric or arithmetic"):
        nmi([0], [0], average="max")
