"""The methods that are not about faces: by hand, small collections, obvious versions."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module

import numpy as np
import pytest
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.sparse.csgraph import connected_components
from sklearn.cluster import DBSCAN

from facelink import KnnGraph, knn_graph
from facelink.baselines import BASELINES, similarity_pairs
from facelink.baselines.sizes import LIMIT, check_size
from facelink.errors import InputError
from facelink.merging import by_size
from facelink.metrics import bcubed

# A value of each method's knob that tells three directions apart.
KNOBS = {
    "kmeans": 3,
    "spectral": 3,
    "ahc": 0.5,
    "affinity_propagation": 0.3,
    "dbscan": 0.3,
    "components": 0.7,
    "chinese_whispers": 0.7,
    "map_equation": 0.7,
}
ON_GRAPH = [name for name in KNOBS if name not in ("kmeans", "affinity_propagation")]
LARGEST = {"kmeans": 1, "spectral": 1, "ahc": -1.0, "dbscan": 2.5}  # what merges most


def method_of(name: str) -> Callable[..., np.ndarray]:
    return getattr(import_module(f"facelink.baselines.{name}"), name)


def run(name: str, embeddings, knob=None, **options) -> np.ndarray:
    knob = KNOBS[name] if knob is None else knob
    return method_of(name)(embeddings, **{BASELINES[name].knob: knob}, **options)


def directions(*degrees: float) -> np.ndarray:
    angles = np.radians(degrees)
    return np.c_[np.cos(angles), np.sin(angles)]


@pytest.mark.parametrize("name", KNOBS)
def test_three_directions_are_three_clusters(name):
    """Two of them opposite, so that similarities are negative."""
    x = directions(0, 180, 2, 90, 92, 4, 182, 6, 94, 8)
    options = {"k": 4} if name in ON_GRAPH else {}
    assert run(name, x, **options).tolist() == [0, 2, 0, 1, 1, 0, 2, 0, 1, 0]


@pytest.mark.parametrize("name", KNOBS)
@pytest.mark.parametrize("n_items", [1, 2, 5])
def test_few_items(name, n_items):
    x = np.random.default_rng(0).normal(size=(n_items, 4))
    for knob in (KNOBS[name], LARGEST.get(name, 0.0)):
        labels = run(name, x, knob)
        assert labels.shape == (n_items,)
        assert labels.dtype.kind == "i"
        np.testing.assert_array_equal(labels, by_size(labels))


@pytest.mark.parametrize("name", KNOBS)
@pytest.mark.parametrize("n_items", [2, 5, 300])
def test_copies_of_one_item_are_one_cluster(name, n_items):
    one = 1 if BASELINES[name].knob == "n_clusters" else KNOBS[name]
    assert run(name, np.ones((n_items, 4)), one).tolist() == [0] * n_items


@pytest.mark.parametrize("name", KNOBS)
def test_opposite_items_are_not_broken_by_negative_similarities(name):
    """No item has a neighbour of positive similarity, whatever the knob."""
    x = np.array([[1, 0, 0], [-1, 0.1, 0], [-0.1, -1, 0]])
    for knob in (KNOBS[name], LARGEST.get(name, 0.0)):
        assert run(name, x, knob).shape == (3,)
    if name in ("components", "chinese_whispers", "map_equation", "spectral"):
        assert len(set(run(name, x))) == 3


@pytest.mark.parametrize("min_samples", [1, 2])
def test_dbscan_of_few_samples_is_components(faces, min_samples):
    labels = run("dbscan", faces.embeddings, 0.4, k=7, min_samples=min_samples)
    np.testing.assert_array_equal(labels, run("components", faces.embeddings, 0.6, k=7))


@pytest.mark.parametrize("name", KNOBS)
def test_people_are_found(name, faces):
    baseline = BASELINES[name]
    n_people = len(np.unique(faces.labels))
    labels_at = baseline.prepare(faces.embeddings, graph=knn_graph(faces.embeddings, 90))
    found = {knob: labels_at(knob) for knob in baseline.grid(n_people)}
    assert max(bcubed(faces.labels, labels).f for labels in found.values()) > 0.65
    for labels in found.values():
        np.testing.assert_array_equal(labels, by_size(labels))


@pytest.mark.parametrize("name", KNOBS)
def test_the_same_input_gives_the_same_labels(name, faces):
    np.testing.assert_array_equal(run(name, faces.embeddings), run(name, faces.embeddings))


@pytest.mark.parametrize("name", KNOBS)
def test_values_that_are_no_numbers_are_refused(name):
    with pytest.raises(InputError, match="NaN"):
        run(name, [[1.0, np.nan], [0.0, 1.0]])


@pytest.mark.parametrize("name", ON_GRAPH)
def test_a_graph_can_be_given(name, faces):
    options = {"exact": False} if name == "ahc" else {}
    graph = knn_graph(faces.embeddings, 12)
    given = run(name, faces.embeddings, graph=graph, **options)
    np.testing.assert_array_equal(given, run(name, faces.embeddings, k=12, **options))
    with pytest.raises(InputError, match=r"graph is of 3 items, the embeddings are of \d+"):
        run(name, faces.embeddings, graph=knn_graph(faces.embeddings[:3], 2), **options)


@pytest.mark.parametrize(
    ("name", "knob", "message"),
    [
        ("kmeans", 0, "n_clusters should be a whole number from 1, got 0"),
        ("spectral", 2.5, "n_clusters should be a whole number from 1, got 2.5"),
        ("affinity_propagation", 2, "preference should be a number from 0 to 1, got 2"),
        ("dbscan", 0, "eps, the radius, should be a number above 0, got 0"),
        ("chinese_whispers", -1, "threshold should be a number from 0 to 1, got -1"),
        ("components", 7, "threshold should be a number from 0 to 1, got 7"),
    ],
)
def test_knobs_out_of_range_are_refused(name, knob, message):
    with pytest.raises(InputError, match=message):
        run(name, directions(0, 10, 90), knob)


class Wide:
    """Rows that only say how many they are: the check has to come before they are read."""

    shape = (10**8, 512)

    def __len__(self) -> int:
        return self.shape[0]


@pytest.mark.parametrize("name", KNOBS)
def test_too_many_items_are_refused_before_the_work(name, monkeypatch):
    module = import_module(f"facelink.baselines.{name}")
    monkeypatch.setattr(module.UnitRows, "of", lambda embeddings: embeddings)
    with pytest.raises(InputError, match=r"GiB for 100,000,000 items, the limit is 12 GiB"):
        run(name, Wide())


def test_the_size_error_says_what_to_do():
    check_size("K-means", 5, LIMIT)
    with pytest.raises(InputError, match=r"^AHC would need about 24\.0 GiB for 7 items.*kNN graph"):
        check_size("AHC", 7, 2 * LIMIT)


def test_spectral_refuses_more_eigenvectors_than_fit(monkeypatch):
    monkeypatch.setattr("facelink.baselines.sizes.LIMIT", 10**6)
    x = np.random.default_rng(0).normal(size=(300, 8))
    assert run("spectral", x, 5, k=5).shape == (300,)
    with pytest.raises(InputError, match="Spectral would need"):
        run("spectral", x, 250, k=5)


def test_components_agree_with_those_of_all_pairs(faces):
    """With as many neighbours as there are others."""
    linked = faces.embeddings @ faces.embeddings.T >= 0.55
    labels = run("components", faces.embeddings, 0.55, k=len(linked))
    np.testing.assert_array_equal(labels, by_size(connected_components(linked)[1]))


@pytest.mark.parametrize("min_samples", [1, 2, 4])
def test_dbscan_agrees_with_that_of_all_pairs(faces, min_samples):
    x = faces.embeddings.astype(np.float64)
    distances = np.maximum(1 - x @ x.T, 0)
    expected = (
        DBSCAN(eps=0.43, min_samples=min_samples, metric="precomputed").fit(distances).labels_
    )
    labels = run("dbscan", x, 0.43, k=len(x), min_samples=min_samples)
    noise = expected < 0
    np.testing.assert_array_equal(np.bincount(labels)[labels[noise]], 1)
    np.testing.assert_array_equal(by_size(labels[~noise]), by_size(expected[~noise]))


@pytest.mark.parametrize("exact", [True, False])
def test_ahc_agrees_with_scipy(faces, exact):
    """On the graph too, where it is complete and no average that counts is negative."""
    x = faces.embeddings.astype(np.float64)
    distances = np.maximum(1 - x @ x.T, 0)[np.triu_indices(len(x), 1)]
    tree = linkage(distances, "average")
    for threshold in (0.2, 0.41, 0.6, 0.8):
        expected = by_size(fcluster(tree, 1 - threshold, "distance"))
        labels = run("ahc", x, threshold, k=len(x), exact=exact)
        np.testing.assert_array_equal(labels, expected)


def test_ahc_turns_to_the_graph_where_all_pairs_do_not_fit(faces, monkeypatch):
    from facelink.baselines import ahc

    sparse = run("ahc", faces.embeddings, k=10, exact=False)
    assert not np.array_equal(sparse, run("ahc", faces.embeddings, k=10))
    monkeypatch.setattr(ahc, "LIMIT", 10_000)
    np.testing.assert_array_equal(sparse, run("ahc", faces.embeddings, k=10))


def test_more_clusters_than_items_leave_each_alone():
    x = directions(0, 10, 90, 100, 200, 215)
    assert run("kmeans", x, 50).tolist() == [0, 1, 2, 3, 4, 5]
    assert len(run("spectral", x, 50)) == 6


def test_spectral_serves_fewer_clusters_from_more_eigenvectors(faces):
    labels_of = BASELINES["spectral"].prepare(
        faces.embeddings, graph=knn_graph(faces.embeddings, 9)
    )
    labels_of(14)
    again = run("spectral", faces.embeddings, 9, k=9)
    assert bcubed(again, labels_of(9)).f > 0.99


def test_affinity_propagation_that_never_settles_is_taken_as_it_stands():
    """At this damping nothing has moved far after 500 turns; nobody is warned."""
    x = np.random.default_rng(0).normal(size=(40, 8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        labels = run("affinity_propagation", x, 0.0, damping=0.999)
    assert len(labels) == 40


def test_whispers_follow_the_strongest_label():
    """0-1-2 and 3-4-5 are triangles at 0.9, joined by one link at 0.6."""
    neighbors = np.array([[1, 2, 3], [0, 2, 4], [0, 1, 5], [4, 5, 0], [3, 5, 1], [3, 4, 2]])
    similarities = np.full((6, 3), 0.9)
    similarities[:, 2] = [0.6, -0.5, -0.5, 0.6, -0.5, -0.5]
    labels = run("chinese_whispers", np.eye(6), 0.5, graph=KnnGraph(neighbors, similarities))
    assert labels.tolist() == [0, 0, 0, 1, 1, 1]


def test_pairs_hold_each_two_neighbours_once(faces):
    graph = knn_graph(faces.embeddings, 6)
    pairs = similarity_pairs(graph)
    rows, slots = np.indices(graph.indices.shape).reshape(2, -1)
    wanted = {(min(i, j), max(i, j)) for i, j in zip(rows, graph.indices[rows, slots], strict=True)}
    assert set(zip(pairs.first, pairs.second, strict=True)) == wanted
    assert len(pairs.first) == len(wanted)
    expected = (faces.embeddings[pairs.first] * faces.embeddings[pairs.second]).sum(axis=1)
    np.testing.assert_allclose(pairs.likelihood, expected, atol=1e-6)


def test_the_registry_cuts_a_graph_to_the_width_read(faces):
    wide, narrow = (knn_graph(faces.embeddings, k) for k in (100, 80))
    components = BASELINES["components"]
    for threshold in components.grid(1):
        np.testing.assert_array_equal(
            components.prepare(faces.embeddings, graph=wide)(threshold),
            components.prepare(faces.embeddings, graph=narrow)(threshold),
        )


@pytest.mark.parametrize("name", BASELINES)
def test_every_method_says_what_to_try(name):
    baseline = BASELINES[name]
    assert baseline.module == name
    assert len(baseline.grid(100)) >= 4


def test_numbers_of_clusters_follow_the_number_of_people():
    assert sorted(BASELINES["kmeans"].grid(100)) == [50, 70, 85, 100, 120, 150]
    assert min(BASELINES["spectral"].grid(1)) == 1
