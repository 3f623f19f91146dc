from __future__ import annotations

import numpy as np
import pytest

import facelink
from conftest import make_faces
from facelink import KnnGraph, Links
from facelink.embeddings import UnitRows
from facelink.errors import InputError, ModelError
from facelink.merging import by_size, join_fragments
from facelink.metrics import bcubed, pairwise
from facelink.pipeline import confidence_of, notes_on_links


def test_groups_people_the_model_has_not_seen(sample):
    found = facelink.cluster(sample.embeddings)
    assert found.labels.shape == sample.labels.shape
    assert bcubed(sample.labels, found.labels).f > 0.97
    assert pairwise(sample.labels, found.labels).f > 0.97
    assert found.notes == ()


def test_labels_run_from_the_largest_cluster_to_the_singletons(sample):
    labels = facelink.cluster(sample.embeddings[:600]).labels
    sizes = np.bincount(labels)
    assert (sizes > 0).all()
    assert (np.diff(sizes) <= 0).all()


def test_is_the_stages_in_order(sample):
    x = sample.embeddings[:500]
    graph = facelink.knn_graph(x, 80)
    links = facelink.score_links(x, graph, "mobileface-128")
    found = facelink.cluster(x, model="mobileface-128")
    np.testing.assert_array_equal(found.labels, facelink.merge_links(links))

    model = facelink.load_model("universal")
    links = facelink.score_links(x, graph, model)
    sure = model.presets["balanced"]
    labels = facelink.merge_links(links, threshold=sure.threshold)
    labels = join_fragments(labels, links, x, model, threshold=sure.joining)
    np.testing.assert_array_equal(facelink.cluster(x).labels, by_size(labels))


def test_purity_makes_fewer_wrong_merges_and_more_splits(sample):
    balanced = facelink.cluster(sample.embeddings)
    pure = facelink.cluster(sample.embeddings, preset="purity")
    assert len(np.unique(pure.labels)) > len(np.unique(balanced.labels))
    assert bcubed(sample.labels, pure.labels).precision > 0.995
    before, after = (bcubed(sample.labels, c.labels).precision for c in (balanced, pure))
    assert after > before
    with pytest.raises(InputError, match="preset should be one of balanced, purity, got 'best'"):
        facelink.cluster(sample.embeddings[:30], preset="best")


@pytest.mark.parametrize("dimension", [3, 64, 700])
def test_any_dimension_will_do(dimension):
    x, truth = make_faces(dimension=dimension, noise=0.3)
    found = facelink.cluster(x)
    if dimension > 3:  # where strangers are strangers
        assert bcubed(truth, found.labels).f > 0.95


def test_strangers_stay_strangers():
    """Points without any structure are not made into people."""
    x = np.random.default_rng(0).normal(size=(2000, 128))
    found = facelink.cluster(x)
    assert len(np.unique(found.labels)) > 1900


def test_a_few_strangers_are_not_made_into_one_person(sample):
    _, first = np.unique(sample.labels, return_index=True)
    rng = np.random.default_rng(0)
    for n_items in (20, 30, 60):
        for _ in range(4):
            strangers = sample.embeddings[rng.choice(first, n_items, replace=False)]
            labels = facelink.cluster(strangers).labels
            assert np.bincount(labels).max() < n_items / 2


def test_items_that_are_all_equally_far_are_alone():
    found = facelink.cluster(np.eye(300))
    assert len(np.unique(found.labels)) == 300
    assert found.notes == ("No two items look like one person.",)


@pytest.mark.parametrize("constant", [3, 30, 100])
def test_embeddings_that_lie_close_together_are_as_good(sample, constant):
    """A constant coordinate brings all similarities close to 1, in the same order."""
    x = sample.embeddings[:900].astype(np.float64)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    shifted = np.hstack([x, np.full((len(x), 1), constant)])
    labels = facelink.cluster(shifted).labels
    assert bcubed(sample.labels[:900], labels).f > 0.97


def test_the_number_of_threads_does_not_matter(sample):
    x = sample.embeddings[:1500]
    one, two = (facelink.cluster(x, n_threads=n) for n in (1, 2))
    np.testing.assert_array_equal(one.labels, two.labels)
    np.testing.assert_array_equal(one.confidence, two.confidence)


