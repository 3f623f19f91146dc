"""The paper's network without torch: numpy for the products, numba for what is sparse.

The same likelihoods as `facelink.training.network`, computed in another order:

- A convolution needs X W_own and G (X W_agg), so each layer is one product with
  the two halves of W side by side (and the attention's two projections beside
  them), followed by one pass over the edges.
- The features of the first layer are differences, and (x_q - x_p) W is
  x_q W - x_p W: its product is computed once per item, and the first layer of a
  subgraph only adds up what its items have. The normalisation of the features
  is folded into W.
- The last layer is computed for the 1-hop nodes alone.
- Pivots are taken in an order in which one subgraph's items are in the cache when
  the next one needs them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from facelink.compiled import blocks, compiled, in_threads
from facelink.embeddings import UnitRows
from facelink.links.model import GcnModel
from facelink.neighbors import KnnGraph
from facelink.neighbors.order import near_one_another
from facelink.progress import Progress, silent
from facelink.runs import Run
from facelink.scratch import scratch_array
from facelink.subgraphs import Context, Subgraphs, build_subgraphs

PIVOTS = 16  # per batch: what they need stays in the cache
FIXED_ROWS = 8192

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Folded:
    """A model's weights as a scorer uses them.

    The features of a node are (x_q - x_p, similarity to p), normalised as (f - mean) scale.
    So the first layer's product with them is one product per item, taken at the node and
    at the pivot, one row times the similarity, and a constant.

    Attributes
    ----------
    per_item : (dimension, m) array
        What the first layer multiplies an item with: W_own, W_agg and, for
        attention, its two projections, side by side.
    per_similarity : (m,) array
    constant : (m,) array
    matrices : tuple of (d_in, m) arrays
        The same of the layers after it, but for the last, which is computed for
        the 1-hop nodes alone and has only the projections here.
    """

    per_item: Floats
    per_similarity: Floats
    constant: Floats
    matrices: tuple[Floats, ...]

    @classmethod
    def of(cls, model: GcnModel) -> Folded:
        weights, dimension = model.weights, model.architecture.dimension
        last = len(model.architecture.widths) - 1
        projections = ["attention.target", "attention.source"]
        if model.architecture.aggregator != "attention":
            projections = []

        def side_by_side(depth: int) -> Floats:
            prefix = f"convolutions.{depth}."
            names = projections
            if depth < last or depth == 0:
                names = ["own", "aggregated", *projections]
            nothing = np.empty((len(weights[prefix + "own"]), 0), np.float32)
            return np.hstack([nothing, *(weights[prefix + name] for name in names)])

        scaled = weights["normalize.scale"][:, None] * side_by_side(0)  # (features, m)
        constant = -(weights["normalize.mean"] @ scaled)
        similar = scaled[dimension] if model.architecture.similarity else np.zeros_like(constant)
        matrices = tuple(side_by_side(depth) for depth in range(1, last + 1))
        return cls(np.ascontiguousarray(scaled[:dimension]), similar, constant, matrices)


class GcnScorer:
    """A model made ready for one collection.

    Parameters
    ----------
    rows : UnitRows
        The embeddings.
    graph : KnnGraph
        Of these embeddings.
    model : GcnModel
    context : Context
        The subgraphs to score in.
    n_threads : int, optional
        All cores of the process by default.
    """

    def __init__(
        self,
        rows: UnitRows,
        graph: KnnGraph,
        model: GcnModel,
        context: Context,
        *,
        n_threads: int | None = None,
    ) -> None:
        self.n_threads = n_threads
        self.rows = rows
        self.graph = graph
        self.context = context
        self.architecture = model.architecture
        self.weights = model.weights
        self.attention = model.architecture.aggregator == "attention"
        self.last = len(model.architecture.widths) - 1
        self.folded = Folded.of(model)

    @cached_property
    def per_item(self) -> Floats:
        """(n, m) the first layer's product of each item."""
        products = scratch_array((len(self.rows), len(self.folded.constant)))

        def multiply(block: slice) -> None:
            products[block] = self.rows[block] @ self.folded.per_item

        for _ in in_threads(multiply, blocks(len(products), FIXED_ROWS), n_threads=self.n_threads):
            pass
        return products

    def score_all(
        self,
        run: Run,
        out: Floats | None = None,
        *,
        pivots: NDArray[np.integer] | None = None,
        progress: Progress = silent,
    ) -> Floats:
        """The likelihoods of items' links (n, k₁), of all or of some pivots."""
        shape = (len(self.rows), self.context.hops[0])
        likelihood = run.array("links", shape, np.float32) if out is None else out
        if pivots is None and run.is_finished("links", shape[0]):
            return likelihood
        order = near_one_another(self.graph.indices)
        if pivots is not None:
            order = order[np.isin(order, pivots)]
        _ = self.per_item  # before the threads need it

        def score_batch(batch: NDArray[np.integer]) -> None:
            subgraphs = build_subgraphs(self.graph.indices, batch, self.context)
            likelihood[batch] = self.score(subgraphs)

        run.work(
            "links", order, score_batch, size=PIVOTS, n_threads=self.n_threads,
            progress=progress,
        )  # fmt: skip
        return likelihood

    def score(self, subgraphs: Subgraphs) -> Floats:
        """The likelihoods of the links of some subgraphs: (batch, n_links)."""
        weights = self.weights
        edge_weights = self._fixed_edge_weights(subgraphs)  # (edges,)
        link_nodes = subgraphs.link_nodes.ravel()  # (links,)
        x = self._first_layer(subgraphs, edge_weights)
        if self.last == 0:
            x = x[link_nodes]
        for depth, width in enumerate(self.architecture.widths[1:], start=1):
            prefix = f"convolutions.{depth}."
            projected = x @ self.folded.matrices[depth - 1]
            if self.attention:
                edge_weights = self._attention(prefix, projected, subgraphs)
            bias = weights[prefix + "bias"]
            if depth < self.last:
                x = np.empty((len(subgraphs.nodes), width), np.float32)
                edges = (subgraphs.edge_starts, subgraphs.edges, edge_weights)
                convolve(0, len(x), *edges, projected, bias, x)
            else:
                gathered = np.empty((len(link_nodes), x.shape[1]), np.float32)
                _aggregate(
                    x, subgraphs.edge_starts, subgraphs.edges, edge_weights, link_nodes, gathered
                )
                x = x[link_nodes] @ weights[prefix + "own"]
                x += gathered @ weights[prefix + "aggregated"]
                x += bias
                np.maximum(x, 0, out=x)
        x = x @ weights["classifier.hidden"] + weights["classifier.hidden_bias"]
        x = np.where(x > 0, x, x * weights["classifier.slope"])
        logits = x @ weights["classifier.output"] + weights["classifier.output_bias"]  # (links, 2)
        odds = np.exp(np.clip(logits[:, 0] - logits[:, 1], -80, 80))  # against the link
        return (1 / (1 + odds)).reshape(len(subgraphs), subgraphs.n_links)

    def _first_layer(self, subgraphs: Subgraphs, edge_weights: Floats) -> Floats:
        """The first convolution of every node: (nodes, d₁)."""
        similarities = self._similarities(subgraphs)
        width = self.architecture.widths[0]
        if self.attention:
            projected = np.empty(
                (len(subgraphs.nodes), self.per_item.shape[1] - 2 * width), np.float32
            )
            _gather(
                self.per_item, 2 * width, subgraphs.pivots, subgraphs.nodes,
                subgraphs.node_starts, similarities, self.folded.per_similarity,
                self.folded.constant, projected,
            )  # fmt: skip
            edge_weights = self._attention("convolutions.0.", projected, subgraphs)
        out = np.empty((len(subgraphs.nodes), width), np.float32)
        _convolve_items(
            self.per_item, subgraphs.pivots, subgraphs.nodes, subgraphs.node_starts,
            subgraphs.edge_starts, subgraphs.edges, edge_weights, similarities,
            self.folded.per_similarity, self.folded.constant,
            self.weights["convolutions.0.bias"], out,
        )  # fmt: skip
        return out

    def _similarities(self, subgraphs: Subgraphs) -> Floats:
        """Of each node to its pivot, where the model wants to know: (nodes,)."""
        out = np.zeros(len(subgraphs.nodes), np.float32)
        if self.architecture.similarity:
            features = self.rows.array
            nodes: NDArray[np.integer] = subgraphs.nodes
            pivots = subgraphs.pivots
            if features is None:  # not in memory: each item is read once
                items, places = np.unique(np.concatenate([nodes, pivots]), return_inverse=True)
                features, nodes, pivots = self.rows[items], *np.split(places, [len(nodes)])
            known = self.graph.similarities[:, : subgraphs.n_links]
            starts = subgraphs.node_starts
            _to_pivots(features, nodes, pivots, starts, known, subgraphs.pivots, out)
        return out

    def _fixed_edge_weights(self, subgraphs: Subgraphs) -> Floats:
        """The entries of G (edges,) where they do not depend on the layer."""
        out = np.empty(len(subgraphs.edges), np.float32)
        if self.architecture.aggregator == "mean":
            symmetric = self.architecture.symmetric
            _mean_weights(subgraphs.edge_starts, subgraphs.edges, symmetric, out)
        elif self.architecture.aggregator == "weighted":
            for s in range(len(subgraphs)):
                first, stop = subgraphs.node_starts[s : s + 2]
                features = self.rows[subgraphs.nodes[first:stop]]
                _cosines(features, first, stop, subgraphs.edge_starts, subgraphs.edges, out)
            _softmax_rows(subgraphs.edge_starts, out)
        return out

    def _attention(self, prefix: str, projected: Floats, subgraphs: Subgraphs) -> Floats:
        """The entries of G (edges,) from the two projections, the last columns of ``projected``."""
        score = self.weights[prefix + "attention.score"]
        bias = self.weights[prefix + "attention.bias"]
        pairs = projected[:, -2 * len(score) :]
        out = np.empty(len(subgraphs.edges), np.float32)
        _pair_scores(pairs, bias, score, subgraphs.edge_starts, subgraphs.edges, out)
        _softmax_rows(subgraphs.edge_starts, out)
        return out


