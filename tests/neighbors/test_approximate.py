from __future__ import annotations

import numpy as np
import pytest

import facelink
from conftest import make_faces
from facelink import knn_graph
from facelink.embeddings import UnitRows
from facelink.errors import InputError
from facelink.neighbors import EXACT_UP_TO, approximate, searches_exactly
from facelink.neighbors.approximate import Cells, Exact, Kept, choose_probes
from facelink.runs import Run


@pytest.fixture(scope="module")
def faces():
    return facelink.load_sample().embeddings


@pytest.fixture(scope="module")
def rows(faces):
    return UnitRows(faces)


def test_cells_hold_every_item_once_near_its_nearest_center(rows):
    cells = Cells.of(rows)
    assert np.array_equal(np.sort(cells.members), np.arange(len(rows)))
    np.testing.assert_array_equal(cells.starts[[0, -1]], [0, len(rows)])
    # Nearest in the directions in which centres differ, or as good as nearest.
    similarities = rows[:] @ cells.centers.T
    own = similarities[np.arange(len(rows)), cells.near[:, 0]]
    assert np.mean(cells.near[:, 0] == similarities.argmax(axis=1)) > 0.97
    assert (own > similarities.max(axis=1) - 0.05).all()
    np.testing.assert_allclose(np.linalg.norm(cells.centers, axis=1), 1, atol=1e-5)


def test_centers_are_nearer_than_where_they_began(rows, monkeypatch):
    def cost() -> float:
        cells = Cells.of(rows)
        return -float((rows[:] @ cells.centers.T).max(axis=1).mean())

    after = cost()
    monkeypatch.setattr(approximate, "ROUNDS", 0)
    assert after < cost() - 0.01


def test_exact_neighbours_of_a_sample_are_exact(rows):
    exact = Exact.of(rows, 10)
    graph = knn_graph(rows, 10, neighbors="exact")
    assert len(np.unique(exact.asked)) == len(exact.asked)
    same = exact.nearest == graph.indices[exact.asked]
    assert same.mean() > 0.999  # copies and ties apart
    level = graph.similarities[exact.asked][exact.matters].min()
    assert level > graph.similarities[exact.asked][~exact.matters].max() - 1e-5
    assert 0.1 < level < 0.6


def test_what_matters_is_found_and_the_estimate_is_right(rows):
    indices, _, recall = approximate.nearest(rows, 20, run=Run())
    exact = knn_graph(rows, 20, neighbors="exact")
    level = approximate.Exact.of(rows, 20)
    bar = exact.similarities[level.asked][level.matters].min()
    found = (exact.indices[:, :, None] == indices[:, None, :]).any(axis=2)
    true = found[exact.similarities >= bar].mean()
    assert true > 0.98
    assert abs(true - recall) < 0.01


def test_the_graph_is_well_formed(rows):
    graph = knn_graph(rows, 30, neighbors="approximate")
    assert graph.recall is not None
    assert not graph.notes
    assert (graph.indices != np.arange(len(rows))[:, None]).all()
    assert (np.diff(graph.similarities, axis=1) <= 0).all()
    assert all(len(set(row)) == 30 for row in graph.indices)
    x = rows[:]
    products = np.einsum("nd,nkd->nk", x, x[graph.indices])
    np.testing.assert_allclose(graph.similarities, products, atol=1e-5)


@pytest.mark.parametrize("n_threads", [1, 3])
def test_it_does_not_depend_on_threads(rows, n_threads):
    one = knn_graph(rows, 15, neighbors="approximate", n_threads=2)
    other = knn_graph(rows, 15, neighbors="approximate", n_threads=n_threads)
    np.testing.assert_array_equal(one.indices, other.indices)
    np.testing.assert_array_equal(one.similarities, other.similarities)


def test_files_that_are_not_read_at_once_give_the_same(faces, monkeypatch):
    monkeypatch.setattr("facelink.embeddings.IN_MEMORY_BYTES", 0)
    from_disk = knn_graph(faces[:1000], 15, neighbors="approximate")
    monkeypatch.undo()
    in_memory = knn_graph(faces[:1000], 15, neighbors="approximate")
    np.testing.assert_array_equal(from_disk.indices, in_memory.indices)


@pytest.mark.parametrize("n_items", [1, 2, 5, 90])
def test_small_collections_can_be_searched_this_way_too(n_items):
    x = make_faces((1,) * n_items, n_copies=0).embeddings
    graph = knn_graph(x, 80, neighbors="approximate")
    wanted = knn_graph(x, 80, neighbors="exact")
    assert graph.indices.shape == wanted.indices.shape
    if n_items > 1:
        assert (graph.indices == wanted.indices).mean() > 0.9


