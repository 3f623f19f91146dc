from __future__ import annotations

import numpy as np
import pytest

import facelink
from conftest import make_faces
from facelink import knn_graph
from facelink.embeddings import UnitRows
from facelink.links.background import Background
from facelink.links.clusters import ASSUMED, USUAL
from facelink.links.features import LinkFeatures
from facelink.links.refinement import FAINT, Surroundings
from facelink.links.refinement import NAMES as SURROUNDINGS
from facelink.links.review import NAMES, Memberships
from facelink.links.universal import draft_clusters, look_at_all, review_links
from facelink.links.variation import Whitened

K = 24


@pytest.fixture(scope="module")
def setting():
    """People in pieces, some of them mixed up; links of random likelihood."""
    x, truth = make_faces(n_copies=0)
    rng = np.random.default_rng(0)
    graph = knn_graph(x, K)
    true = truth[graph.indices] == truth[:, None]
    likelihood = np.where(true, rng.beta(3, 1, true.shape), rng.beta(0.3, 4, true.shape))
    labels = 2 * truth + (rng.random(len(truth)) < 0.3)
    moved = rng.random(len(truth)) < 0.05
    labels[moved] = rng.permutation(labels[moved])
    rows = UnitRows(x)
    features = LinkFeatures(graph, Background.of(rows))
    return features, likelihood.astype(np.float32), rows, labels


@pytest.fixture(scope="module")
def memberships(setting):
    features, likelihood, rows, labels = setting
    return Memberships(features, likelihood, rows, labels, Whitened(rows, labels))


def beside_clusters(x, background, labels, i, j):
    """The coherence of both clusters, and what two items are beside them."""
    of = {c: np.flatnonzero(labels == c) for c in np.unique(labels)}
    here, there = of[labels[i]], of[labels[j]]

    def against(similarity, *sides):
        stranger = np.mean([background.center[side].mean() for side in sides])
        return (similarity - stranger) / (1 - stranger)

    def inside(items):
        products = x[items] @ x[items].T
        return against(products[np.triu_indices(len(items), 1)].mean(), items)

    several = [items for items in of.values() if len(items) > 1]
    weights = [len(items) for items in several]
    usual = np.average([*map(inside, several), USUAL], weights=[*weights, ASSUMED])

    def coherence(items):
        n = len(items)
        return max(((n - 1) * (inside(items) if n > 1 else 0) + usual) / n, 0.05)

    def own(item, items):
        others = items[items != item]
        mean = against((x[others] @ x[item]).mean(), [item], items) if len(others) else 0
        return (mean * len(others) + coherence(items)) / len(items)

    to_theirs, agreement = own(i, here), 1.0
    if labels[i] != labels[j]:
        to_theirs = against((x[there] @ x[i]).mean(), [i], there)
        agreement = against((x[here] @ x[there].T).mean(), here, there)
        agreement /= np.sqrt(coherence(here) * coherence(there))

    similar = own(i, here), own(j, there), to_theirs
    deviations = to_theirs * (1 - background.center[i]) / background.spreads[i, 2]
    beside = *similar, deviations, to_theirs / max(own(i, here), 0.05), agreement
    return (coherence(here), coherence(there)), beside


def obvious(setting, whitened, joined, i, r):
    """The features of one link beyond its surroundings, each as its name says."""
    features, _, rows, labels = setting
    listed = features.indices
    j = listed[i, r]
    coherence, plain = beside_clusters(rows[:], features.background, labels, i, j)
    _, white = beside_clusters(whitened[:], whitened.background, labels, i, j)
    background = whitened.background
    stranger = (background.center[i] + background.center[j]) / 2
    above = whitened[:][i] @ whitened[:][j] - stranger
    similarity = above / (1 - stranger), above / background.spreads[[i, j], 2].mean()

    def within(item):
        same = labels[listed[item]] == labels[item]
        return joined[item][same].sum() / (joined[item].sum() + 0.5)

    def leading(item, other, cluster):
        lead = (labels[listed[item]] == cluster) & (listed[item] != other)
        return (joined[item][lead].sum() + joined[i, r] / 2) / (lead.sum() + 0.5)

    same = labels[listed] == labels[:, None]
    doubtful, sure = (joined > 0.2) & (joined < 0.8), joined >= 0.8
    sizes = np.array([(labels == c).sum() for c in labels])
    return [
        float(labels[i] == labels[j]), np.log(sizes[i]), np.log(sizes[j]), *coherence, *plain,
        *similarity, *white, within(i), within(j),
        leading(i, j, labels[j]), leading(j, i, labels[i]),
        ((doubtful & same).sum() + 10) / (doubtful.sum() + 20),
        (sure & ~same).sum() / (sure.sum() + 20),
        (sizes == 1).mean(), np.log(sizes).mean(),
    ]  # fmt: skip


