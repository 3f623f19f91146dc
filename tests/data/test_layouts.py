"""Labelled collections in the layouts of other projects."""

from __future__ import annotations

import numpy as np
import pytest

import facelink
from conftest import make_faces
from facelink.data.layouts import read_collections, read_graph
from facelink.errors import FileError, InputError


@pytest.fixture
def faces():
    return make_faces((6, 5, 4, 3, 1, 1), dimension=8, n_copies=0)


def lists_of(faces, k):
    """Neighbours with the item itself first, as the paper's code stores them."""
    graph = facelink.knn_graph(faces.embeddings, k)
    return np.hstack([np.arange(len(faces.labels))[:, None], graph.indices]), graph


def test_the_papers_code(tmp_path, faces):
    lists, graph = lists_of(faces, 9)
    np.save(tmp_path / "512.fea.npy", faces.embeddings)
    np.save(tmp_path / "512.labels.npy", faces.labels)
    np.save(tmp_path / "knn.graph.512.bf.npy", lists)
    (found,) = read_collections(tmp_path)
    assert found.name == "512"
    np.testing.assert_array_equal(found.embeddings, faces.embeddings)
    assert found.graph_file.name == "knn.graph.512.bf.npy"
    read = found.graph(5)
    np.testing.assert_array_equal(read.indices, graph.indices[:, :5])
    np.testing.assert_allclose(read.similarities, graph.similarities[:, :5], atol=1e-6)


def test_learn_to_cluster(tmp_path, faces):
    lists, graph = lists_of(faces, 9)
    for folder in ("features", "labels", "knns/part1_test"):
        (tmp_path / folder).mkdir(parents=True)
    faces.embeddings.astype(np.float32).tofile(tmp_path / "features/part1_test.bin")
    (tmp_path / "labels/part1_test.meta").write_text("".join(f"{y}\n" for y in faces.labels))
    distances = np.hstack([np.zeros((len(lists), 1)), 1 - graph.similarities])
    # Their files are not always sorted.
    order = np.random.default_rng(0).permutation(lists.shape[1])
    data = np.stack([lists, distances], axis=1)[:, :, order]  # float64: ids as floats, too
    np.savez(tmp_path / "knns/part1_test/faiss_k_10.npz", data=data)
    (found,) = read_collections(tmp_path)
    assert (found.name, found.embeddings.shape) == ("part1_test", faces.embeddings.shape)
    np.testing.assert_array_equal(found.graph(9).indices, graph.indices)
    # A graph that is too narrow is not used.
    assert found.graph(12).k == 12


def test_the_papers_training_set_has_an_s(tmp_path, faces):
    np.save(tmp_path / "CASIA.feas.npy", faces.embeddings)
    np.save(tmp_path / "CASIA.labels.npy", faces.labels)
    assert [c.name for c in read_collections(tmp_path)] == ["CASIA"]


def test_two_of_one_name_are_refused(tmp_path, faces):
    np.save(tmp_path / "a.fea.npy", faces.embeddings)
    np.save(tmp_path / "a.labels.npy", faces.labels)
    np.savez(tmp_path / "a.npz", x=faces.embeddings, y=faces.labels)
    with pytest.raises(FileError, match="both called 'a'"):
        read_collections(tmp_path)


def test_only_those_named_are_read_in_that_order(tmp_path, faces):
    for name in "abc":
        np.savez(tmp_path / f"{name}.npz", x=faces.embeddings, y=faces.labels)
    np.savez(tmp_path / "notes.npz", something=[1])
    assert [c.name for c in read_collections(tmp_path, ["c", "a"])] == ["c", "a"]
    assert [c.name for c in read_collections(tmp_path)] == ["a", "b", "c"]
    with pytest.raises(InputError, match="holds no collection 'd'; it holds a, b, c"):
        read_collections(tmp_path, ["d"])


def test_npz_files_and_a_single_file(tmp_path, faces):
    for name in ("b-128", "a-128"):
        np.savez(tmp_path / f"{name}.npz", x=faces.embeddings, y=faces.labels)
    assert [c.name for c in read_collections(tmp_path)] == ["a-128", "b-128"]
    (one,) = read_collections(tmp_path / "b-128.npz")
    assert one.n_people == 6


def test_labels_may_be_names(tmp_path, faces):
    np.savez(tmp_path / "a.npz", x=faces.embeddings, y=np.array([f"p{y}" for y in faces.labels]))
    (found,) = read_collections(tmp_path)
    assert facelink.metrics.bcubed(faces.labels, found.labels).f == 1


def test_the_digest_changes_with_the_content(tmp_path, faces):
    np.savez(tmp_path / "a.npz", x=faces.embeddings, y=faces.labels)
    np.savez(tmp_path / "b.npz", x=faces.embeddings, y=faces.labels)
    np.savez(tmp_path / "c.npz", x=faces.embeddings[::-1], y=faces.labels)
    a, b, c = read_collections(tmp_path)
    assert a.digest == b.digest != c.digest


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: None, "holds no labelled collections"),
        (lambda folder: np.save(folder / "512.fea.npy", np.eye(3)), "has no labels: expected them"),
        (lambda folder: np.savez(folder / "a.npz", x=np.eye(3), y=[1, 2]), "3 embeddings and 2"),
        (lambda folder: np.savez(folder / "a.npz", x=np.eye(3)), "no labelled collections"),
    ],
)
def test_what_is_missing_is_said(tmp_path, make, message):
    make(tmp_path)
    with pytest.raises(InputError, match=message):
        read_collections(tmp_path)


def test_a_bin_of_another_size_is_refused(tmp_path):
    for folder in ("features", "labels"):
        (tmp_path / folder).mkdir()
    np.ones(7, np.float32).tofile(tmp_path / "features/a.bin")
    (tmp_path / "labels/a.meta").write_text("1\n1\n2\n")
    with pytest.raises(FileError, match="not a whole number of float32 for each of the 3 labels"):
        read_collections(tmp_path)


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        (np.zeros((4, 3), int), "should hold the neighbours of 5 items"),
        (np.full((5, 3), 7), "not among the 5 items"),
        (np.full((5, 3), 0.5), "not among the 5 items"),
        (np.zeros((5, 3), int), "several times"),
        (np.c_[np.arange(5), (np.arange(5) + 1) % 5, (np.arange(5) + 1) % 5], "twice"),
    ],
)
def test_graphs_that_do_not_fit_are_refused(tmp_path, lists, message):
    np.save(tmp_path / "g.npy", lists)
    with pytest.raises(FileError, match=message):
        read_graph(tmp_path / "g.npy", np.random.default_rng(0).normal(size=(5, 3)))


def test_python_objects_in_a_graph_are_not_read(tmp_path):
    np.save(tmp_path / "g.npy", np.array([[0, 1], [2]], dtype=object), allow_pickle=True)
    with pytest.raises(FileError, match="could run code"):
        read_graph(tmp_path / "g.npy", np.eye(2))
