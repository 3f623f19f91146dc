from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from conftest import make_faces
from facelink import knn_graph
from facelink.embeddings import UnitRows
from facelink.links.background import Background
from facelink.links.features import DEPTHS, MOST, NAMES, SHARES, STEEPNESS, LinkFeatures


def features_of(x, graph, n_threads=None):
    return LinkFeatures(graph, Background.of(UnitRows(x)), n_threads=n_threads)


@pytest.fixture(scope="module")
def collection():
    x = make_faces(n_copies=0).embeddings
    return x, knn_graph(x, 24)


def obvious(x: np.ndarray, graph, background: Background, i: int, r: int) -> dict[str, float]:
    """The features of one link, each as its name says."""
    n, k = graph.indices.shape
    listed = [list(map(int, row)) for row in graph.indices]

    def center(a, b):
        return (background.center[a] + background.center[b]) / 2

    def similarity(a, b):
        return (float(x[a] @ x[b]) - center(a, b)) / (1 - center(a, b))

    def transitions(a):
        weights = {q: np.exp(STEEPNESS * (similarity(a, q) - 1)) for q in listed[a]}
        total = sum(weights.values())
        return {q: w / total for q, w in weights.items()}, total / k

    j = listed[i][r]
    back = listed[j].index(i) if i in listed[j] else k
    t = similarity(i, j)
    spreads = (background.spreads[i] + background.spreads[j]) / 2
    unbounded = np.sqrt(-np.log(1 - min(t * t, MOST))) if t > 0 else t
    deviations, upward, far_upward = unbounded * (1 - center(i, j)) / spreads
    p_i, density_i = transitions(i)
    p_j, density_j = transitions(j)
    common = set(listed[i]) & set(listed[j])

    def to_first(a, b, count):
        """How similar a is to the first of b, those not listed being as far as its last."""
        first = [q for q in listed[b][:count] if q != a]
        known = {q: similarity(a, q) for q in first if q in listed[a]}
        far = similarity(a, listed[a][-1])
        return np.mean([known.get(q, far) for q in first])

    def profile(a):
        places = (0, min(4, k - 1), min(19, k - 1), k - 1)
        return [similarity(a, listed[a][place]) - t for place in places]

    def step(a, place):
        behind = listed[a][min(2 * place + 1, k - 1)]
        return similarity(a, listed[a][place]) - similarity(a, behind)

    def log_share_above(a, level):
        levels = background.above.shape[1] - 1
        grid = np.linspace(0, 1, levels + 1)
        return np.interp(level, grid, background.above[a])

    times_listed = np.bincount(graph.indices.ravel(), minlength=n)
    typical = background.typical_spreads
    values = [
        t, deviations, deviations - norm.isf(1 / n), upward, far_upward,
        far_upward - norm.isf(1 / n),
        *(log_share_above(a, share * t) for share in SHARES.values() for a in (i, j)),
        deviations - norm.isf((r + 1) / n),
        np.log(1 + r), np.log(1 + back),
        *(len(set(listed[i][:d]) & set(listed[j][:d])) / min(d, k) for d in DEPTHS),
        sum((p_i[q] + p_j[q]) / 2 for q in common),
        1 - sum(np.sqrt(p_i[q] * p_j[q]) for q in common),
        density_i, density_j, *profile(i), *profile(j),
        to_first(j, i, 5), to_first(j, i, 10), to_first(i, j, 5), to_first(i, j, 10),
        similarity(i, listed[i][0]), similarity(j, listed[j][0]),
        step(i, r), step(j, back) if back < k else 0,
        *(np.log((times_listed[a] + 1) / k) for a in (i, j)),
        *((background.center[a] - background.typical_center) / typical[0] for a in (i, j)),
        *(background.spreads[a, s] / typical[s] for s in range(3) for a in (i, j)),
        typical[0] / (1 - background.typical_center), typical[1] / typical[0],
        typical[2] / typical[0],
    ]  # fmt: skip
    return dict(zip(NAMES, values, strict=True))


def test_every_feature_is_what_its_name_says(collection):
    x, graph = collection
    features = features_of(x, graph)
    background = features.background
    pivots = np.random.default_rng(0).permutation(len(x))[:25]
    for i in pivots:
        found = features.of(np.array([i]))
        for r in range(graph.k):
            wanted = obvious(x, graph, background, int(i), r)
            for name, value in zip(NAMES, found[r], strict=True):
                assert value == pytest.approx(wanted[name], abs=2e-4), (name, i, r)


def test_blocks_and_threads_do_not_matter(collection):
    x, graph = collection
    one = features_of(x, graph, n_threads=1)
    two = features_of(x, graph, n_threads=2)
    whole = one.of(np.arange(len(x)))
    parts = np.concatenate([two.of(np.arange(7)), two.of(np.arange(7, len(x)))])
    np.testing.assert_array_equal(whole, parts)


def test_coordinates_do_not_matter(collection):
    """The same items turned, and in more dimensions, have the same features."""
    x, graph = collection
    turn, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(40, 40)))
    turned = (x.astype(np.float64) @ turn[: x.shape[1]]).astype(np.float32)
    again = knn_graph(turned, graph.k)
    np.testing.assert_array_equal(again.indices, graph.indices)
    before = features_of(x, graph).of(np.arange(50))
    after = features_of(turned, again).of(np.arange(50))
    np.testing.assert_allclose(after, before, atol=1e-3)


def test_a_collection_of_two_has_features():
    x = make_faces(sizes=(1, 1), n_copies=0).embeddings
    features = features_of(x, knn_graph(x, 80)).of(np.arange(2))
    assert features.shape == (2, len(NAMES))
    assert np.isfinite(features).all()
