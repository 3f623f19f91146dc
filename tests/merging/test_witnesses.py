from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from conftest import make_faces
from facelink import KnnGraph, Links, join_fragments, knn_graph
from facelink.merging import by_size
from facelink.merging.witnesses import join_witnessed

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


def joined(links: Links, **options: float) -> bool:
    return len(np.unique(join_witnessed(LABELS, links, **options))) == 1


def test_four_sure_links_that_share_no_item_join_two_clusters():
    assert joined(links_between({(0, 6): 0.95, (1, 7): 0.95, (2, 8): 0.95, (3, 9): 0.95}))
    assert not joined(links_between({(0, 6): 0.95, (1, 7): 0.95, (2, 8): 0.95}))


def test_an_item_is_one_witness_however_many_links_it_has():
    astray = {(i, 6): 0.99 for i in range(SIZE)}
    assert not joined(links_between(astray))
    two_more = {(1, 7): 0.99, (2, 8): 0.99}
    assert not joined(links_between(astray | two_more))
    assert joined(links_between(astray | two_more | {(3, 9): 0.99}))


def test_links_that_are_not_sure_are_not_heard():
    links = links_between({(i, i + SIZE): 0.93 for i in range(4)})
    assert joined(links)
    assert not joined(links, sure=0.95)
    assert not joined(links_between({(i, i + SIZE): 0.89 for i in range(SIZE)}))


def test_clusters_that_are_not_sure_of_themselves_are_not_heard():
    """Blurred strangers resemble each other inside their clusters and between them."""
    between = {(i, i + SIZE): 0.99 for i in range(SIZE)}
    assert not joined(links_between(between, inside=0.9))
    assert joined(links_between(between, inside=0.96))


def obvious(labels, links, sure):
    """With dictionaries, from the pairs of items."""
    pairs = links.pairs()
    ends = list(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True))
    likelihood = dict(zip(ends, pairs.likelihood, strict=True))
    certain = set()
    for c in np.unique(labels):
        inside = [p for (a, b), p in likelihood.items() if labels[a] == labels[b] == c]
        if inside and np.mean(inside) >= 0.95:
            certain.add(c)
    spoke, witnesses = {}, {}
    for a, b in sorted(ends, key=lambda pair: (-likelihood[pair], pair)):
        key = frozenset((labels[a], labels[b]))
        heard = spoke.setdefault(key, set())
        if likelihood[a, b] < np.float32(sure) or len(key) == 1 or not key <= certain:
            continue
        if not heard & {a, b}:
            heard |= {a, b}
            witnesses[key] = witnesses.get(key, 0) + 1
    found = labels.copy()
    for key, count in witnesses.items():
        if count >= 4:
            one, other = (found[labels == c][0] for c in key)
            found[found == one] = other
    return found


@pytest.mark.parametrize("seed", range(8))
def test_it_agrees_with_an_obvious_version(seed):
    rng = np.random.default_rng(seed)
    x, truth = make_faces(seed=seed, n_copies=0)
    labels = 3 * truth + rng.integers(0, 3, len(truth))
    graph = knn_graph(x, 20)
    one = truth[graph.indices] == truth[:, None]
    likelihood = np.where(one, rng.uniform(0.91, 1, one.shape), rng.random(one.shape))
    links = Links(graph, likelihood.astype(np.float32))
    found = join_witnessed(labels, links)
    assert 1 < len(np.unique(found)) < len(np.unique(labels))
    assert by_size(found).tolist() == by_size(obvious(labels, links, 0.9)).tolist()


def test_fragments_that_look_like_strangers_are_joined_by_their_witnesses_alone():
    links = links_between({(i, i + SIZE): 0.93 for i in range(4)})
    doubts = SimpleNamespace(probabilities=lambda features: np.zeros(len(features)))
    model = SimpleNamespace(fragments=doubts)
    x = np.eye(2 * SIZE, dtype=np.float32)
    found = join_fragments(LABELS, links, x, model, threshold=0.6)
    assert len(np.unique(found)) == 1
    stricter = join_fragments(LABELS, links, x, model, threshold=0.95)
    np.testing.assert_array_equal(stricter, LABELS)


def test_no_links_and_no_items():
    for n, k in ((0, 0), (3, 0)):
        graph = KnnGraph(np.empty((n, k), np.int32), np.empty((n, k), np.float32))
        links = Links(graph, np.empty((n, k), np.float32))
        labels = np.arange(n)[::-1].copy()
        np.testing.assert_array_equal(join_witnessed(labels, links), labels)
