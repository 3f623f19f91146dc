"""Average linkage of sparse similarities: by hand, against SciPy, against the obvious way."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage

from facelink.baselines.linkage import average_linkage
from facelink.links import Pairs
from facelink.merging import by_size

shapes = st.tuples(st.integers(2, 24), st.integers(0, 2**32 - 1))


def pairs_of(n_items: int, similarities: dict[tuple[int, int], float]) -> Pairs:
    ends = np.array(sorted(similarities), np.int32).reshape(-1, 2)
    values = np.array([similarities[tuple(pair)] for pair in ends.tolist()], np.float32)
    return Pairs(n_items, ends[:, 0], ends[:, 1], values)


def random_pairs(n_items: int, share: float, rng: np.random.Generator) -> Pairs:
    listed = [pair for pair in combinations(range(n_items), 2) if rng.random() < share]
    return pairs_of(n_items, {pair: rng.uniform(-0.3, 1) for pair in listed})


def test_unlisted_pairs_count_as_missing():
    pairs = pairs_of(4, {(0, 1): 0.9, (1, 2): 0.8, (2, 3): 0.1})

    # 0-1 at 0.9; then 2 with 0-1 at (0.8 + 0)/2; then 3 with all at (0.1 + 0 + 0)/3.
    tree = average_linkage(pairs)
    assert tree.similarity == pytest.approx([0.9, 0.4, 0.1 / 3])
    assert tree.cut(0.41).tolist() == [0, 0, 1, 2]
    assert tree.cut(0.39).tolist() == [0, 0, 0, 1]

    # With -0.5 for those that are not listed: (0.8 - 0.5)/2, then (0.1 - 1)/3.
    assert average_linkage(pairs, missing=-0.5).similarity == pytest.approx([0.9, 0.15, -0.3])


def test_nothing_is_merged_below_missing_or_without_a_listed_pair():
    tree = average_linkage(pairs_of(5, {(0, 1): -0.2, (2, 3): 0.5}))
    assert tree.cut(-1).tolist() == [1, 2, 0, 0, 3]
    assert average_linkage(pairs_of(3, {})).cut(-1).tolist() == [0, 1, 2]


def test_a_cut_takes_what_is_equal_to_the_threshold():
    tree = average_linkage(pairs_of(3, {(0, 1): 0.7, (0, 2): 0.3, (1, 2): 0.3}))
    assert tree.cut(0.7).tolist() == [0, 0, 1]
    assert tree.cut(0.3).tolist() == [0, 0, 0]


@settings(deadline=None)
@given(shapes)
def test_all_pairs_listed_gives_the_tree_of_scipy(shape):
    n_items, seed = shape
    values = np.random.default_rng(seed).uniform(-1, 1, n_items * (n_items - 1) // 2)
    values = values.astype(np.float32)
    ends = np.array(list(combinations(range(n_items), 2)), np.int32)

    tree = average_linkage(Pairs(n_items, ends[:, 0], ends[:, 1], values), missing=-1)

    expected = linkage(1 - values.astype(np.float64), "average")
    heights = np.sort(1 - tree.similarity)
    np.testing.assert_allclose(heights, expected[:, 2], atol=1e-6)
    for distance in (expected[1:, 2] + expected[:-1, 2]) / 2:
        if np.abs(expected[:, 2] - distance).min() > 1e-5:  # not within rounding of a merge
            labels = by_size(fcluster(expected, distance, "distance"))
            np.testing.assert_array_equal(tree.cut(1 - distance), labels)


def merge_best(pairs: Pairs, missing: float) -> list[float]:
    """The obvious way: merge the best of the pairs of clusters with a listed pair."""
    known = dict(
        zip(
            zip(pairs.first.tolist(), pairs.second.tolist(), strict=True),
            pairs.likelihood.astype(np.float64).tolist(),
            strict=True,
        )
    )
    clusters = [[item] for item in range(pairs.n_items)]
    similarities = []
    while True:
        best, best_two = missing, None
        for a, b in combinations(range(len(clusters)), 2):
            between = [tuple(sorted((i, j))) for i in clusters[a] for j in clusters[b]]
            if any(pair in known for pair in between):
                average = np.mean([known.get(pair, missing) for pair in between])
                if average > best:
                    best, best_two = average, (a, b)
        if best_two is None:
            return similarities
        a, b = best_two
        clusters[a] += clusters.pop(b)
        similarities.append(best)


@settings(deadline=None, max_examples=50)
@given(st.tuples(st.integers(2, 12), st.integers(0, 2**32 - 1)), st.sampled_from([0.2, 0.5, 0.8]))
@pytest.mark.parametrize("missing", [0.0, -0.3, 0.2])
def test_sparse_pairs_give_the_tree_of_merging_the_best_one_at_a_time(missing, shape, share):
    n_items, seed = shape
    pairs = random_pairs(n_items, share, np.random.default_rng(seed))
    tree = average_linkage(pairs, missing=missing)
    expected = sorted(merge_best(pairs, missing))
    assert np.sort(tree.similarity) == pytest.approx(expected, abs=1e-5)


@settings(deadline=None)
@given(shapes)
def test_permuting_the_items_permutes_the_clusters(shape):
    n_items, seed = shape
    rng = np.random.default_rng(seed)
    pairs = random_pairs(n_items, 0.5, rng)
    new = rng.permutation(n_items)
    ends = np.sort(np.stack([new[pairs.first], new[pairs.second]]), axis=0).astype(np.int32)
    permuted = Pairs(n_items, ends[0], ends[1], pairs.likelihood)

    before, after = average_linkage(pairs), average_linkage(permuted)
    np.testing.assert_allclose(np.sort(before.similarity), np.sort(after.similarity), atol=1e-6)
    heights = np.sort(before.similarity)
    for low, high in pairwise(heights):
        if high - low > 1e-5:
            cut = (low + high) / 2
            np.testing.assert_array_equal(by_size(after.cut(cut)[new]), by_size(before.cut(cut)))


@pytest.mark.parametrize("n_items", [2, 3, 7, 50])
def test_ties_end(n_items):
    same = average_linkage(pairs_of(n_items, dict.fromkeys(combinations(range(n_items), 2), 0.5)))
    assert same.similarity == pytest.approx([0.5] * (n_items - 1))
    assert same.cut(0.5).tolist() == [0] * n_items

    ring = {tuple(sorted((i, (i + 1) % n_items))): 0.5 for i in range(n_items)}
    around = average_linkage(pairs_of(n_items, ring))
    assert len(around.similarity) == n_items - 1  # all of a ring hangs together
    assert (np.diff(np.sort(around.similarity)) >= 0).all()