@compiled
def _to_pivots(features, nodes, pivots, node_starts, known, items, out):
    """The similarity of each node to its pivot; those of its first nodes are known."""
    n_known = known.shape[1]
    for s in range(len(pivots)):
        at_pivot, first = features[pivots[s]], node_starts[s] + n_known
        out[node_starts[s] : first] = known[items[s]]
        for q in range(first, node_starts[s + 1]):
            out[q] = np.dot(features[nodes[q]], at_pivot)


@compiled
def _gather(
    per_item, column, pivots, nodes, node_starts, similarities, per_similarity, constant, out
):
    """The columns of the first layer's product from ``column`` on, of every node."""
    for s in range(len(pivots)):
        at_pivot = per_item[pivots[s], column:]
        for q in range(node_starts[s], node_starts[s + 1]):
            at_node = per_item[nodes[q], column:]
            similarity, row = similarities[q], out[q]
            for c in range(len(row)):
                shift = similarity * per_similarity[column + c] + constant[column + c]
                row[c] = at_node[c] - at_pivot[c] + shift


@compiled
def _convolve_items(
    per_item, pivots, nodes, node_starts, edge_starts, edges, edge_weights, similarities,
    per_similarity, constant, bias, out,
):  # fmt: skip
    """The first layer from the products of the items, without those of all nodes at once."""
    width = len(bias)
    zero = out.dtype.type(0)
    own, far = constant[:width] + bias, constant[width : 2 * width].copy()
    own_similarity, far_similarity = per_similarity[:width], per_similarity[width : 2 * width]
    far_of = np.empty((np.diff(node_starts).max(), width), np.float32)  # one subgraph's X W_agg
    for s in range(len(pivots)):
        start, stop = node_starts[s], node_starts[s + 1]
        own_pivot, far_pivot = per_item[pivots[s], :width], per_item[pivots[s], width : 2 * width]
        own_fixed, far_fixed = own - own_pivot, far - far_pivot
        for q in range(start, stop):
            own_item, far_item = per_item[nodes[q], :width], per_item[nodes[q], width : 2 * width]
            similarity, row, far_row = similarities[q], out[q], far_of[q - start]
            for c in range(width):
                row[c] = own_item[c] + own_fixed[c] + similarity * own_similarity[c]
                far_row[c] = far_item[c] + far_fixed[c] + similarity * far_similarity[c]
        for q in range(start, stop):
            row = out[q]
            for e in range(edge_starts[q], edge_starts[q + 1]):
                neighbor, weight = far_of[edges[e] - start], edge_weights[e]
                for c in range(width):
                    row[c] += weight * neighbor[c]
            for c in range(width):
                row[c] = max(row[c], zero)


