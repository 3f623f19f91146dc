"""The torch network against the paper's formulae on dense matrices."""

from __future__ import annotations

import numpy as np
import pytest

from conftest import random_network
from facelink import knn_graph
from facelink.links.model import Architecture
from facelink.subgraphs import Context, build_subgraphs

torch = pytest.importorskip("torch")
from facelink.training.network import Batch, LinkNetwork, weights_of  # noqa: E402

ARCHITECTURES = [
    Architecture(32, "mean", (10, 12, 6, 6)),
    Architecture(32, "mean", (10, 12, 6, 6), symmetric=True),
    Architecture(32, "weighted", (10, 12, 6, 6)),
    Architecture(32, "attention", (10, 12, 6, 6)),
    Architecture(32, "mean", (10, 40, 6), similarity=True),
]


def relu(x):
    return np.maximum(x, 0)


def softmax_rows(scores, adjacency):
    """Softmax over the neighbours; a row without any is zero."""
    exponentials = np.where(adjacency, np.exp(scores - scores.max()), 0)
    totals = exponentials.sum(axis=1, keepdims=True)
    return np.divide(exponentials, totals, out=np.zeros_like(exponentials), where=totals > 0)


def aggregation_matrix(architecture, x, embeddings, adjacency, w, prefix):
    """G of section 3.3, for one layer with input x."""
    degrees = np.maximum(adjacency.sum(axis=1), 1)
    if architecture.aggregator == "weighted":
        return softmax_rows(embeddings @ embeddings.T, adjacency)
    if architecture.aggregator == "attention":
        target = x @ w[prefix + "attention.target"] + w[prefix + "attention.bias"]
        source = x @ w[prefix + "attention.source"]
        hidden = relu(target[:, None] + source[None])  # (q, r, hidden)
        return softmax_rows(hidden @ w[prefix + "attention.score"], adjacency)
    if architecture.symmetric:
        return adjacency / np.sqrt(degrees[:, None] * degrees[None])
    return adjacency / degrees[:, None]


def obvious_logits(architecture, weights, features, pivot, nodes, adjacency, n_links):
    """One subgraph, dense, layer by layer."""
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    embeddings = features[nodes]
    x = embeddings - features[pivot]
    if architecture.similarity:
        x = np.hstack([x, (embeddings @ features[pivot])[:, None]])
    x = (x - w["normalize.mean"]) * w["normalize.scale"]
    for depth in range(len(architecture.widths)):
        prefix = f"convolutions.{depth}."
        g = aggregation_matrix(architecture, x, embeddings, adjacency, w, prefix)
        both = np.hstack([x, g @ x])  # eq. 2
        matrix = np.vstack([w[prefix + "own"], w[prefix + "aggregated"]])
        x = relu(both @ matrix + w[prefix + "bias"])
    x = x[:n_links] @ w["classifier.hidden"] + w["classifier.hidden_bias"]
    x = np.where(x > 0, x, x * w["classifier.slope"])
    return x @ w["classifier.output"] + w["classifier.output_bias"]


@pytest.mark.parametrize("context", [Context((9, 4), 2), Context((9,), 1)])
@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=str)
def test_equals_the_papers_formulae(faces, architecture, context):
    network = random_network(architecture)
    features = faces.embeddings.astype(np.float64)
    neighbors = knn_graph(faces.embeddings, 10).indices
    pivots = np.array([3, 50, 120])
    built = build_subgraphs(neighbors, pivots, context)
    with torch.no_grad():
        logits = network(torch.from_numpy(faces.embeddings), Batch.from_subgraphs(built)).numpy()
    for s, pivot in enumerate(pivots):
        start, stop = built.node_starts[s : s + 2]
        adjacency = np.zeros((stop - start, stop - start), bool)
        for q in range(start, stop):
            around = built.edges[built.edge_starts[q] : built.edge_starts[q + 1]]
            adjacency[q - start, around - start] = True
        wanted = obvious_logits(
            architecture, weights_of(network), features, pivot, built.nodes[start:stop],
            adjacency, built.n_links,
        )  # fmt: skip
        rows = slice(s * built.n_links, (s + 1) * built.n_links)
        np.testing.assert_allclose(logits[rows], wanted, atol=2e-5)
    if context.u == 1:
        assert (built.degrees == 0).any()  # the case that breaks a mean is among them


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=str)
def test_gradients_are_right(faces, architecture):
    """The hand-written gradient of the sparse product against finite differences."""
    torch.manual_seed(0)
    network = LinkNetwork(architecture).double().eval()
    built = build_subgraphs(
        knn_graph(faces.embeddings, 6).indices, np.array([0, 9]), Context((5, 2), 2)
    )
    batch = Batch.from_subgraphs(built)
    features = torch.from_numpy(faces.embeddings).double()
    used = torch.unique(torch.cat([batch.nodes, batch.pivots]))

    def output(own, aggregated, score):
        layer = network.convolutions[1]
        parameters = {"convolutions.1.own": own, "convolutions.1.aggregated": aggregated}
        if layer.attention is not None:
            parameters["convolutions.1.attention.score"] = score
        return torch.func.functional_call(network, parameters, (features, batch))

    layer = network.convolutions[1]
    score = layer.attention.score if layer.attention is not None else torch.zeros(1)
    inputs = [
        t.detach().clone().double().requires_grad_() for t in (layer.own, layer.aggregated, score)
    ]
    assert len(used) > 5
    torch.autograd.gradcheck(output, inputs, eps=1e-6, atol=1e-6)


def test_the_first_layers_parameters_get_a_gradient(faces):
    built = build_subgraphs(
        knn_graph(faces.embeddings, 6).indices, np.arange(8), Context((5, 2), 2)
    )
    for architecture in ARCHITECTURES:
        network = LinkNetwork(architecture)
        logits = network(torch.from_numpy(faces.embeddings), Batch.from_subgraphs(built))
        logits.square().sum().backward()
        for name, parameter in network.named_parameters():
            assert parameter.grad is not None, name
            assert torch.isfinite(parameter.grad).all(), name


def test_exported_weights_do_not_change_with_the_network():
    network = LinkNetwork(ARCHITECTURES[0])
    before = weights_of(network)
    copies = {name: array.copy() for name, array in before.items()}
    with torch.no_grad():
        for tensor in (*network.parameters(), network.normalize.running_mean):
            tensor += 1
    for name, array in before.items():
        np.testing.assert_array_equal(array, copies[name])
