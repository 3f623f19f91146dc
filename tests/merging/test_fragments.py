from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import norm

from conftest import make_faces
from facelink import knn_graph
from facelink.embeddings import UnitRows
from facelink.links import Links
from facelink.links.background import Background
from facelink.merging.fragments import NAMES, Fragments, join_fragments


@pytest.fixture(scope="module")
def setting():
    """People cut into pieces of up to three, links of random likelihood."""
    x, truth = make_faces(n_copies=0)
    rng = np.random.default_rng(0)
    order = np.argsort(truth, kind="stable")
    pieces = np.empty(len(truth), int)
    pieces[order] = truth[order] * 100 + np.arange(len(truth)) // 3
    graph = knn_graph(x, 12)
    likelihood = rng.random(graph.indices.shape, np.float32)
    return x, truth, pieces, Links(graph, likelihood)


def fragments_of(x, labels, links):
    rows = UnitRows(x)
    return Fragments(labels, links, rows, Background.of(rows))


def obvious(x, labels, links, usual, begun):
    """Features by pair of clusters, with loops.

    ``usual`` is the mean similarity inside clusters, ``begun`` what the clusters were at first.
    """
    background = Background.of(UnitRows(x))
    spread = background.typical_spreads[0] / (1 - background.typical_center)
    pairs = links.pairs()
    clusters = np.unique(labels)
    members = {c: np.flatnonzero(labels == c) for c in clusters}

    def against(s, *clusters):
        center = np.mean([background.center[c].mean() for c in clusters])
        return (s - center) / (1 - center)

    def inside(items):
        products = x[items] @ x[items].T
        return against(products[np.triu_indices(len(items), 1)].mean(), items)

    if usual is None:
        several = [m for m in members.values() if len(m) > 1]
        weights = [len(m) for m in several]
        usual = np.average([*map(inside, several), 0.6], weights=[*weights, 50])

    def coherence_of(items):
        n = len(items)
        return max(((n - 1) * (inside(items) if n > 1 else 0) + usual) / n, 0.05)

    coherence = {c: coherence_of(items) for c, items in members.items()}
    # The collection is small enough for all clusters to be asked how much strangers agree.
    everyone = [np.flatnonzero(begun == c) for c in np.unique(begun)]
    roots = [np.sqrt(coherence_of(items)) for items in everyone]
    strange = {}
    for c, mine in members.items():
        agreements = np.sort(
            [
                against((x[mine] @ x[yours].T).mean(), mine, yours) / root / np.sqrt(coherence[c])
                for yours, root in zip(everyone, roots, strict=True)
            ]
        )
        low, middle, high, far = (
            agreements[int(q * (len(everyone) - 1))] for q in (0.1, 0.5, 0.7, 0.85)
        )
        down, up, far_up = (
            (middle - low) / 1.2816,
            (high - middle) / 0.5244,
            (far - middle) / 1.0364,
        )
        strange[c] = np.array([middle, down + 0.02, up + 0.02, far_up + 0.02])
    between = {}
    for a, b, p in zip(pairs.first, pairs.second, pairs.likelihood, strict=True):
        if labels[a] != labels[b]:
            key = tuple(sorted((labels[a], labels[b])))
            between.setdefault(key, []).append(float(p))
    between = {key: ps for key, ps in between.items() if max(ps) >= 0.1}
    products = {(a, b): x[members[a]] @ x[members[b]].T for a, b in between}
    similarity = {
        (a, b): against(s.mean(), members[a], members[b]) for (a, b), s in products.items()
    }
    agreement = {
        (a, b): s / np.sqrt(coherence[a] * coherence[b]) for (a, b), s in similarity.items()
    }
    out = {}
    for a, b in between:
        large, small = (a, b) if len(members[a]) >= len(members[b]) else (b, a)
        n, m = len(members[large]), len(members[small])
        best = {c: max(v for pair, v in agreement.items() if c in pair) for c in (large, small)}
        center, *spreads = (strange[a] + strange[b]) / 2
        deviations = (agreement[a, b] - center) / np.array(spreads)
        out[a, b] = [
            np.log(n), np.log(m), similarity[a, b], coherence[large], coherence[small],
            agreement[a, b], *deviations, deviations[0] - norm.isf(1 / len(members)),
            best[large] - agreement[a, b], best[small] - agreement[a, b], spread,
        ]  # fmt: skip
    return out


def check_features(x, labels, links, fragments, usual=None):
    wanted = obvious(x, labels, links, usual, fragments.cluster_of)
    fragments.likelihood[:] = np.nan
    chosen = fragments.candidates
    found = fragments.features(chosen)
    assert len(found) == len(wanted)
    ends = fragments.first[chosen], fragments.second[chosen]
    for a, b, values in zip(*ends, found, strict=True):
        np.testing.assert_allclose(values, wanted[a, b], rtol=1e-3, atol=1e-4, err_msg=str((a, b)))


def test_features_are_what_their_names_say(setting):
    x, _, pieces, links = setting
    fragments = fragments_of(x, pieces, links)
    assert fragments.features(fragments.candidates).shape[1] == len(NAMES)
    check_features(x, fragments.labels, links, fragments)


def test_features_are_right_after_joining(setting):
    x, _, pieces, links = setting
    fragments = fragments_of(x, pieces, links)
    rng = np.random.default_rng(1)
    before = len(np.unique(fragments.labels))
    for _ in range(3):
        unjudged = np.isnan(fragments.likelihood)
        fragments.likelihood[unjudged] = rng.random(unjudged.sum())
        assert fragments.join(0.3)
    assert len(np.unique(fragments.labels)) < before
    sizes = np.bincount(fragments.labels, minlength=len(fragments.sizes))
    np.testing.assert_array_equal(fragments.sizes, sizes)
    # What is usual is that of the beginning, checked in the test above.
    check_features(x, fragments.labels, links, fragments, fragments.usual)


