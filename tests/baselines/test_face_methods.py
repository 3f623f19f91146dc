"""The face clustering methods that the paper compares with, against slow and obvious versions."""

from __future__ import annotations

from importlib import import_module
from itertools import combinations, product

import numpy as np
import pytest

from conftest import make_faces
from facelink import knn_graph
from facelink.baselines.adjacency import both_sides
from facelink.baselines.aro import approximate_rank_order, aro
from facelink.baselines.cdp import cdp
from facelink.baselines.conpac import conpac, find_triplets, log_odds, propagate_beliefs
from facelink.baselines.pairs import similarity_pairs
from facelink.baselines.rank_order import Clusters, merged, rank_order, rank_order_distances
from facelink.embeddings import UnitRows
from facelink.errors import InputError
from facelink.links import Pairs
from facelink.merging import by_size
from facelink.metrics import bcubed

NAMES = ["aro", "cdp", "conpac", "ddc", "pahc", "rank_order"]
RISING_MERGES = {"aro", "rank_order"}  # their threshold is on a distance
JOINS_ALL = {"aro": 1e9, "cdp": 0.0, "conpac": -1.0, "ddc": 0.0, "pahc": 0.0}
ALL_ALONE = {"aro": -1.0, "cdp": 1.0, "conpac": 1.5, "ddc": 1.5, "pahc": 1.0, "rank_order": 1.9}


def method(name):
    return getattr(import_module(f"facelink.baselines.{name}"), name)


def prepare(name, *arguments, **options):
    module = import_module(f"facelink.baselines.{name}")
    return getattr(module, f"prepare_{name}")(*arguments, **options)


def on_circle(*degrees):
    angles = np.radians(degrees)
    return np.c_[np.cos(angles), np.sin(angles)].astype(np.float32)


