from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import make_faces
from facelink import KnnGraph, embeddings, knn_graph
from facelink.embeddings import UnitRows
from facelink.errors import InputError
from facelink.neighbors import exact


def obvious_neighbors(x: np.ndarray, k: int) -> np.ndarray:
    """All similarities in float64, ties to the lower index."""
    x = UnitRows(x)[:].astype(np.float64)
    similarities = (x @ x.T).astype(np.float32)
    np.fill_diagonal(similarities, -np.inf)
    return np.argsort(-similarities, axis=1, kind="stable")[:, :k]


def test_three_directions_by_hand():
    angles = np.radians([0, 10, 25, 180])
    graph = knn_graph(np.c_[np.cos(angles), np.sin(angles)], 2)
    np.testing.assert_array_equal(graph.indices, [[1, 2], [0, 2], [1, 0], [2, 1]])
    np.testing.assert_allclose(
        graph.similarities[0], [np.cos(np.radians(10)), np.cos(np.radians(25))], rtol=1e-6
    )


def test_equals_the_obvious_search_on_distinct_items():
    x = make_faces(n_copies=0, seed=3).embeddings
    np.testing.assert_array_equal(knn_graph(x, 20).indices, obvious_neighbors(x, 20))


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_takes_every_float_and_memory_maps(kind, tmp_path):
    x = make_faces(n_copies=0).embeddings.astype(kind)
    np.save(tmp_path / "x.npy", x)
    graph = knn_graph(np.load(tmp_path / "x.npy", mmap_mode="r"), 10)
    np.testing.assert_array_equal(graph.indices, obvious_neighbors(x, 10))


def test_the_graph_does_not_depend_on_tiles_threads_or_what_fits_in_memory(monkeypatch):
    # A grid of few values makes exact ties and near ties everywhere.
    x = np.random.default_rng(0).integers(-1, 2, size=(300, 12)) + 1e-9
    x = x[(np.abs(x) > 0.5).any(axis=1)]
    wanted = knn_graph(x, 15)
    for tile, threads in ((11, 1), (300, 2), (5, 3), (100, 8)):
        monkeypatch.setattr(exact, "TILE", tile)
        graph = knn_graph(x, 15, n_threads=threads)
        np.testing.assert_array_equal(graph.indices, wanted.indices)
        np.testing.assert_array_equal(graph.similarities, wanted.similarities)
    monkeypatch.setattr(embeddings, "IN_MEMORY_BYTES", 0)
    np.testing.assert_array_equal(knn_graph(x, 15).indices, wanted.indices)


def test_ties_go_to_the_lower_index_even_where_all_items_tie():
    x = np.eye(400)  # every pair has similarity 0: more ties than candidates fit
    graph = knn_graph(x, 3)
    np.testing.assert_array_equal(graph.indices[0], [1, 2, 3])
    np.testing.assert_array_equal(graph.indices[1], [0, 2, 3])
    np.testing.assert_array_equal(graph.indices[399], [0, 1, 2])


@settings(max_examples=40, deadline=None)
@given(
    st.integers(2, 40), st.integers(1, 12), st.integers(1, 4), st.integers(0, 10**6)
)  # coarse values: ties and copies abound
def test_every_row_is_sorted_without_the_item_itself_and_without_repeats(n, k, spread, seed):
    rng = np.random.default_rng(seed)
    x = rng.integers(1, spread + 2, size=(n, 3))
    graph = knn_graph(x, k)
    assert graph.indices.shape == (n, min(k, n - 1))
    for i in range(n):
        assert i not in graph.indices[i]
        assert len(set(graph.indices[i])) == graph.k
        order = list(zip(-graph.similarities[i], graph.indices[i], strict=True))
        assert order == sorted(order)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_permuting_the_items_permutes_the_graph(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(50, 8))
    order = rng.permutation(50)
    graph, permuted = knn_graph(x, 6), knn_graph(x[order], 6)
    np.testing.assert_array_equal(order[permuted.indices], graph.indices[order])


