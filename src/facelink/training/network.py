"""The paper's network in torch (section 3.3): from subgraphs to link likelihoods.

    BatchNorm -> graph convolutions -> Linear -> PReLU -> Linear -> two logits

A batch is several subgraphs laid side by side as one graph that is not
connected: no padding, and the aggregation matrix G stays sparse.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from facelink.compiled import compiled, over_rows
from facelink.links.gcn import convolve
from facelink.links.model import ATTENTION_WIDTH, Architecture
from facelink.subgraphs import Subgraphs


@dataclass(frozen=True)
class Batch:
    """Subgraphs as tensors; see `Subgraphs` for how nodes and edges are numbered."""

    nodes: Tensor  # (nodes,) the item that each node is
    pivots: Tensor  # (nodes,) the pivot of each node's subgraph
    link_nodes: Tensor  # (links,) the nodes whose link to the pivot is predicted
    edge_starts: Tensor  # (nodes + 1,)
    targets: Tensor  # (edges,) the node at which an edge arrives, ascending
    sources: Tensor  # (edges,) the node whose features travel along it
    reverse: Tensor  # (edges,) which edge is the same one in the other direction

    @classmethod
    def from_subgraphs(cls, subgraphs: Subgraphs) -> Batch:
        degrees = torch.from_numpy(subgraphs.degrees)
        return cls(
            torch.from_numpy(subgraphs.nodes).long(),
            torch.from_numpy(subgraphs.pivot_of_node).long(),
            torch.from_numpy(subgraphs.link_nodes).flatten(),
            torch.from_numpy(subgraphs.edge_starts),
            torch.repeat_interleave(torch.arange(len(degrees)), degrees),
            torch.from_numpy(subgraphs.edges).long(),
            torch.from_numpy(_reverse_edges(subgraphs.edge_starts, subgraphs.edges)),
        )

    @property
    def n_nodes(self) -> int:
        return len(self.nodes)


class LinkNetwork(nn.Module):
    """Graph convolutions over instance pivot subgraphs, classifying the 1-hop nodes.

    Parameters
    ----------
    architecture : Architecture
        Input dimension, aggregator, widths of the layers.
    """

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.architecture = architecture
        dimensions = [architecture.n_features, *architecture.widths]
        self.normalize = nn.BatchNorm1d(architecture.n_features, affine=False)
        self.convolutions = nn.ModuleList(
            GraphConvolution(d_in, d_out, attention=architecture.aggregator == "attention")
            for d_in, d_out in pairwise(dimensions)
        )
        self.classifier = nn.Sequential(
            nn.Linear(dimensions[-1], dimensions[-1]),
            nn.PReLU(dimensions[-1]),
            nn.Linear(dimensions[-1], 2),
        )

    def forward(self, embeddings: Tensor, batch: Batch) -> Tensor:  # (n, d) -> (links, 2)
        return self.classify(self.normalize(self.features(embeddings, batch)), embeddings, batch)

    def features(self, embeddings: Tensor, batch: Batch) -> Tensor:
        """What each node looks like from its pivot: (nodes, features)."""
        nodes, pivots = embeddings[batch.nodes], embeddings[batch.pivots]
        x = nodes - pivots  # eq. 1: (nodes, d)
        if self.architecture.similarity:
            x = torch.cat([x, torch.linalg.vecdot(nodes, pivots)[:, None]], dim=1)  # (nodes, d + 1)
        return x

    def classify(self, x: Tensor, embeddings: Tensor, batch: Batch) -> Tensor:
        """From normalised features to the logits of the 1-hop nodes: (links, 2)."""
        weights = self.fixed_weights(embeddings, batch)
        last = len(self.convolutions) - 1
        for depth, convolution in enumerate(self.convolutions):
            rows = batch.link_nodes if depth == last else None
            x = convolution(x, batch, weights, rows)
        return self.classifier(x)

    def fixed_weights(self, embeddings: Tensor, batch: Batch) -> Tensor | None:
        """The non-zero entries of G (edges,) where they do not depend on the layer."""
        if self.architecture.aggregator == "attention":
            return None
        if self.architecture.aggregator == "weighted":
            cosines = edge_products(embeddings[batch.nodes], embeddings[batch.nodes], batch)
            return softmax_over_neighbors(cosines, batch)
        degrees = batch.edge_starts.diff().to(embeddings.dtype)  # (nodes,)
        if self.architecture.symmetric:  # Λ^-½ A Λ^-½, as the paper writes it
            return (degrees[batch.targets] * degrees[batch.sources]).rsqrt()
        return 1 / degrees[batch.targets]  # Λ^-1 A: rows sum to one, as the paper says


class GraphConvolution(nn.Module):
    r"""Eq. 2 of the paper, :math:`Y = \mathrm{ReLU}([X \| GX] W + b)`.

    :math:`W` is kept as its two halves: :math:`GX W_2` is computed as
    :math:`G(X W_2)`, so that X is multiplied with both at once; except in the
    first layer, where :math:`(GX) W_2` needs no way back through G. A node
    without neighbours has an empty row in G: it aggregates to zero.

    Parameters
    ----------
    d_in, d_out : int
        Widths of X and Y.
    attention : bool
        Whether G is computed here, from X, by `Attention`.
    """

    def __init__(self, d_in: int, d_out: int, *, attention: bool = False) -> None:
        super().__init__()
        self.own = nn.Parameter(torch.empty(d_in, d_out))
        self.aggregated = nn.Parameter(torch.empty(d_in, d_out))
        self.bias = nn.Parameter(torch.zeros(d_out))
        self.attention = Attention(d_in) if attention else None
        whole = torch.empty(2 * d_in, d_out)
        nn.init.xavier_uniform_(whole)
        with torch.no_grad():
            self.own.copy_(whole[:d_in])
            self.aggregated.copy_(whole[d_in:])

    def forward(
        self, x: Tensor, batch: Batch, weights: Tensor | None, rows: Tensor | None
    ) -> Tensor:  # (nodes, d_in) -> (nodes or rows, d_out)
        if self.attention is not None:
            weights = self.attention(x, batch)
        if rows is not None or not x.requires_grad:
            gathered = Aggregate.apply(x, weights, batch)
            if rows is not None:  # of the last layer only the 1-hop nodes are needed
                x, gathered = x[rows], gathered[rows]
            out = torch.addmm(self.bias, x, self.own)
            return torch.relu_(torch.addmm(out, gathered, self.aggregated))
        both = x @ torch.cat([self.own, self.aggregated], dim=1)  # (nodes, 2 d_out)
        return Convolve.apply(both, weights, self.bias, batch)


class Attention(nn.Module):
    r"""The entries of G learnt from pairs of node features.

    :math:`g_{qr} = \mathrm{softmax}_r(v^\top \mathrm{ReLU}(U [x_q \| x_r] + c))`,
    over the neighbours r of q.
    """

    def __init__(self, dimension: int, hidden: int = ATTENTION_WIDTH) -> None:
        super().__init__()
        self.target = nn.Linear(dimension, hidden)
        self.source = nn.Linear(dimension, hidden, bias=False)
        self.score = nn.Parameter(torch.randn(hidden) / hidden**0.5)

    def forward(self, x: Tensor, batch: Batch) -> Tensor:  # (nodes, d) -> (edges,)
        pairs = self.target(x)[batch.targets] + self.source(x)[batch.sources]  # (edges, hidden)
        return softmax_over_neighbors(torch.relu(pairs) @ self.score, batch)


class Aggregate(torch.autograd.Function):
    """The sparse product GX, with G given by its non-zero entries, one per edge.

    Written out because torch's own gradient with respect to a sparse matrix
    goes through a dense one.
    """

    @staticmethod
    def forward(ctx, x: Tensor, weights: Tensor, batch: Batch) -> Tensor:  # (nodes, d)
        ctx.save_for_backward(x, weights)
        ctx.batch = batch
        return sparse_product(weights, batch, x)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weights = ctx.saved_tensors
        to_weights = None
        if ctx.needs_input_grad[1]:
            to_weights = edge_products(gradient, x, ctx.batch)
        to_x = None
        if ctx.needs_input_grad[0]:
            to_x = sparse_product(weights[ctx.batch.reverse], ctx.batch, gradient)
        return to_x, to_weights, None


class Convolve(torch.autograd.Function):
    """ReLU(A + G B + b), given A and B side by side: one pass over the edges each way."""

    @staticmethod
    def forward(ctx, both: Tensor, weights: Tensor, bias: Tensor, batch: Batch) -> Tensor:
        out = both.new_empty(batch.n_nodes, len(bias))  # (nodes, d)
        edges = (batch.edge_starts, batch.sources, weights)
        over_nodes(convolve, *edges, both.contiguous(), bias, out)
        ctx.save_for_backward(both, weights, out)
        ctx.batch = batch
        return out

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor | None, Tensor, None]:
        both, weights, out = ctx.saved_tensors
        batch, width = ctx.batch, out.shape[1]
        to_both = torch.empty_like(both)
        over_nodes(_pass_where_active, gradient.contiguous(), out, to_both)
        reverse = (batch.edge_starts, batch.sources, weights[batch.reverse])
        over_nodes(_add_neighbors, *reverse, to_both, to_both, width)
        to_own = to_both[:, :width]
        to_weights = None
        if ctx.needs_input_grad[1]:
            to_weights = edge_products(to_own, both[:, width:], batch)
        return to_both, to_weights, to_own.sum(dim=0), None


def sparse_product(weights: Tensor, batch: Batch, x: Tensor) -> Tensor:
    """GX, with the entry of G for each edge in ``weights`` (edges,): (nodes, d) -> (nodes, d)."""
    out = x.new_zeros(x.shape)
    over_nodes(_add_neighbors, batch.edge_starts, batch.sources, weights, x.contiguous(), out, 0)
    return out


def over_nodes(kernel: Callable[..., None], *arguments: Tensor | int) -> None:
    """Run a compiled kernel over all nodes, on all threads. The last tensor has a row for each."""
    arrays = [a.detach().numpy() if isinstance(a, Tensor) else a for a in arguments]
    n_nodes = next(len(a) for a in reversed(arguments) if isinstance(a, Tensor))
    over_rows(lambda first, stop: kernel(first, stop, *arrays), n_nodes)


# These loops run over slices of rows, which the compiler can vectorise.


@compiled
def _pass_where_active(first, stop, gradient, out, to_both):
    """The gradient where the ReLU let something through, and zero in the columns beside it."""
    width = out.shape[1]
    zero = out.dtype.type(0)
    for q in range(first, stop):
        own, beside = to_both[q, :width], to_both[q, width : 2 * width]
        incoming, outgoing = gradient[q], out[q]
        for c in range(width):
            own[c] = incoming[c] if outgoing[c] > zero else zero
            beside[c] = zero


@compiled
def _add_neighbors(first, stop, edge_starts, sources, weights, x, out, column):
    """Add GX to the columns of ``out`` from ``column`` on, for the first columns of x."""
    for q in range(first, stop):
        row = out[q, column:]
        for e in range(edge_starts[q], edge_starts[q + 1]):
            neighbor, weight = x[sources[e]], weights[e]
            for c in range(len(row)):
                row[c] += weight * neighbor[c]


@compiled
def _reverse_edges(edge_starts, edges):
    """Which edge is the same one in the other direction; edges are sorted, and there both ways."""
    reverse = np.empty(len(edges), np.int64)
    reached = edge_starts[:-1].copy()
    for q in range(len(edge_starts) - 1):
        for e in range(edge_starts[q], edge_starts[q + 1]):
            reverse[reached[edges[e]]] = e
            reached[edges[e]] += 1
    return reverse


def edge_products(a: Tensor, b: Tensor, batch: Batch, step: int = 1 << 14) -> Tensor:
    """The dot product of a at each edge's target with b at its source: (edges,)."""
    parts = zip(batch.targets.split(step), batch.sources.split(step), strict=True)
    return torch.cat([torch.linalg.vecdot(a[q], b[r]) for q, r in parts])


