"""The scorer without torch gives the likelihoods of the torch network."""

from __future__ import annotations

import numpy as np
import pytest

from conftest import random_network
from facelink import Context, KnnGraph, knn_graph, score_links
from facelink.embeddings import UnitRows
from facelink.errors import InputError, ModelError
from facelink.links.gcn import GcnScorer
from facelink.links.model import Architecture, GcnModel
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


@pytest.mark.parametrize("architecture", ARCHITECTURES[:5], ids=str)
def test_nodes_without_neighbours_are_harmless(architecture):
    # With u = 1 and everyone listing item 0 first, the others have no edge around pivot 0.
    x = np.random.default_rng(0).normal(size=(6, 32))
    x[0] = x.sum(axis=0)
    neighbors = np.array([[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2], [0, 1, 2], [0, 1, 2]])
    graph = KnnGraph(neighbors.astype(np.int32), np.full((6, 3), 0.5, np.float32))
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
    scorer = GcnScorer(UnitRows(faces.embeddings), graph.indices, model, model.context)
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
