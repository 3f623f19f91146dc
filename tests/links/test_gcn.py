"""The scorer without torch gives the likelihoods of the torch network."""

from __future__ import annotations

import errno
import os
import sys

import numpy as np
import pytest

from conftest import random_network
from facelink import Context, KnnGraph, cluster, knn_graph, score_links
from facelink.embeddings import UnitRows
from facelink.errors import FileError, InputError, MissingExtraError, ModelError
from facelink.links.gcn import GcnScorer
from facelink.links.model import Architecture, GcnModel
from facelink.neighbors.order import near_one_another
from facelink.runs import Run
from facelink.scratch import scratch_array
from facelink.subgraphs import build_subgraphs

torch = pytest.importorskip("torch")
from facelink.training.network import Batch, LinkNetwork, weights_of  # noqa: E402

ARCHITECTURES = [
    Architecture(32, "mean", (24, 16, 8, 8)),
    Architecture(32, "mean", (24, 16, 8, 8), symmetric=True),
    Architecture(32, "weighted", (24, 16, 8, 8)),
    Architecture(32, "attention", (24, 16, 8, 8)),
    Architecture(32, "mean", (24, 16, 8, 8), similarity=True),
    Architecture(32, "attention", (40, 50), similarity=True),
    Architecture(32, "mean", (12,)),
    Architecture(32, "attention", (12,)),
]


def model_of(network: LinkNetwork, context: Context) -> GcnModel:
    return GcnModel(network.architecture, weights_of(network), context)


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=str)
@pytest.mark.parametrize("context", [Context((12, 3), 3), Context((9, 6), 2, include_pivot=True)])
def test_equals_the_torch_network(faces, architecture, context):
    network = random_network(architecture)
    graph = knn_graph(faces.embeddings, 12)
    links = score_links(faces.embeddings, graph, model_of(network, context))
    subgraphs = build_subgraphs(graph.indices, np.arange(graph.n_items), context)
    with torch.no_grad():
        batch = Batch.from_subgraphs(subgraphs)
        logits = network(torch.from_numpy(UnitRows(faces.embeddings)[:]), batch)
    wanted = logits.softmax(dim=1)[:, 1].numpy().reshape(links.likelihood.shape)
    copies = graph.similarities[:, : wanted.shape[1]] == 1.0
    assert wanted.std() > 0.02
    np.testing.assert_allclose(links.likelihood[~copies], wanted[~copies], atol=1e-5)


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=str)
def test_a_device_of_torchs_gives_the_same(faces, architecture, monkeypatch):
    monkeypatch.setattr("facelink.links.gcn_torch.PIVOTS", 13)
    model = model_of(random_network(architecture), Context((12, 3), 3))
    graph = knn_graph(faces.embeddings, 12)
    wanted = score_links(faces.embeddings, graph, model).likelihood
    found = score_links(faces.embeddings, graph, model, device="cpu").likelihood
    np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize("device", ["cuda:99", "abacus"])
def test_a_device_that_is_not_there_is_refused(faces, device):
    model = model_of(random_network(ARCHITECTURES[0]), Context((12, 3), 3))
    with pytest.raises(InputError, match=f"device should be .*got '{device}'"):
        score_links(faces.embeddings, knn_graph(faces.embeddings, 12), model, device=device)


def test_the_universal_model_has_no_device(faces):
    with pytest.raises(InputError, match="'universal' runs on the CPU alone"):
        score_links(faces.embeddings, knn_graph(faces.embeddings, 12), "universal", device="cpu")


@pytest.mark.parametrize("architecture", ARCHITECTURES[3:5], ids=str)
def test_the_result_may_be_a_memory_map(faces, architecture, tmp_path, monkeypatch):
    """And so may the products of the first layer, and the embeddings."""
    model = model_of(random_network(architecture), Context((12, 3), 3))
    graph = knn_graph(faces.embeddings, 12)
    wanted = score_links(faces.embeddings, graph, model).likelihood
    np.save(tmp_path / "x.npy", faces.embeddings)
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    monkeypatch.setattr("facelink.scratch.IN_MEMORY_BYTES", 0)
    monkeypatch.setattr("facelink.embeddings.IN_MEMORY_BYTES", 0)
    out = np.lib.format.open_memmap(tmp_path / "out.npy", "w+", np.float32, wanted.shape)
    scorer = GcnScorer(UnitRows(x), graph, model, model.context)
    assert isinstance(scorer.per_item, np.memmap)
    links = score_links(x, graph, model, out=out)
    assert links.likelihood is out
    out.flush()
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), wanted)
    with pytest.raises(InputError, match=r"out should be a float32 array of shape \(\d+, 12\)"):
        score_links(x, graph, model, out=out[:-1])
    with pytest.raises(InputError, match="Give out or run, not both"):
        score_links(x, graph, model, out=out, run=Run())