@compiled
def convolve(first, stop, edge_starts, edges, edge_weights, both, bias, out):
    """ReLU(X W_own + b + G (X W_agg)) of some nodes, the two products side by side in ``both``."""
    width = len(bias)
    zero = out.dtype.type(0)
    for q in range(first, stop):
        row, own = out[q], both[q, :width]
        for c in range(width):
            row[c] = own[c] + bias[c]
        for e in range(edge_starts[q], edge_starts[q + 1]):
            # A slice, because the compiler cannot vectorise both[r, width + c].
            neighbor, weight = both[edges[e], width : 2 * width], edge_weights[e]
            for c in range(width):
                row[c] += weight * neighbor[c]
        for c in range(width):
            row[c] = max(row[c], zero)


@compiled
def _aggregate(x, edge_starts, edges, edge_weights, rows, out):
    """Some rows of GX."""
    for i in range(len(rows)):
        row = out[i]
        row[:] = 0
        for e in range(edge_starts[rows[i]], edge_starts[rows[i] + 1]):
            other, weight = x[edges[e]], edge_weights[e]
            for c in range(len(row)):
                row[c] += weight * other[c]


@compiled
def _mean_weights(edge_starts, edges, symmetric, out):
    """One over the degree; where it is to be symmetric, over the root of those of both ends."""
    for q in range(len(edge_starts) - 1):
        first, stop = edge_starts[q], edge_starts[q + 1]
        for e in range(first, stop):
            far = stop - first
            if symmetric:
                far = edge_starts[edges[e] + 1] - edge_starts[edges[e]]
            out[e] = 1.0 / np.sqrt((stop - first) * far)