def test_copies_count_as_one(faces):
    x = np.concatenate([faces[:300], np.tile(faces[:1], (40, 1))])
    graph = knn_graph(x, 20, neighbors="approximate")
    copies = {0, *range(300, 340)}
    assert all(len(copies & set(row)) == 1 for row in graph.indices[sorted(copies)])
    assert (graph.similarities[sorted(copies), 0] == 1).all()


@pytest.mark.parametrize("k", [1, 2, 5])
def test_the_nearest_are_kept_among_many_ties(k):
    rng = np.random.default_rng(k)
    scores = rng.integers(0, 4, size=(40, 60)).astype(np.float32) / 4
    kept = Kept.room_for(40, k)
    for block in (slice(0, 7), slice(7, 30), slice(30, 60)):
        members = np.arange(block.start, block.stop)
        kept.add(scores[:, block].copy(), np.arange(40), members, np.full(40, -1))
    nearest, values = kept.sorted()
    np.testing.assert_array_equal(values, -np.sort(-scores, axis=1)[:, :k])
    np.testing.assert_array_equal(np.take_along_axis(scores, nearest, axis=1), values)


def test_strangers_that_tie_do_not_hide_anybody():
    rng = np.random.default_rng(0)
    x = np.zeros((900, 30 * 8), np.float32)  # 30 people, orthogonal to each other
    owner = np.repeat(np.arange(30), 30)
    for item, person in enumerate(owner):
        x[item, 8 * person : 8 * person + 8] = rng.uniform(0.5, 1, 8)
    graph = knn_graph(x, 60, neighbors="approximate")
    own = owner[graph.indices[:, :29]] == owner[:, None]
    assert own.mean() > 0.99


def test_every_item_may_be_alike():
    x = np.random.default_rng(0).normal(size=(1, 16)) + 1e-4 * np.random.default_rng(1).normal(
        size=(3000, 16)
    )
    graph = knn_graph(x, 40, neighbors="approximate")
    assert graph.indices.shape == (3000, 40)
    assert graph.recall is None or graph.recall > 0.9


def test_it_says_so_when_too_little_is_found(rows, monkeypatch):
    monkeypatch.setattr(approximate, "choose_probes", lambda *_: 1)
    monkeypatch.setattr(approximate, "ASKING", 0)
    graph = knn_graph(rows, 30, neighbors="approximate")
    assert graph.recall < 0.98
    assert f"{graph.recall:.1%}" in graph.notes[0]
    assert 'neighbors="exact"' in graph.notes[0]


def test_neighbours_of_neighbours_find_what_cells_missed(rows, monkeypatch):
    monkeypatch.setattr(approximate, "choose_probes", lambda *_: 1)
    recalls = []
    for asking in (0, 1, 2):
        monkeypatch.setattr(approximate, "ASKING", asking)
        recalls.append(approximate.nearest(rows, 30, run=Run())[2])
    assert recalls[0] + 0.05 < recalls[1] < recalls[2]


def test_more_cells_are_looked_into_where_more_is_wanted(rows, monkeypatch):
    monkeypatch.setattr(approximate, "FEWEST", 1)
    monkeypatch.setattr(approximate, "MET", 1)
    cells, exact = Cells.of(rows), Exact.of(rows, 20)
    probes = []
    for wanted in (0.8, 0.9, 0.97, 1.1):
        monkeypatch.setattr(approximate, "BEGUN", wanted)
        probes.append(choose_probes(cells, exact))
    assert probes[0] < probes[1] < probes[2] < probes[3] == approximate.MOST


def test_enough_others_are_met_in_small_cells(rows, monkeypatch):
    cells, exact = Cells.of(rows), Exact.of(rows, 20)
    monkeypatch.setattr(approximate, "BEGUN", 0)
    in_one = len(rows) / len(cells.centers)
    for met, wanted in ((1, approximate.FEWEST), (18.5 * in_one, 19), (10**6, approximate.MOST)):
        monkeypatch.setattr(approximate, "MET", met)
        assert choose_probes(cells, exact) == wanted
        nothing = Exact(exact.asked, exact.nearest, np.zeros_like(exact.matters), exact.level)
        assert choose_probes(cells, nothing) == wanted


def test_progress_names_the_stages(rows):
    seen = []
    knn_graph(rows, 15, neighbors="approximate", progress=lambda *report: seen.append(report))
    stages = [stage for stage, done, total in seen if done == total]
    assert stages[:3] == ["cells", "neighbours", "neighbours of neighbours"]


def test_the_size_decides():
    assert searches_exactly("auto", EXACT_UP_TO)
    assert not searches_exactly("auto", EXACT_UP_TO + 1)
    assert searches_exactly("exact", 10**6)
    assert not searches_exactly("approximate", 10)
    with pytest.raises(InputError, match="one of auto, exact, approximate, got 'hnsw'"):
        knn_graph(np.eye(3), 1, neighbors="hnsw")
    with pytest.raises(InputError, match="got 'fast'"):
        facelink.cluster(np.eye(3), neighbors="fast")