def test_a_full_disk_is_said_to_be_full(monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("facelink.scratch.IN_MEMORY_BYTES", 0)
    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(FileError, match=r"temporary file of .* No space left.*TMPDIR"):
        scratch_array((10, 10))


def test_pivots_come_in_an_order_that_has_each_once(faces):
    graph = knn_graph(faces.embeddings, 12)
    order = near_one_another(graph.indices)
    assert sorted(order) == list(range(graph.n_items))
    place = np.argsort(order)
    near = np.abs(place[graph.indices[:, 0]] - place)
    assert np.median(near) < graph.n_items / 8  # a third of them apart, in no order


def test_some_pivots_alone(faces):
    graph = knn_graph(faces.embeddings, 12)
    model = model_of(random_network(ARCHITECTURES[0]), Context((12, 3), 3))
    scorer = GcnScorer(UnitRows(faces.embeddings), graph, model, model.context)
    everyone = np.full((graph.n_items, 12), np.nan, np.float32)
    scorer.score_all(Run(), everyone)
    some = np.full_like(everyone, np.nan)
    scorer.score_all(Run(), some, pivots=np.array([3, 50, 7]))
    asked = np.isin(np.arange(graph.n_items), [3, 7, 50])
    np.testing.assert_allclose(some[asked], everyone[asked], atol=1e-6)
    assert np.isnan(some[~asked]).all()


@pytest.mark.parametrize("architecture", ARCHITECTURES[:5], ids=str)
def test_nodes_without_neighbours_are_harmless(architecture):
    # With u = 1 and everyone listing item 0 first, the others have no edge around pivot 0.
    x = np.random.default_rng(0).normal(size=(6, 32))
    x[0] = x.sum(axis=0)
    neighbors = np.array([[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2], [0, 1, 2], [0, 1, 2]])
    similarities = np.take_along_axis(UnitRows(x)[:] @ UnitRows(x)[:].T, neighbors, axis=1)
    graph = KnnGraph(neighbors.astype(np.int32), similarities)
    context = Context((3,), 1)
    subgraphs = build_subgraphs(graph.indices, np.arange(6), context)
    assert (subgraphs.degrees == 0).any()
    network = random_network(architecture)
    links = score_links(x, graph, model_of(network, context))
    with torch.no_grad():
        logits = network(torch.from_numpy(UnitRows(x)[:]), Batch.from_subgraphs(subgraphs))
    assert torch.isfinite(logits).all()
    np.testing.assert_allclose(
        links.likelihood.ravel(), logits.softmax(dim=1)[:, 1].numpy(), atol=1e-5
    )


def test_the_result_does_not_depend_on_batches_or_threads(faces, monkeypatch):
    graph = knn_graph(faces.embeddings, 12)
    model = model_of(random_network(ARCHITECTURES[3]), Context((12, 3), 3))
    wanted = score_links(faces.embeddings, graph, model, n_threads=1).likelihood
    monkeypatch.setattr("facelink.links.gcn.PIVOTS", 5)
    found = score_links(faces.embeddings, graph, model, n_threads=3).likelihood
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_permuting_the_items_permutes_the_links():
    x = np.random.default_rng(1).normal(size=(60, 32))
    order = np.random.default_rng(2).permutation(60)
    model = model_of(random_network(ARCHITECTURES[0]), Context((8, 3), 3))
    links = score_links(x, knn_graph(x, 8), model)
    permuted = score_links(x[order], knn_graph(x[order], 8), model)
    np.testing.assert_allclose(permuted.likelihood, links.likelihood[order], atol=1e-5)


def test_a_stored_copy_is_no_other_person(faces):
    graph = knn_graph(faces.embeddings, 12)
    links = score_links(
        faces.embeddings, graph, model_of(random_network(ARCHITECTURES[0]), Context((12, 3), 3))
    )
    copies = graph.similarities == 1.0
    assert copies.sum() >= 6  # three pairs, seen from both sides
    assert (links.likelihood[copies] == 1.0).all()
    assert (links.likelihood[~copies] < 1.0).all()


def test_a_graph_of_other_items_is_refused(faces):
    model = model_of(random_network(ARCHITECTURES[0]), Context((12, 3), 3))
    with pytest.raises(InputError, match="graph is of 10 items, the embeddings are of"):
        score_links(faces.embeddings, knn_graph(faces.embeddings[:10], 5), model)


def test_another_dimension_is_refused_with_what_to_do(faces):
    model = model_of(random_network(ARCHITECTURES[0]), Context((12, 3), 3))
    x = faces.embeddings[:, :16]
    with pytest.raises(ModelError, match=r"32 dimensions, got 16\.\n.*facelink train"):
        score_links(x, knn_graph(x, 12), model)


def test_the_first_layers_product_is_per_item(faces):
    model = model_of(random_network(ARCHITECTURES[4]), Context((12, 3), 3))
    graph = knn_graph(faces.embeddings, 12)
    scorer = GcnScorer(UnitRows(faces.embeddings), graph, model, model.context)
    assert scorer.per_item.shape == (graph.n_items, 2 * 24)


def test_large_scores_of_attention_do_not_overflow(faces):
    network = random_network(ARCHITECTURES[3])
    with torch.no_grad():
        for convolution in network.convolutions:
            convolution.attention.score *= 1000
    context = Context((12, 3), 3)
    graph = knn_graph(faces.embeddings, 12)
    links = score_links(faces.embeddings, graph, model_of(network, context))
    subgraphs = build_subgraphs(graph.indices, np.arange(graph.n_items), context)
    with torch.no_grad():
        features = torch.from_numpy(UnitRows(faces.embeddings)[:])
        wanted = network(features, Batch.from_subgraphs(subgraphs)).softmax(dim=1)[:, 1].numpy()
    assert np.isfinite(links.likelihood).all()
    distinct = (graph.similarities < 1.0).ravel()
    np.testing.assert_allclose(links.likelihood.ravel()[distinct], wanted[distinct], atol=1e-3)


def test_a_device_without_torch_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "facelink.links.gcn_torch", raising=False)
    with pytest.raises(MissingExtraError, match=r"needs torch: pip install 'facelink\[train\]'"):
        cluster(np.eye(3, 128), model="mobileface-128", device="cpu")