def test_every_feature_is_what_its_name_says(setting, memberships):
    features, likelihood, rows, labels = setting
    before = Surroundings(features, likelihood)
    whitened = Whitened(rows, labels)
    checked = {True: 0, False: 0}
    for i in np.random.default_rng(1).permutation(len(likelihood))[:25]:
        asked, found = memberships.of(np.array([i]))
        for row, r in enumerate(np.flatnonzero(asked[0])):
            wanted = obvious(setting, whitened, memberships.joined, int(i), int(r))
            names = NAMES[len(SURROUNDINGS) :]
            values = found[row, len(SURROUNDINGS) :]
            for name, value, right in zip(names, values, wanted, strict=True):
                assert value == pytest.approx(right, rel=1e-3, abs=2e-4), (name, i, r)
            checked[bool(wanted[0])] += 1
        around = before.of(np.array([i]))[1]
        worth_a_look = before.joined[i][asked[0]] >= FAINT
        np.testing.assert_array_equal(found[worth_a_look, : len(SURROUNDINGS)], around)
    assert min(checked.values()) > 50


def test_hopeless_links_are_asked_about_inside_clusters_alone(setting, memberships):
    features, _, _, labels = setting
    same = labels[features.indices] == labels[:, None]
    asked = memberships.asked(np.arange(len(labels)))
    np.testing.assert_array_equal(asked, (memberships.joined >= FAINT) | same)
    assert (asked & (memberships.joined < FAINT)).any()


def test_items_are_read_from_a_file_as_from_memory(setting, memberships, tmp_path, monkeypatch):
    features, likelihood, rows, labels = setting
    np.save(tmp_path / "x.npy", rows[:])
    monkeypatch.setattr("facelink.embeddings.IN_MEMORY_BYTES", 1)
    on_file = UnitRows(np.load(tmp_path / "x.npy", mmap_mode="r"))
    assert on_file.array is None
    again = Memberships(features, likelihood, on_file, labels, Whitened(on_file, labels))
    pivots = np.arange(40)
    np.testing.assert_allclose(again.of(pivots)[1], memberships.of(pivots)[1], atol=1e-5)


def looked_at(x, k):
    """What is thought of the links before they are reviewed, and what else a review takes."""
    rows, model = UnitRows(x), facelink.load_model("universal")
    return look_at_all(rows, knn_graph(x, k), model), rows, model


def test_clusters_make_links_surer():
    """A good draft makes what holds likelier and what does not less likely, on any threads."""
    faces = facelink.load_sample()
    x, truth = UnitRows(faces.embeddings[:1500])[:], faces.labels[:1500]
    x = x + 0.6 * np.random.default_rng(0).normal(size=x.shape) / np.sqrt(x.shape[1])
    links, rows, model = looked_at(x, 80)
    reviewed = [review_links(links, truth, rows, model, n_threads=n) for n in (1, 2)]
    np.testing.assert_array_equal(reviewed[0].likelihood, reviewed[1].likelihood)
    true = truth[links.neighbors] == truth[:, None]

    def loss(likelihood):
        p = np.clip(np.where(true, likelihood, 1 - likelihood), 1e-4, 1)
        return -np.log(p).mean()

    assert loss(reviewed[0].likelihood) < 0.8 * loss(links.likelihood)
    shuffled = review_links(links, np.random.default_rng(0).permutation(truth), rows, model)
    assert loss(reviewed[0].likelihood) < loss(shuffled.likelihood)


def test_what_was_thought_before_counts_too(monkeypatch):
    faces = facelink.load_sample()
    labels = faces.labels[:300]
    links, rows, model = looked_at(faces.embeddings[:300], 40)
    mixed = review_links(links, labels, rows, model).likelihood
    trust = Memberships.trust
    assert 0 < trust < 1
    monkeypatch.setattr(Memberships, "trust", 1.0)
    alone = review_links(links, labels, rows, model).likelihood
    assert np.abs(alone - links.likelihood).max() > 0.1
    wanted = trust * alone + (1 - trust) * links.likelihood
    np.testing.assert_allclose(mixed, wanted, atol=1e-6)


def test_links_are_scored_by_a_draft_of_the_clusters():
    x = facelink.load_sample().embeddings[:500]
    links, rows, model = looked_at(x, 80)
    wanted = review_links(links, draft_clusters(links, rows, model), rows, model)
    out = np.empty(links.likelihood.shape, np.float32)
    found = facelink.score_links(x, knn_graph(x, 80), model, out=out)
    np.testing.assert_array_equal(found.likelihood, wanted.likelihood)
    assert found.likelihood is out
    assert np.abs(wanted.likelihood - links.likelihood).max() > 0.1