def test_it_says_when_a_collection_is_unlike_those_it_knows(sample):
    rng = np.random.default_rng(0)
    x = sample.embeddings[:60].astype(np.float32)
    frames = np.repeat(x, 4, axis=0)
    frames += 0.005 * rng.normal(size=frames.shape)
    assert any("near-copy" in note for note in facelink.cluster(frames).notes)

    graph = facelink.knn_graph(x, 10)
    unsure = Links(graph, np.full(graph.indices.shape, 0.5, np.float32))
    assert any("hardly separate" in note for note in notes_on_links(unsure))
    nobody = Links(graph, np.full(graph.indices.shape, 0.1, np.float32))
    assert notes_on_links(nobody) == ("No two items look like one person.",)
    clear = np.full(graph.indices.shape, 0.01, np.float32)
    clear[:, 0] = 0.97
    assert notes_on_links(Links(graph, clear)) == ()


def test_photos_of_one_person_alone_get_a_word(sample):
    person = np.argsort(np.bincount(sample.labels))[-2]
    found = facelink.cluster(sample.embeddings[sample.labels == person])
    assert any("Any two items are alike" in note for note in found.notes)
    others = facelink.cluster(sample.embeddings[:100])
    assert not any("Any two items are alike" in note for note in others.notes)


def test_the_scale_and_type_of_embeddings_do_not_matter(sample):
    x = sample.embeddings[:400]
    wanted = facelink.cluster(x).labels
    for other in (x.astype(np.float64) * 7, x.astype(np.float32), x.tolist()):
        np.testing.assert_array_equal(facelink.cluster(other).labels, wanted)


@pytest.mark.parametrize("n_items", [1, 2, 5])
def test_a_handful_of_items_gets_a_result_and_a_word(sample, n_items):
    found = facelink.cluster(sample.embeddings[:n_items])
    assert found.labels.shape == (n_items,)
    assert ((found.confidence >= 0) & (found.confidence <= 1)).all()
    assert any("little to go on" in note for note in found.notes)
    assert any("k = 80" in note for note in found.notes)


def test_stored_copies_are_one_person(sample):
    x = np.concatenate([sample.embeddings[:300], np.repeat(sample.embeddings[:1], 200, axis=0)])
    found = facelink.cluster(x)
    assert len(set(found.labels[300:]) | {found.labels[0]}) == 1
    assert found.notes == ("200 items are copies of another, and in the same cluster with it.",)
    alone = facelink.cluster(np.repeat(sample.embeddings[:1], 4, axis=0)).labels
    assert alone.tolist() == [0, 0, 0, 0]


def test_many_copies_of_many_items_do_not_come_apart(sample):
    # Merged one by one, the map equation cut off some of them.
    x = sample.embeddings[:600]
    found = facelink.cluster(np.concatenate([x, np.repeat(x[:40], 50, axis=0)]))
    copies = found.labels[600:].reshape(40, 50)
    np.testing.assert_array_equal(copies, found.labels[:40, None] + np.zeros((1, 50), int))
    sizes = np.bincount(found.labels)
    assert (np.diff(sizes) <= 0).all()


def test_options_are_refused_before_any_work(sample):
    seen = []
    with pytest.raises(InputError, match="Choose method 'propagation'"):
        facelink.cluster(
            sample.embeddings, options={"max_size": 5}, progress=lambda *r: seen.append(r)
        )
    with pytest.raises(InputError, match="threshold should be"):
        facelink.cluster(
            sample.embeddings, options={"threshold": 5}, progress=lambda *r: seen.append(r)
        )
    with pytest.raises(InputError, match="threshold should be"):
        facelink.cluster(sample.embeddings, options={"threshold": "0.6"})
    assert seen == []


def test_a_higher_threshold_is_one_for_joining_too_a_lower_one_is_not(sample, monkeypatch):
    sure = facelink.load_model("universal").presets["balanced"]
    asked = []

    def join(labels, *_, threshold, **__):
        asked.append(threshold)
        return labels

    monkeypatch.setattr("facelink.pipeline.join_fragments", join)
    for threshold in (0.3, sure.threshold, 0.9):
        facelink.cluster(sample.embeddings[:100], options={"threshold": threshold})
    assert asked == [sure.joining, sure.joining, 0.9]


