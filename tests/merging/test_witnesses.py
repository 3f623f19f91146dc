from __future__ import annotations

import numpy as np
import pytest

from conftest import make_faces
from facelink import KnnGraph, Links, knn_graph
from facelink.merging.witnesses import Witnesses

SIZE = 6
LABELS = np.repeat([0, 1], SIZE)


def links_between(between: dict[tuple[int, int], float], inside: float = 0.99) -> Links:
    """Two clusters of six, every two items linked; likelihood 0 but where it is given."""
    n = 2 * SIZE
    likelihood = np.where(LABELS[:, None] == LABELS, inside, 0)
    for (a, b), value in between.items():
        likelihood[a, b] = likelihood[b, a] = value
    others = np.array([[j for j in range(n) if j != i] for i in range(n)])
    graph = KnnGraph(others.astype(np.int32), np.zeros(others.shape, np.float32))
    return Links(graph, np.take_along_axis(likelihood, others, axis=1).astype(np.float32))


def witnesses(links: Links) -> float:
    counts = Witnesses(links, LABELS).count(np.array([0, 1]), np.array([1, 0]))
    assert counts[0] == counts[1]
    return float(counts[0])


def test_sure_links_that_share_no_item_are_counted():
    assert witnesses(links_between({})) == 0
    assert witnesses(links_between({(0, 6): 0.95})) == 1
    assert witnesses(links_between({(0, 6): 0.95, (1, 7): 0.92, (2, 8): 0.89})) == 2


def test_an_item_is_one_witness_however_many_links_it_has():
    astray = {(i, 6): 0.99 for i in range(SIZE)}
    assert witnesses(links_between(astray)) == 1
    assert witnesses(links_between(astray | {(1, 7): 0.99, (2, 8): 0.99})) == 3


def test_clusters_that_are_not_sure_of_themselves_are_not_heard():
    """Blurred strangers resemble each other inside their clusters and between them."""
    between = {(i, i + SIZE): 0.99 for i in range(SIZE)}
    assert witnesses(links_between(between, inside=0.9)) == 0
    assert witnesses(links_between(between, inside=0.96)) == SIZE


def obvious(labels, links):
    """With dictionaries, from the pairs of items."""
    pairs = links.pairs()
    ends = list(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True))
    likelihood = dict(zip(ends, pairs.likelihood, strict=True))
    certain = set()
    for c in np.unique(labels):
        inside = [p for (a, b), p in likelihood.items() if labels[a] == labels[b] == c]
        if inside and np.mean(inside) >= 0.95:
            certain.add(c)
    spoke, counts = {}, {}
    for a, b in sorted(ends, key=lambda pair: (-likelihood[pair], pair)):
        key = frozenset((labels[a], labels[b]))
        heard = spoke.setdefault(key, set())
        if likelihood[a, b] < np.float32(0.9) or len(key) == 1 or not key <= certain:
            continue
        if not heard & {a, b}:
            heard |= {a, b}
            counts[key] = counts.get(key, 0) + 1
    return counts


@pytest.mark.parametrize("seed", range(8))
def test_it_agrees_with_an_obvious_version(seed):
    rng = np.random.default_rng(seed)
    x, truth = make_faces(seed=seed, n_copies=0)
    _, labels = np.unique(3 * truth + rng.integers(0, 3, len(truth)), return_inverse=True)
    graph = knn_graph(x, 20)
    one = truth[graph.indices] == truth[:, None]
    likelihood = np.where(one, rng.uniform(0.91, 1, one.shape), rng.random(one.shape))
    links = Links(graph, likelihood.astype(np.float32))
    wanted = obvious(labels, links)
    assert len(wanted) > 5
    first, second = np.triu_indices(labels.max() + 1, 1)
    found = Witnesses(links, labels).count(first, second)
    expected = [wanted.get(frozenset(pair), 0) for pair in zip(first, second, strict=True)]
    np.testing.assert_array_equal(found, expected)


def test_links_between_clusters_that_were_joined_speak_for_them_no_longer():
    links = links_between({(0, 6): 0.95, (1, 7): 0.95})
    heard = Witnesses(links, np.array([0] * 3 + [2] * 3 + [1] * SIZE))
    ends = np.array([0, 0, 1]), np.array([1, 2, 2])
    assert heard.count(*ends).tolist() == [2, 3, 0]
    heard.move(np.array([0, 1, 0]))
    assert heard.count(*ends).tolist() == [2, 0, 0]


def test_no_links():
    graph = KnnGraph(np.empty((3, 0), np.int32), np.empty((3, 0), np.float32))
    links = Links(graph, np.empty((3, 0), np.float32))
    assert Witnesses(links, np.arange(3)).count(np.array([0]), np.array([1])).tolist() == [0]