def separate_people(n_people=6, n_photos=8, seed=0):
    """People as far apart as axes, photos within a few degrees."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(n_people), n_photos)
    x = np.eye(32)[labels] + 0.05 * rng.normal(size=(len(labels), 32))
    order = rng.permutation(len(labels))
    return x[order].astype(np.float32), labels[order]


# What all of them have in common


@pytest.mark.parametrize("name", NAMES)
def test_finds_people_that_are_far_apart(name):
    x, labels = separate_people()
    options = {"k": 7} if name == "aro" else {}
    thresholds = {"aro": 1.0, "cdp": 0.6, "conpac": 0.5, "rank_order": 10.0}
    found = method(name)(x, threshold=thresholds.get(name, 0.4), **options)
    np.testing.assert_array_equal(found, by_size(labels))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n_items", [1, 2, 5])
def test_takes_a_few_items(name, n_items):
    x = np.random.default_rng(0).normal(size=(n_items, 8))
    for threshold in (0.1, 0.9, 5.0)[: 2 if name == "cdp" else 3]:
        labels = method(name)(x, threshold=threshold)
        np.testing.assert_array_equal(labels, by_size(labels))
        assert len(labels) == n_items


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n_copies", [2, 30, 300])
def test_puts_exact_copies_together(name, n_copies):
    """300 are more than any of them has neighbours."""
    x = np.repeat(on_circle(0.0, 90.0), n_copies, axis=0)
    threshold = {"aro": 1.0, "rank_order": 3.0, "ddc": 0.1, "pahc": 0.1}.get(name, 0.6)
    labels = method(name)(x, threshold=threshold)
    assert len(np.unique(labels[:n_copies])) == 1
    assert len(np.unique(labels[n_copies:])) == 1


@pytest.mark.parametrize("name", NAMES)
def test_threshold_goes_from_all_alone_to_all_joined(name):
    x = make_faces(sizes=(200,), noise=0.5, n_copies=0).embeddings  # one person
    labels_at = prepare(name, x)
    assert len(np.unique(labels_at(ALL_ALONE[name]))) == len(x)
    if name in JOINS_ALL:  # D_N < 1 keeps Rank-Order from it
        assert (labels_at(JOINS_ALL[name]) == 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_grid_holds_a_good_threshold(name, sample):
    n_photos = np.bincount(sample.labels)[sample.labels]
    some = (n_photos > 2) & (n_photos < 40)  # where none is at a loss for want of neighbours
    x, labels = sample.embeddings[some], sample.labels[some]
    grid = import_module(f"facelink.baselines.{name}").GRID
    thresholds = (grid[0], *grid[2:-1:3], grid[-1])
    options = {"k": 40} if name == "aro" else {}  # 200 are too many for so few items
    labels_at = prepare(name, x, **options)
    found = [labels_at(threshold) for threshold in thresholds]
    assert max(bcubed(labels, each).f for each in found) > 0.8
    n_clusters = [len(np.unique(each)) for each in found]
    assert (n_clusters[0] > n_clusters[-1]) == (name in RISING_MERGES)
    again = method(name)(x, threshold=thresholds[3], **options)
    np.testing.assert_array_equal(found[3], again)


@pytest.mark.parametrize("name", NAMES)
def test_reads_the_first_columns_of_a_wider_graph(name, faces):
    grid = import_module(f"facelink.baselines.{name}").GRID
    threshold = grid[len(grid) // 2]
    wide = knn_graph(faces.embeddings, 60)
    np.testing.assert_array_equal(
        method(name)(faces.embeddings, threshold=threshold, graph=wide, k=12),
        method(name)(faces.embeddings, threshold=threshold, k=12),
    )


def test_refuses_a_graph_that_is_too_narrow(faces):
    graph = knn_graph(faces.embeddings, 20)
    with pytest.raises(InputError, match=r"ARO reads k = 200 neighbours per item, .* has 20"):
        aro(faces.embeddings, threshold=1.0, graph=graph)


def test_refuses_a_graph_of_other_items(faces):
    graph = knn_graph(faces.embeddings[:50], 20)
    with pytest.raises(InputError, match="graph is of 50 items"):
        cdp(faces.embeddings, threshold=0.5, graph=graph)


@pytest.mark.parametrize(
    ("name", "option", "message"),
    [
        ("ddc", {"softness": 0}, "softness should be"),
        ("pahc", {"c": 0}, "c, the cost"),
        ("conpac", {"damping": 1}, "damping should be"),
        ("cdp", {"threshold": 2}, "threshold should be"),
    ],
)
def test_refuses_options_out_of_range(name, option, message):
    with pytest.raises(InputError, match=message):
        method(name)(on_circle(0, 10, 20), **{"threshold": 0.5, **option})


def test_both_sides_lists_each_pair_twice():
    pairs = Pairs(3, np.array([0, 1]), np.array([2, 2]), np.array([0.5, 0.6], np.float32))
    starts, others, slots = both_sides(pairs)
    assert starts.tolist() == [0, 1, 2, 4]
    assert others.tolist() == [2, 2, 0, 1]
    assert slots.tolist() == [1, 3, 0, 2]


# Rank-Order


def slow_lists(clusters, k):
    n_clusters = len(clusters.size)
    around = [[] for _ in range(n_clusters)]
    for a, b, d in zip(clusters.first, clusters.second, clusters.distance, strict=True):
        around[a].append((d, b))
        around[b].append((d, a))
    return [[b for _, b in sorted(near)[:k]] for near in around]


def slow_rank_order(clusters, k):
    lists = slow_lists(clusters, k)

    def rank(a, b):
        if a == b:
            return 0
        return lists[a].index(b) + 1 if b in lists[a] else len(lists[a]) + 1

    def one_sided(a, b):
        f_a = [a, *lists[a]]
        return sum(rank(b, x) for x in f_a[: rank(a, b)])

    return np.array(
        [
            (one_sided(a, b) + one_sided(b, a)) / min(rank(a, b), rank(b, a))
            if b in lists[a] or a in lists[b]
            else np.inf
            for a, b in zip(clusters.first, clusters.second, strict=True)
        ]
    )


def random_clusters(n_clusters, n_pairs, seed=0):
    rng = np.random.default_rng(seed)
    every = np.array(list(combinations(range(n_clusters), 2)), np.int32)
    pairs = every[rng.choice(len(every), n_pairs, replace=False)]
    return Clusters(
        pairs[:, 0],
        pairs[:, 1],
        np.sort(rng.random(n_pairs)).astype(np.float32),
        rng.integers(1, 5, n_clusters),
        rng.random(n_clusters) * 4,
    )


@pytest.mark.parametrize("k", [3, 8, 50])
def test_rank_order_distance_agrees_with_the_formula(k):
    clusters = random_clusters(30, 150)
    dense = clusters.is_dense
    assert 10 < dense.sum() < 140
    distance = rank_order_distances(clusters, k)
    np.testing.assert_allclose(distance[dense], slow_rank_order(clusters, k)[dense])
    assert np.isinf(distance[~dense]).all()


def test_rank_order_distance_by_hand():
    # On a line at 0, 1, 3: lists 0: [1, 2], 1: [0, 2], 2: [1, 0].
    clusters = Clusters(
        np.array([0, 1, 0], np.int32),
        np.array([1, 2, 2], np.int32),
        np.array([1, 2, 3], np.float32),
        np.ones(3, np.int64),
        np.full(3, 9.0),
    )
    # D(0, 1) = O_1(0) = 1 both ways, over min(1, 1); D(1, 2) = O_2(1) + O_2(0) = 3 and
    # D(2, 1) = O_1(2) = 2, over 1; D(0, 2) = O_2(0) + O_2(1) = 3 and back 2 + 1, over 2.
    assert rank_order_distances(clusters, 2).tolist() == [2.0, 5.0, 3.0]


def test_merged_clusters_keep_the_nearest_of_their_items():
    clusters = random_clusters(20, 120)
    labels = np.random.default_rng(1).integers(0, 6, 20)
    result = merged(clusters, labels)
    nearest = {}
    for a, b, d in zip(clusters.first, clusters.second, clusters.distance, strict=True):
        key = frozenset((labels[a], labels[b]))
        if len(key) == 2:
            nearest[key] = min(d, nearest.get(key, np.inf))
    ends = zip(result.first, result.second, strict=True)
    found = {frozenset(pair): d for pair, d in zip(ends, result.distance, strict=True)}
    assert found == nearest
    assert (np.diff(result.distance) >= 0).all()
    for c in range(6):
        assert result.size[c] == clusters.size[labels == c].sum()
        assert result.reach[c] == pytest.approx(clusters.reach[labels == c].sum())


def test_density_is_the_mean_distance_to_the_nearest():
    clusters = Clusters(
        np.array([0, 0], np.int32),
        np.array([1, 2], np.int32),
        np.array([1.0, 1.0], np.float32),
        np.array([2, 3, 2]),
        np.array([2.0, 3.1, 1.9]),  # φ = 5.1 / 5, 3.9 / 4
    )
    assert clusters.is_dense.tolist() == [True, False]


def test_items_at_distance_0_are_dense_whatever_is_around():
    ends = np.array([0], np.int32), np.array([1], np.int32)
    clusters = Clusters(*ends, np.zeros(1, np.float32), np.ones(2, np.int64), np.zeros(2))
    assert clusters.is_dense.tolist() == [True]


def slow_rank_order_clustering(x, k, n_density, threshold):
    """Rounds over explicit sets of items; no copies in x."""
    graph = knn_graph(x, k)
    pairs = similarity_pairs(graph)
    distance = {
        (a, b): np.sqrt(max(0.0, 2 - 2 * s))
        for a, b, s in zip(pairs.first, pairs.second, pairs.likelihood, strict=True)
    }
    reach = np.sqrt(np.maximum(0, 2 - 2 * graph.similarities[:, :n_density])).mean(axis=1)
    labels = np.arange(len(x))
    while True:
        numbers = np.unique(labels)
        nearest = {}
        for (a, b), d in distance.items():
            i, j = sorted(np.searchsorted(numbers, labels[[a, b]]))
            if i != j:
                nearest[i, j] = min(d, nearest.get((i, j), np.inf))
        ends = np.array(list(nearest), np.int32).reshape(-1, 2)
        least = np.array(list(nearest.values()))
        clusters = Clusters(ends[:, 0], ends[:, 1], least, numbers, numbers.astype(float))
        merges = []
        for (i, j), d, ranked in zip(ends, least, slow_rank_order(clusters, k), strict=True):
            inside = np.isin(labels, numbers[[i, j]])
            if ranked < threshold and d < reach[inside].mean():
                merges.append((numbers[i], numbers[j]))
        if not merges:
            return by_size(labels)
        for _ in merges:  # often enough for any chain
            for i, j in merges:
                low, high = np.sort([labels[i], labels[j]])
                labels[labels == high] = low


def test_rank_order_agrees_with_the_slow_version():
    x = make_faces(sizes=(9, 7, 5, 3, 2, 1, 1, 1), noise=0.7, n_copies=0).embeddings
    seen = set()
    for threshold in (2.5, 6.0, 12.0, 30.0):
        labels = rank_order(x, threshold=threshold, k=8, n_density=4)
        np.testing.assert_array_equal(labels, slow_rank_order_clustering(x, 8, 4, threshold))
        seen.add(labels.max())
    assert len(seen) > 1


# ARO


def test_aro_distance_agrees_with_the_formula(faces):
    graph = knn_graph(faces.embeddings, 15)
    pairs = similarity_pairs(graph)
    lists = graph.indices.tolist()

    def one_sided(a, b):
        upto = lists[a].index(b) if b in lists[a] else len(lists[a])
        absent = sum(x not in lists[b] and x != b for x in lists[a][:upto])
        return absent, upto + 1

    expected = []
    for a, b in zip(pairs.first, pairs.second, strict=True):
        (there, rank), (back, rank_back) = one_sided(a, b), one_sided(b, a)
        expected.append((there + back) / min(rank, rank_back))
    np.testing.assert_allclose(approximate_rank_order(graph, pairs), expected, rtol=1e-6)


def test_aro_distance_by_hand():
    # At 0°, 10°, 30°, 60° the two nearest: 0: [1, 2], 1: [0, 2], 2: [1, 0] (30° is as far
    # as 60° is, and the lower index comes first: [1, 0] or [1, 3]), so move 3 to 61°.
    graph = knn_graph(on_circle(0, 10, 30, 61), 2)
    assert graph.indices.tolist() == [[1, 2], [0, 2], [1, 0], [2, 1]]
    pairs = similarity_pairs(graph)
    distance = dict(
        zip(
            zip(pairs.first, pairs.second, strict=True),
            approximate_rank_order(graph, pairs),
            strict=True,
        )
    )
    # (2, 3): 2 walks past 1 and 0, of which 3 lists 1; 3 has 2 first. 1 absent / rank 1.
    # (1, 3): 1 walks past 0 and 2, of which 3 lists 2; 3 walks past 2. 1 absent / rank 2.
    assert distance == {(0, 1): 0, (0, 2): 0, (1, 2): 0, (1, 3): 0.5, (2, 3): 1.0}
    assert aro(on_circle(0, 10, 30, 61), threshold=0.4, k=2).tolist() == [0, 0, 0, 1]


# CDP


def test_cdp_cuts_what_is_larger_than_the_maximum():
    x = on_circle(0, 2, 4, 34, 36, 38)  # two groups, 30° between them
    assert cdp(x, threshold=0.8, k=3).tolist() == [0] * 6
    assert cdp(x, threshold=0.8, k=3, max_size=3).tolist() == [0, 0, 0, 1, 1, 1]
    assert cdp(x, threshold=0.9, k=3).tolist() == [0, 0, 0, 1, 1, 1]


# ConPaC


def max_marginals(unary, triplets, penalty):
    """The log-odds of each pair's best completions, over all 2^m assignments."""
    best = np.full((len(unary), 2), -np.inf)
    for y in product((0, 1), repeat=len(unary)):
        y = np.array(y)
        score = unary @ y - penalty * (y[triplets].sum(axis=1) == 2).sum()
        for pair, value in enumerate(y):
            best[pair, value] = max(best[pair, value], score)
    return best[:, 1] - best[:, 0]