def test_confidence_by_hand():
    neighbors = np.array([[1, 2], [0, 2], [0, 1], [2, 0]], np.int32)
    likelihood = np.array([[0.9, 0.2], [0.9, 0.4], [0.2, 0.4], [0.1, 0.0]], np.float32)
    links = Links(KnnGraph(neighbors, np.zeros((4, 2), np.float32)), likelihood)
    confidence = confidence_of(links, np.array([0, 0, 1, 2]))
    # Inside 0.9 and outside 0.2 or 0.4; alone with 0.4 or 0.1 to the others.
    np.testing.assert_allclose(confidence, [0.85, 0.75, 0.6, 0.9], atol=1e-6)


def test_method_and_options_reach_the_merging(sample):
    x = sample.embeddings[:400]
    strict = facelink.cluster(x, method="components", options={"threshold": 1.0}).labels
    loose = facelink.cluster(x, method="components", options={"threshold": 0.0}).labels
    assert len(np.unique(strict)) > len(np.unique(facelink.cluster(x).labels))
    assert len(np.unique(loose)) < 5


def test_another_dimension_names_the_way_out():
    with pytest.raises(ModelError, match=r"128 dimensions, got 64\.\n.*facelink train --help"):
        facelink.cluster(np.eye(64), model="mobileface-128")


def test_bad_values_are_refused_before_any_work(sample):
    x = sample.embeddings[:50].astype(np.float32)
    x[7, 3] = np.nan
    with pytest.raises(InputError, match="in 1 row of the embeddings: 7 "):
        facelink.cluster(x)


def test_progress_names_the_stages(sample):
    seen = []
    facelink.cluster(sample.embeddings[:100], progress=lambda *r: seen.append(r))
    stages = [stage for stage, done, total in seen if done == total]
    assert stages == [
        "neighbours", "links", "links, look 2", "links, look 3", "draft", "links, reviewed",
        "merging",
    ]  # fmt: skip


@pytest.mark.parametrize("dimension", [16, 32, 64, 512])
def test_random_vectors_stay_alone(dimension):
    """A network that has seen people in every collection would find some here."""
    for seed, n_items in ((0, 300), (1, 1000)):
        x = np.random.default_rng(seed).normal(size=(n_items, dimension))
        found = facelink.cluster(x)
        assert len(np.unique(found.labels)) > 0.98 * n_items
        assert "No two items look like one person." in found.notes


@pytest.mark.parametrize("see", ["noisy", "signs", "few directions"])
def test_who_owns_the_collection_is_found_by_other_embedders_too(sample, see):
    """One in eight photos is of one person: what many look like is not what strangers look like."""
    rng = np.random.default_rng(0)
    x = UnitRows(sample.embeddings)[:]
    if see == "noisy":
        x = x + 0.5 * rng.normal(size=x.shape) / np.sqrt(x.shape[1])
    elif see == "signs":
        x = np.sign(x @ rng.normal(size=(x.shape[1], 256)))
    else:
        _, scales, axes = np.linalg.svd(x - x.mean(axis=0), full_matrices=False)
        x = ((x - x.mean(axis=0)) @ axes.T) * (scales / scales[0]) ** 1.2
    found = facelink.cluster(x)
    owner = np.bincount(sample.labels).argmax()
    _, sizes = np.unique(found.labels[sample.labels == owner], return_counts=True)
    assert sizes.max() > 0.9 * sizes.sum()
    assert facelink.metrics.bcubed(sample.labels, found.labels).f > 0.93


def test_one_photo_of_each_person_stays_alone(sample):
    _, first = np.unique(sample.labels, return_index=True)
    found = facelink.cluster(sample.embeddings[first])
    assert len(np.unique(found.labels)) > 0.99 * len(first)


def test_the_few_who_are_one_person_among_strangers_are_found():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 64))
    x[:10] = x[10:20] + 0.5 * rng.normal(size=(10, 64))
    found = facelink.cluster(x)
    np.testing.assert_array_equal(found.labels[:10], found.labels[10:20])
    assert len(np.unique(found.labels)) > 380
