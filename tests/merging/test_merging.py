from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from facelink import KnnGraph, Links, merge_links
from facelink.errors import InputError
from facelink.links import Pairs
from facelink.merging import METHODS, by_size
from facelink.merging.components import merge_components
from facelink.merging.propagation import merge_propagation, rising_thresholds


def links_of(neighbors, likelihood) -> Links:
    neighbors = np.array(neighbors, np.int32)
    graph = KnnGraph(neighbors, np.full(neighbors.shape, 0.5, np.float32))
    return Links(graph, np.array(likelihood, np.float32))


def pairs_of(n_items, edges) -> Pairs:
    """From {(a, b): likelihood}, a < b."""
    ordered = sorted(edges)
    first = np.array([a for a, _ in ordered], np.int32)
    second = np.array([b for _, b in ordered], np.int32)
    return Pairs(n_items, first, second, np.array([edges[e] for e in ordered], np.float32))


def same(labels, wanted) -> bool:
    """Whether two labelings are one partition."""
    return by_size(np.asarray(labels)).tolist() == by_size(np.asarray(wanted)).tolist()


def obvious_components(n_items, edges):
    labels = list(range(n_items))
    for a, b in edges:
        old, new = labels[a], labels[b]
        labels = [new if label == old else label for label in labels]
    return labels


def obvious_propagation(pairs, threshold, max_size, step):
    """The queue of the paper, level by level."""
    labels = [-1] * pairs.n_items
    waiting = set(range(pairs.n_items))
    for number, level in enumerate(rising_thresholds(threshold, step)):
        edges = [
            (a, b)
            for a, b, p in zip(pairs.first, pairs.second, pairs.likelihood, strict=True)
            if p >= level and a in waiting and b in waiting
        ]
        found = obvious_components(pairs.n_items, edges)
        for root in set(found):
            members = [i for i in waiting if found[i] == root]
            if len(members) <= max_size or level == 1:
                for i in members:
                    labels[i] = (number, root)
                    waiting.discard(i)
    assert not waiting
    return np.unique(np.array([str(label) for label in labels]), return_inverse=True)[1]


@st.composite
def weighted_pairs(draw):
    n = draw(st.integers(1, 14))
    every = [(a, b) for a in range(n) for b in range(a + 1, n)]
    chosen = draw(st.lists(st.sampled_from(every), unique=True)) if every else []
    level = st.sampled_from([0.0, 0.3, 0.5, 0.6, 0.64, 0.7, 0.9, 0.99, 1.0])
    return pairs_of(n, {edge: draw(level) for edge in chosen})


def test_a_pair_seen_from_both_sides_takes_the_mean_and_from_one_side_what_it_has():
    links = links_of([[1, 2], [0, 2], [1, 0], [0, 1]],
                     [[0.8, 0.1], [0.6, 0.9], [0.5, 0.3], [0.7, 0.2]])  # fmt: skip
    pairs = links.pairs()
    found = dict(zip(zip(pairs.first, pairs.second, strict=True), pairs.likelihood, strict=True))
    wanted = {(0, 1): 0.7, (0, 2): 0.2, (1, 2): 0.7, (0, 3): 0.7, (1, 3): 0.2}
    assert found.keys() == wanted.keys()
    for pair, likelihood in wanted.items():
        assert found[pair] == pytest.approx(likelihood, abs=1e-6)


def test_links_are_read_only_in_the_columns_that_were_scored():
    graph = KnnGraph(np.array([[1, 2], [0, 2], [0, 1]], np.int32), np.ones((3, 2), np.float32))
    pairs = Links(graph, np.array([[0.4], [0.6], [0.8]], np.float32)).pairs()
    assert pairs.first.tolist() == [0, 0]
    assert pairs.second.tolist() == [1, 2]
    np.testing.assert_allclose(pairs.likelihood, [0.5, 0.8])


@settings(max_examples=100, deadline=None)
@given(weighted_pairs(), st.sampled_from([0.0, 0.5, 0.6, 0.9, 1.0]))
def test_components_equal_the_obvious_version(pairs, threshold):
    kept = [
        (a, b)
        for a, b, p in zip(pairs.first, pairs.second, pairs.likelihood, strict=True)
        if p >= np.float32(threshold)
    ]
    found = merge_components(pairs, threshold=threshold)
    assert same(found, obvious_components(pairs.n_items, kept))


