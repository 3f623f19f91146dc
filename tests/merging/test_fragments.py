from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm
from threadpoolctl import threadpool_limits

from conftest import make_faces
from facelink import knn_graph
from facelink.embeddings import UnitRows
from facelink.errors import InputError
from facelink.links import Links
from facelink.links.background import Background
from facelink.links.variation import Whitened
from facelink.merging.fragments import NAMES, Fragments, join_all, join_fragments
from facelink.merging.likeness import ENOUGH, LARGE, Likeness
from facelink.merging.witnesses import Witnesses


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
    return Fragments(labels, links, rows, Background.of(rows), Whitened(rows, labels))


def obvious_likeness(x, background, labels, between, usual, begun):
    """What two clusters have in common, with loops, by pair of clusters.

    ``usual`` is the mean similarity inside clusters, ``begun`` what the clusters were at first.
    """
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

    def strange_to(c, least):
        mine = members[c]
        agreements = np.sort(
            [
                against((x[mine] @ x[yours].T).mean(), mine, yours) / root / np.sqrt(coherence[c])
                for yours, root in zip(everyone, roots, strict=True)
                if len(yours) >= least
            ]
        )
        low, middle, high, far = (
            agreements[int(q * (len(agreements) - 1))] for q in (0.1, 0.5, 0.7, 0.85)
        )
        down, up, far_up = (
            (middle - low) / 1.2816,
            (high - middle) / 0.5244,
            (far - middle) / 1.0364,
        )
        return np.array([middle, down + 0.02, up + 0.02, far_up + 0.02])

    several_large = sum(len(yours) >= LARGE for yours in everyone) >= ENOUGH
    similarity = {
        (a, b): against((x[members[a]] @ x[members[b]].T).mean(), members[a], members[b])
        for a, b in between
    }
    agreement = {
        (a, b): s / np.sqrt(coherence[a] * coherence[b]) for (a, b), s in similarity.items()
    }
    out = {}
    for a, b in between:
        large, small = (a, b) if len(members[a]) >= len(members[b]) else (b, a)
        best = {c: max(v for pair, v in agreement.items() if c in pair) for c in (large, small)}
        least = LARGE if several_large and len(members[small]) >= LARGE else 1
        center, *spreads = (strange_to(a, least) + strange_to(b, least)) / 2
        deviations = (agreement[a, b] - center) / np.array(spreads)
        count = sum(len(mine) >= least for mine in members.values())
        out[a, b] = [
            similarity[a, b], coherence[large], coherence[small], agreement[a, b], *deviations,
            deviations[2] - norm.isf(1 / max(count, 2)), best[large] - agreement[a, b],
            best[small] - agreement[a, b],
        ]  # fmt: skip
    return out


def check_features(x, labels, links, fragments, usual=(None, None)):
    rows = UnitRows(x)
    plain, white = Background.of(rows), Whitened(rows, fragments.cluster_of)
    pairs = links.pairs()
    between = {}
    for a, b, p in zip(pairs.first, pairs.second, pairs.likelihood, strict=True):
        if labels[a] != labels[b]:
            key = tuple(sorted((labels[a], labels[b])))
            between.setdefault(key, []).append(float(p))
    between = {key for key, ps in between.items() if max(ps) >= 0.1}
    begun = fragments.cluster_of
    seen = (x, plain), (white.array, white.background)
    wanted = [
        obvious_likeness(*how, labels, between, typical, begun)
        for how, typical in zip(seen, usual, strict=True)
    ]
    fragments.likelihood[:] = np.nan
    chosen = fragments.candidates
    found = fragments.features(chosen)
    assert len(found) == len(between)
    ends = fragments.first[chosen], fragments.second[chosen]
    witnesses = Witnesses(links, labels).count(*ends)
    sizes = np.bincount(labels)
    spread = plain.typical_spreads[0] / (1 - plain.typical_center)
    for a, b, spoken, values in zip(*ends, witnesses, found, strict=True):
        of_sizes = sorted(np.log([sizes[a], sizes[b]]), reverse=True)
        expected = [*of_sizes, *wanted[0][a, b], *wanted[1][a, b], spread, np.log1p(spoken)]
        np.testing.assert_allclose(values, expected, rtol=2e-3, atol=2e-4, err_msg=str((a, b)))