def softmax_over_neighbors(scores: Tensor, batch: Batch) -> Tensor:  # (edges,) -> (edges,)
    """Softmax over the edges that arrive at the same node."""
    lowest = scores.new_full((batch.n_nodes,), -torch.inf)
    highest = lowest.scatter_reduce(0, batch.targets, scores.detach(), "amax")
    exponentials = (scores - highest[batch.targets]).exp()
    totals = scores.new_zeros(batch.n_nodes).index_add(0, batch.targets, exponentials)
    return exponentials / totals[batch.targets]


def weights_of(network: LinkNetwork) -> dict[str, NDArray[np.float32]]:
    """The network's weights as arrays, under the names of `Architecture.weight_shapes`.

    Torch keeps the matrix of a linear layer transposed.
    """
    state = network.state_dict()
    variance = state["normalize.running_var"] + network.normalize.eps
    tensors = {
        "normalize.mean": state["normalize.running_mean"],
        "normalize.scale": variance.rsqrt(),
        "classifier.hidden": state["classifier.0.weight"].T,
        "classifier.hidden_bias": state["classifier.0.bias"],
        "classifier.slope": state["classifier.1.weight"],
        "classifier.output": state["classifier.2.weight"].T,
        "classifier.output_bias": state["classifier.2.bias"],
    }
    for name, tensor in state.items():
        if name.startswith("convolutions."):
            if name.endswith(".attention.target.bias"):
                name = name.removesuffix("target.bias") + "bias"
            elif name.endswith(".weight"):
                name, tensor = name.removesuffix(".weight"), tensor.T
            tensors[name] = tensor
    # Copies, because training goes on in the tensors' own memory.
    return {
        name: np.array(tensor.detach().cpu().numpy(), np.float32, order="C")
        for name, tensor in tensors.items()
    }