@settings(max_examples=300, deadline=None)
@given(
    weighted_pairs(),
    st.sampled_from([0.0, 0.5, 0.6]),
    st.integers(1, 6),
    st.sampled_from([0.05, 0.1, 0.6, 1.0]),
)
def test_propagation_equals_the_papers_queue(pairs, threshold, max_size, step):
    found = merge_propagation(pairs, threshold=threshold, max_size=max_size, step=step)
    assert same(found, obvious_propagation(pairs, threshold, max_size, step))


def test_propagation_by_hand():
    # Two pairs at 0.95, joined by a bridge at 0.7: five items are too many for one cluster.
    pairs = pairs_of(5, {(0, 1): 0.95, (2, 3): 0.95, (1, 2): 0.7, (3, 4): 0.65})
    split = merge_propagation(pairs, threshold=0.6, max_size=3, step=0.5)  # 0.6, 0.8, 0.9, …
    assert same(split, [0, 0, 1, 1, 2])
    assert same(merge_propagation(pairs, threshold=0.6, max_size=5, step=0.5), [0] * 5)
    assert same(merge_propagation(pairs, threshold=0.66, max_size=5, step=0.5), [0] * 4 + [1])


def test_a_collection_smaller_than_the_maximum_is_not_one_cluster():
    pairs = pairs_of(4, {(0, 1): 0.9, (1, 2): 0.1, (2, 3): 0.9})
    assert same(merge_propagation(pairs, max_size=900), [0, 0, 1, 1])


def test_too_large_even_at_likelihood_one_stays_whole():
    pairs = pairs_of(6, {(i, i + 1): 1.0 for i in range(5)})
    assert same(merge_propagation(pairs, max_size=3), [0] * 6)


def test_too_large_just_below_one_falls_apart_and_ends():
    almost = float(np.nextafter(np.float32(1), np.float32(0)))
    pairs = pairs_of(6, {(i, i + 1): almost for i in range(5)})
    assert same(merge_propagation(pairs, max_size=3), range(6))


def test_what_was_cut_does_not_meet_again_in_a_left_over_cluster():
    edges = {(i, j): 0.8 for i in range(10) for j in range(i + 1, 10)}
    labels = merge_propagation(pairs_of(12, edges), max_size=4)
    assert len(set(labels.tolist())) == 12


@pytest.mark.parametrize("step", [1e-3, 0.1, 1.0])
@pytest.mark.parametrize("start", [0.0, 0.6, 1.0])
def test_thresholds_rise_to_one(start, step):
    levels = rising_thresholds(start, step)
    assert levels[0] == np.float32(start)
    assert levels[-1] == 1
    assert (np.diff(levels) > 0).all()


def test_labels_are_numbered_by_size_then_by_first_item():
    assert by_size(np.array([7, 3, 3, 9, 9, 5])).tolist() == [2, 0, 0, 1, 1, 3]


def test_merge_links_numbers_the_largest_cluster_zero():
    links = links_of([[1], [0], [3], [4], [3]], [[0.9], [0.9], [0.9], [0.9], [0.9]])
    for method in METHODS:
        assert merge_links(links, method).tolist() == [1, 1, 0, 0, 0]


def test_no_links_at_all_leave_everyone_alone():
    links = Links(KnnGraph(np.empty((1, 0), np.int32), np.empty((1, 0), np.float32)),
                  np.empty((1, 0), np.float32))  # fmt: skip
    for method in METHODS:
        assert merge_links(links, method).tolist() == [0]


@pytest.mark.parametrize(
    ("method", "options", "said"),
    [
        ("average", {}, "one of map-equation, propagation, components"),
        ("components", {"threshold": 1.5}, "threshold should be a number from 0 to 1"),
        ("components", {"threshold": "high"}, "threshold should be a number"),
        ("components", {"max_size": 3}, "no option 'max_size'; it has threshold"),
        ("map-equation", {"max_size": 3}, "no option 'max_size'; it has threshold"),
        ("map-equation", {"threshold": -1}, "threshold should be a number from 0 to 1"),
        ("propagation", {"max_size": 0}, "max_size should be"),
        ("propagation", {"step": 0}, "step should be a number from 0.001"),
        ("propagation", {"threshold": float("nan")}, "threshold should be a number"),
    ],
)
def test_impossible_options_are_refused(method, options, said):
    links = links_of([[1], [0]], [[0.9], [0.9]])
    with pytest.raises(InputError, match=said):
        merge_links(links, method, **options)