@compiled
def _cosines(features, first, stop, edge_starts, edges, out):
    """The similarity of the two nodes of each edge of one subgraph."""
    for q in range(first, stop):
        for e in range(edge_starts[q], edge_starts[q + 1]):
            total = 0.0
            for c in range(features.shape[1]):
                total += features[q - first, c] * features[edges[e] - first, c]
            out[e] = total


@compiled
def _pair_scores(pairs, bias, score, edge_starts, edges, out):
    """score . ReLU(target of q + source of r + bias), for each edge from r to q."""
    hidden = len(score)
    for q in range(len(edge_starts) - 1):
        for e in range(edge_starts[q], edge_starts[q + 1]):
            total = np.float32(0)
            for c in range(hidden):
                value = pairs[q, c] + pairs[edges[e], hidden + c] + bias[c]
                total += score[c] * max(value, np.float32(0))
            out[e] = total


@compiled
def _softmax_rows(edge_starts, values):
    """Softmax over the edges of each node, in place."""
    for q in range(len(edge_starts) - 1):
        start, stop = edge_starts[q], edge_starts[q + 1]
        if start == stop:
            continue
        highest = values[start:stop].max()
        total = 0.0
        for e in range(start, stop):
            values[e] = np.exp(values[e] - highest)
            total += values[e]
        for e in range(start, stop):
            values[e] /= total