def test_a_face_stored_200_times_still_has_neighbours():
    x = make_faces(n_copies=0, seed=1).embeddings
    stored = np.concatenate([x, np.repeat(x[:1], 199, axis=0)])
    graph = knn_graph(stored, 20)
    copies = {0, *range(len(x), len(stored))}
    near = knn_graph(x, 19).indices[0]
    for item in (0, len(x), len(stored) - 1):
        row = graph.indices[item]
        assert len(copies & set(row)) == 1  # one copy of itself
        np.testing.assert_array_equal(row[1:], near)
        assert graph.similarities[item, 0] == 1.0
    # Whoever is near it meets it once.
    for item in near:
        assert len(copies & set(graph.indices[item])) <= 1


def test_copies_fill_the_rows_where_nothing_else_is_left():
    x = np.array([[1.0, 0], [0, 1], [1, 0], [1, 0]])
    graph = knn_graph(x, 3)
    np.testing.assert_array_equal(graph.indices, [[2, 3, 1], [0, 2, 3], [0, 3, 1], [0, 2, 1]])


def test_items_that_are_all_the_same_are_each_others_neighbours():
    graph = knn_graph(np.ones((5, 4)), 2)
    np.testing.assert_array_equal(graph.indices, [[1, 2], [0, 2], [0, 1], [0, 1], [0, 1]])
    np.testing.assert_array_equal(graph.similarities, 1.0)


def test_rows_of_different_length_but_one_direction_are_copies():
    graph = knn_graph(np.array([[1.0, 1], [2, 2], [1, 0]]), 1)
    np.testing.assert_array_equal(graph.indices.ravel(), [1, 0, 0])


def test_a_graph_of_neighbours_that_do_not_exist_is_refused():
    values = np.zeros((3, 1), np.float32)
    for wrong in (3, -1, 10**8):
        with pytest.raises(InputError, match=f"from 0 to 2.*got .*{wrong}"):
            KnnGraph(np.array([[1], [0], [wrong]]), values)
    with pytest.raises(InputError, match="whole numbers"):
        KnnGraph(np.zeros((3, 1)), values)
    with pytest.raises(InputError, match="one shape"):
        KnnGraph(np.zeros((3, 2), int), values)
    graph = KnnGraph(np.array([[1], [0], [1]]), values)  # int64, as faiss gives them
    assert graph.indices.dtype == np.int32


def test_a_graph_wider_than_the_collection_says_so():
    graph = knn_graph(np.eye(3), 10)
    assert graph.k == 2
    assert graph.notes == ("k = 10 neighbours were asked for, but 3 items have 2 each.",)
    alone = knn_graph(np.ones((1, 4)), 10)
    assert alone.notes == ("k = 10 neighbours were asked for, but a single item has none.",)
    assert knn_graph(np.eye(3), 2).notes == ()


def test_a_single_item_has_no_neighbours():
    graph = knn_graph(np.ones((1, 4)), 5)
    assert graph.indices.shape == (1, 0)


@pytest.mark.parametrize("k", [0, -1, 2.5, True, "5"])
def test_a_k_that_is_no_count_is_refused(k):
    with pytest.raises(InputError, match="k, the neighbours per item"):
        knn_graph(np.eye(3), k)


def test_progress_ends_at_the_number_of_items():
    seen = []
    knn_graph(np.eye(700), 3, progress=lambda *report: seen.append(report))
    assert seen[0] == ("neighbours", 0, 700)
    assert seen[-1] == ("neighbours", 700, 700)


def test_a_narrowed_graph_keeps_the_nearest_and_the_notes():
    graph = knn_graph(np.random.default_rng(0).normal(size=(6, 3)), 9)
    assert graph.notes
    narrow = graph.narrowed(2)
    np.testing.assert_array_equal(narrow.indices, graph.indices[:, :2])
    np.testing.assert_array_equal(narrow.similarities, graph.similarities[:, :2])
    assert narrow.notes == graph.notes
    assert graph.narrowed(7) is graph