def test_features_are_what_their_names_say(setting):
    x, _, pieces, links = setting
    fragments = fragments_of(x, pieces, links)
    assert fragments.features(fragments.candidates).shape[1] == len(NAMES)
    check_features(x, fragments.labels, links, fragments)


def test_large_clusters_are_compared_with_large_ones():
    """Means of few photos scatter more."""
    x, truth = make_faces((30,) * 12 + (1,) * 60, noise=0.9, n_copies=0)
    pieces = 2 * truth + np.random.default_rng(0).integers(0, 2, len(truth))
    graph = knn_graph(x, 12)
    likelihood = np.random.default_rng(0).random(graph.indices.shape, np.float32)
    links = Links(graph, likelihood)
    fragments = fragments_of(x, pieces, links)
    assert sum(fragments.sizes >= LARGE) >= ENOUGH
    check_features(x, fragments.labels, links, fragments)


def test_features_are_right_after_joining(setting):
    x, _, pieces, links = setting
    fragments = fragments_of(x, pieces, links)
    rng = np.random.default_rng(1)
    before = len(np.unique(fragments.labels))
    for _ in range(3):
        fragments.features(fragments.candidates)  # what is known then must not be taken for now's
        unjudged = np.isnan(fragments.likelihood)
        fragments.likelihood[unjudged] = rng.random(unjudged.sum())
        assert fragments.join(0.3)
    assert len(np.unique(fragments.labels)) < before
    sizes = np.bincount(fragments.labels, minlength=len(fragments.sizes))
    np.testing.assert_array_equal(fragments.sizes, sizes)
    # What is usual is that of the beginning, checked in the test above.
    usual = [alike.usual for alike in fragments.likenesses]
    check_features(x, fragments.labels, links, fragments, usual)


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
        before = fragments.sizes.max()
        joined = fragments.join(0.5)
        # By a quarter, and its favourite.
        assert fragments.sizes.max() <= 1.25 * before + 1
        rounds += 1
        sums = fragments.likenesses[0].sums
        np.testing.assert_allclose(sums.sum(axis=0), x.sum(axis=0), rtol=1e-3, atol=1e-3)
    assert len(np.unique(fragments.labels[truth == 0])) == 1
    assert len(np.unique(fragments.labels)) == 101
    assert rounds < 30


def test_nobody_is_lost_where_one_joins_another_that_joins_a_third():
    sizes = (400, 20, 1, 380)
    x, truth = make_faces(sizes, dimension=16, n_copies=0)
    graph = knn_graph(x, len(x) - 1)
    fragments = fragments_of(x, truth, Links(graph, np.full(graph.indices.shape, 0.9, np.float32)))
    likelihood = {(0, 3): 0.999, (0, 1): 0.99, (1, 2): 0.98}
    ends = list(zip(fragments.first.tolist(), fragments.second.tolist(), strict=True))
    assert set(likelihood) <= set(ends)
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
        return np.ones(len(features), np.float32)


def test_clusters_little_nearer_than_strangers_are_not_joined_whatever_a_network_says():
    """Sixty people whose links are all likely, none sure; each person in two pieces."""
    x, truth = make_faces(sizes=(30,) * 60, dimension=64, noise=0.4, n_copies=0)
    graph = knn_graph(x, 40)
    links = Links(graph, np.full(graph.indices.shape, 0.85, np.float32))
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
    beyond = [NAMES.index(f"beyond the nearest stranger{way}") for way in ("", ", whitened")]
    most = fragments.features(judged)[:, beyond].max(axis=1)
    np.testing.assert_array_equal(fragments.likelihood[judged] > 0.5, most > 1.5)


class Doubting:
    """Takes none for one person."""

    def probabilities(self, features):
        return np.zeros(len(features), np.float32)