@pytest.mark.parametrize("penalty", [0.3, 2.0])
@pytest.mark.parametrize("seed", range(5))
def test_beliefs_are_exact_without_loops(penalty, seed):
    unary = (2 * np.random.default_rng(seed).normal(size=7)).astype(np.float32)
    # Three triplets that share one pair each: a tree.
    triplets = np.array([[0, 1, 2], [2, 3, 4], [4, 5, 6]], np.int32)
    belief = propagate_beliefs(unary, triplets, penalty=penalty, n_rounds=60, damping=0.5)
    np.testing.assert_allclose(belief, max_marginals(unary, triplets, penalty), atol=1e-4)


def test_two_links_make_a_third_or_two_strangers_break_one():
    triangle = np.array([[0, 1, 2]], np.int32)
    options = {"penalty": 3.0, "n_rounds": 60, "damping": 0.5}
    # Best with all linked: 2 + 2 − 1 = 3. Any one unlinked: 2, one of the others alone.
    closed = propagate_beliefs(np.array([2.0, 2.0, -1.0], np.float32), triangle, **options)
    np.testing.assert_allclose(closed, [1.0, 1.0, 1.0], atol=1e-4)
    # Best is 2, the second alone; all linked is 1.5, the second unlinked 0.5.
    broken = propagate_beliefs(np.array([0.5, 2.0, -1.0], np.float32), triangle, **options)
    np.testing.assert_allclose(broken, [-0.5, 1.5, -0.5], atol=1e-4)