def test_only_mutual_favourites_are_joined():
    x = np.eye(4, dtype=np.float32)
    graph = knn_graph(x + 0.1, 3)
    links = Links(graph, np.full((4, 3), 0.5, np.float32))
    fragments = fragments_of(x + 0.1, np.arange(4), links)
    likelihood = {(0, 1): 0.6, (1, 2): 0.9, (2, 3): 0.8}
    ends = zip(fragments.first.tolist(), fragments.second.tolist(), strict=True)
    fragments.likelihood[:] = [likelihood.get(pair, 0.0) for pair in ends]
    assert fragments.join(0.5)
    assert fragments.labels.tolist() == [0, 1, 1, 3]
    # Only what has changed is asked again.
    asked = fragments.candidates
    assert set(zip(fragments.first[asked], fragments.second[asked], strict=True)) == {
        (0, 1), (1, 3),
    }  # fmt: skip
    assert not fragments.join(0.5)


def test_a_large_cluster_takes_in_several_small_ones_at_once():
    """In a few rounds, not in as many as there are."""
    x, truth = make_faces((400,) + (5,) * 100, dimension=128, noise=0.3, n_copies=0)
    graph = knn_graph(x, 20)
    links = Links(graph, np.full(graph.indices.shape, 0.9, np.float32))
    pieces = truth.copy()
    loose = np.flatnonzero(truth == 0)[:200]
    pieces[loose] = 1000 + np.arange(200)
    fragments = fragments_of(x, pieces, links)
    rounds, joined = 0, True
    while joined:
        asked = fragments.candidates
        fragments.likelihood[asked] = Judge().probabilities(fragments.features(asked))
        joined = fragments.join(0.5)
        rounds += 1
        np.testing.assert_allclose(fragments.sums.sum(axis=0), x.sum(axis=0), rtol=1e-3, atol=1e-3)
    assert len(np.unique(fragments.labels[truth == 0])) == 1
    assert len(np.unique(fragments.labels)) == 101
    assert rounds < 30


def test_nobody_is_lost_where_one_joins_another_that_joins_a_third():
    sizes = (400, 20, 1, 380)
    x, truth = make_faces(sizes, dimension=16, n_copies=0)
    graph = knn_graph(x, 200)
    fragments = fragments_of(x, truth, Links(graph, np.full(graph.indices.shape, 0.9, np.float32)))
    likelihood = {(0, 3): 0.999, (0, 1): 0.99, (1, 2): 0.98}
    ends = zip(fragments.first.tolist(), fragments.second.tolist(), strict=True)
    fragments.likelihood[:] = [likelihood.get(pair, 0.0) for pair in ends]
    assert fragments.join(0.3)
    now = np.bincount(fragments.labels, minlength=len(sizes))
    np.testing.assert_array_equal(fragments.sizes, now)


class Judge:
    """Clusters are one person where their similarity is above 0.5."""

    def probabilities(self, features):
        return (features[:, NAMES.index("similarity")] > 0.5).astype(float)


class Credulous:
    """Takes all for one person."""

    def probabilities(self, features):
        return np.ones(len(features))


def test_clusters_little_nearer_than_strangers_are_not_joined_whatever_a_network_says():
    """Sixty people whose links are all certain; each person in two pieces."""
    x, truth = make_faces(sizes=(30,) * 60, dimension=64, noise=0.4, n_copies=0)
    graph = knn_graph(x, 40)
    links = Links(graph, np.ones(graph.indices.shape, np.float32))
    pieces = 2 * truth + np.random.default_rng(0).integers(0, 2, len(truth))
    fragments = fragments_of(x, pieces, links)
    fragments.judge(Credulous())
    ends = fragments.first, fragments.second
    first, second = (truth[[np.flatnonzero(pieces == c)[0] for c in end]] for end in ends)
    likely = fragments.likelihood > 0.5
    assert likely[first == second].all()
    assert (first != second).sum() > 60
    assert likely[first != second].mean() < 0.1
    judged = np.flatnonzero(~np.isnan(fragments.likelihood))
    deviations = fragments.features(judged)[:, NAMES.index("agreement, deviations far upward")]
    enough = norm.isf(1 / len(np.unique(pieces))) + 1.5
    np.testing.assert_array_equal(fragments.likelihood[judged] > 0.5, deviations > enough)


def test_fragments_of_a_large_identity_are_joined_whatever_their_size():
    """Neighbours that are all in one's own fragment but few do not keep it apart."""
    x, truth = make_faces(sizes=(300, 200) + (5,) * 200, noise=0.5, n_copies=0)
    graph = knn_graph(x, 20)
    links = Links(graph, np.full(graph.indices.shape, 0.9, np.float32))
    rng = np.random.default_rng(0)
    pieces = truth * 10 + np.where(truth < 2, rng.integers(0, 4, len(truth)), 0)
    model = SimpleNamespace(fragments=Judge())
    found = join_fragments(pieces, links, x, model, threshold=0.5)
    assert len(np.unique(found[truth == 0])) == 1
    assert len(np.unique(found[truth == 1])) == 1
    assert found[truth == 0][0] != found[truth == 1][0]
    untouched = join_fragments(pieces, links, x, model, threshold=1.0)
    np.testing.assert_array_equal(untouched, pieces)