def changed(sizes=(40, 40) + (20,) * 40, alike=0.32):
    """A collection whose first two clusters are one person, hardly more alike than strangers."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    centers = rng.normal(size=(len(sizes), 128))
    centers /= np.linalg.norm(centers, axis=1, keepdims=True)
    centers[1] = alike * centers[0] + np.sqrt(1 - alike**2) * centers[1]
    x = centers[labels] + 0.5 * rng.normal(size=(len(labels), 128)) / np.sqrt(128)
    x = x.astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True), labels


def links_with(x, labels, sure):
    """All likely inside clusters and doubtful between them, ``sure`` pairs of the first two."""
    graph = knn_graph(x, len(x) - 1)
    one = labels[graph.indices] == labels[:, None]
    likelihood = np.where(one, 0.99, 0.02).astype(np.float32)
    first, second = (np.flatnonzero(labels == c) for c in (0, 1))
    for i, j in zip(first[:sure], second[:sure], strict=True):
        likelihood[i, graph.indices[i] == j] = 0.95
        likelihood[j, graph.indices[j] == i] = 0.95
    return Links(graph, likelihood)


def test_clusters_that_agree_a_little_are_joined_by_three_witnesses():
    """Somebody who has changed: the network would not have it, geometry hardly."""
    x, labels = changed()
    beyond = [NAMES.index(f"beyond the nearest stranger{way}") for way in ("", ", whitened")]
    for sure, wanted in ((2, 42), (3, 41)):
        links = links_with(x, labels, sure)
        fragments = fragments_of(x, labels, links)
        asked = fragments.candidates
        assert len(asked) == 1
        assert 0.5 < fragments.features(asked)[0, beyond].max() < 1.5
        assert len(np.unique(join_all(fragments, Doubting(), 0.6))) == wanted
        # Whoever asks for purity is not told that two in three such pairs are one person.
        found = join_all(fragments_of(x, labels, links), Doubting(), 0.8)
        assert len(np.unique(found)) == 42


def test_three_witnesses_are_few_among_hundreds():
    x, labels = changed((500, 480) + (20,) * 40, alike=0.36)
    for sure, wanted in ((3, 42), (5, 41)):
        found = join_all(fragments_of(x, labels, links_with(x, labels, sure)), Doubting(), 0.6)
        assert len(np.unique(found)) == wanted


def test_witnesses_do_not_join_clusters_no_more_alike_than_strangers():
    """Voices have dozens of sure links between speakers."""
    x, labels = changed(alike=0.0)
    found = join_all(fragments_of(x, labels, links_with(x, labels, 30)), Credulous(), 0.6)
    np.testing.assert_array_equal(found, labels)


def test_fragments_of_a_large_identity_are_joined_whatever_their_size():
    """Neighbours that are all in one's own fragment but few do not keep it apart."""
    x, truth = make_faces(sizes=(300, 200) + (5,) * 200, noise=0.5, n_copies=0)
    graph = knn_graph(x, 20)
    links = Links(graph, np.full(graph.indices.shape, 0.9, np.float32))
    rng = np.random.default_rng(0)
    pieces = truth * 10 + np.where(truth < 2, rng.integers(0, 4, len(truth)), 0)
    found = join_all(fragments_of(x, pieces, links), Judge(), 0.5)
    assert len(np.unique(found[truth == 0])) == 1
    assert len(np.unique(found[truth == 1])) == 1
    assert found[truth == 0][0] != found[truth == 1][0]
    untouched = join_fragments(pieces.tolist(), links, x, "universal", threshold=1.0)
    np.testing.assert_array_equal(untouched, pieces)


def test_what_does_not_fit_the_links_is_refused(setting):
    x, _, pieces, links = setting
    with pytest.raises(InputError, match="labels of shape"):
        join_fragments(pieces[:-1], links, x, "universal", threshold=0.5)
    with pytest.raises(InputError, match="embeddings of"):
        join_fragments(pieces, links, x[:-1], "universal", threshold=0.5)
    with pytest.raises(InputError, match="'mobileface-128' cannot judge"):
        join_fragments(pieces, links, x, "mobileface-128", threshold=0.5)


def test_likeness_does_not_depend_on_the_threads_of_blas():
    """The beginning of what is known of strangers is one large product."""
    rng = np.random.default_rng(0)
    x = UnitRows(rng.normal(size=(3000, 256)))
    labels, background = np.arange(3000) // 2, Background.of(x)
    pairs = rng.permutation(1500)[:1400].reshape(2, -1)
    found = []
    for n_threads in (1, 2):
        with threadpool_limits(n_threads):
            found.append(Likeness(labels, x, background).compare(*pairs))
    np.testing.assert_array_equal(*found)