def test_triplets_are_all_triangles(faces):
    pairs = similarity_pairs(knn_graph(faces.embeddings, 6))
    number = {pair: p for p, pair in enumerate(zip(pairs.first, pairs.second, strict=True))}
    expected = {
        (number[i, j], number[i, k], number[j, k])
        for (i, j) in number
        for k in range(j + 1, pairs.n_items)
        if (i, k) in number and (j, k) in number
    }
    triplets = find_triplets(pairs)
    assert len(triplets) == len(expected) > 100
    assert {tuple(triplet) for triplet in triplets} == expected


def test_unary_is_indifferent_at_the_threshold():
    similarity = np.array([-0.5, 0.0, 0.2, 0.4, 0.7, 1.0], np.float32)
    sure = np.log(99.0)
    expected = [-sure, -sure, np.log(1 / 3), 0, np.log(3), sure]
    np.testing.assert_allclose(log_odds(similarity, 0.4), expected, atol=1e-5)
    assert np.isfinite(log_odds(similarity, 0.0)).all()
    assert np.isfinite(log_odds(similarity, 1.0)).all()


def test_conpac_without_penalty_takes_components(faces):
    rows = UnitRows(faces.embeddings)
    pairs = similarity_pairs(knn_graph(rows, 40))
    from facelink.baselines.adjacency import join

    above = pairs.likelihood > 0.6
    expected = by_size(join(pairs.n_items, pairs.first[above], pairs.second[above]))
    np.testing.assert_array_equal(conpac(rows, threshold=0.6, penalty=0.0), expected)
