"""The paper's network without torch: numpy for the products, numba for what is sparse.

The same likelihoods as `facelink.training.network`, computed in another order:

- A convolution needs X W_own and G (X W_agg), so each layer is one product with
  the two halves of W side by side (and the attention's two projections beside
  them), followed by one pass over the edges.
- The features of the first layer are differences, and (x_q - x_p) W is
  x_q W - x_p W: its product is computed once per item and only gathered for
  each subgraph. The normalisation of the features is folded into W.
- The last layer is computed for the 1-hop nodes alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from facelink.compiled import blocks, compiled, in_threads
from facelink.embeddings import UnitRows
from facelink.links.model import GcnModel
from facelink.progress import Progress, watch
from facelink.subgraphs import Context, Subgraphs, build_subgraphs

PIVOTS = 16  # per batch: what they need stays in the cache
FIXED_ROWS = 8192

Floats = NDArray[np.float32]


class GcnScorer:
    """A model made ready for one collection.

    Parameters
    ----------
    rows : UnitRows
        The embeddings.
    neighbors : (n, k) int32 array
        The indices of their kNN graph.
    model : GcnModel
    context : Context
        The subgraphs to score in.
    n_threads : int, optional
        All cores of the process by default.
    """

    def __init__(
        self,
        rows: UnitRows,
        neighbors: NDArray[np.int32],
        model: GcnModel,
        context: Context,
        *,
        n_threads: int | None = None,
    ) -> None:
        self.n_threads = n_threads
        self.rows = rows
        self.neighbors = neighbors
        self.context = context
        self.architecture = model.architecture
        self.weights = weights = model.weights
        self.attention = model.architecture.aggregator == "attention"
        self.last = len(model.architecture.widths) - 1
        self.matrices = [self._side_by_side(depth) for depth in range(self.last + 1)]

        # Layer 1 on features normalised as (f - mean) scale: one product per item for the
        # residuals, one row for the similarity to the pivot, one constant.
        dimension = model.architecture.dimension
        scaled = weights["normalize.scale"][:, None] * self.matrices[0]  # (features, m)
        self.constant = -(weights["normalize.mean"] @ scaled)  # (m,)
        self.per_similarity = scaled[dimension] if model.architecture.similarity else None
        self.per_item = np.empty((len(rows), scaled.shape[1]), np.float32)  # (n, m)

        def multiply(block: slice) -> None:
            np.matmul(rows[block], scaled[:dimension], out=self.per_item[block])

        for _ in in_threads(multiply, blocks(len(rows), FIXED_ROWS), n_threads=n_threads):
            pass

    def _side_by_side(self, depth: int) -> Floats:
        """The matrices that layer ``depth`` multiplies its input with: (d_in, m)."""
        prefix = f"convolutions.{depth}."
        names = ["attention.target", "attention.source"] if self.attention else []
        if depth < self.last or depth == 0:
            names = ["own", "aggregated", *names]
        nothing = np.empty((len(self.weights[prefix + "own"]), 0), np.float32)
        return np.hstack([nothing, *(self.weights[prefix + name] for name in names)])

    def score_all(self, out: Floats, *, progress: Progress) -> None:
        """Write the likelihoods of every item's links to ``out`` (n, k₁)."""

        def score_block(block: slice) -> range:
            pivots = np.arange(block.start, block.stop)
            out[block] = self.score(build_subgraphs(self.neighbors, pivots, self.context))
            return range(block.start, block.stop)

        n_items = len(self.neighbors)
        done = in_threads(score_block, blocks(n_items, PIVOTS), n_threads=self.n_threads)
        for _ in watch(done, "links", n_items, progress):
            pass

    def score(self, subgraphs: Subgraphs) -> Floats:
        """The likelihoods of the links of some subgraphs: (batch, n_links)."""
        weights = self.weights
        edge_weights = self._fixed_edge_weights(subgraphs)  # (edges,)
        link_nodes = subgraphs.link_nodes.ravel()  # (links,)
        x = np.empty((0, 0), np.float32)
        for depth, width in enumerate(self.architecture.widths):
            prefix = f"convolutions.{depth}."
            projected = self._first_product(subgraphs) if depth == 0 else x @ self.matrices[depth]
            if self.attention:
                edge_weights = self._attention(prefix, projected, subgraphs)
            bias = weights[prefix + "bias"]
            if depth < self.last or depth == 0:
                x = np.empty((len(subgraphs.nodes), width), np.float32)
                edges = (subgraphs.edge_starts, subgraphs.edges, edge_weights)
                convolve(0, len(x), *edges, projected, bias, x)
                if depth == self.last:
                    x = x[link_nodes]
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

    def _first_product(self, subgraphs: Subgraphs) -> Floats:
        """Normalised node features times the first layer's matrices: (nodes, m)."""
        out = np.empty((len(subgraphs.nodes), self.per_item.shape[1]), np.float32)
        similarities = np.zeros(len(subgraphs.nodes), np.float32)
        per_similarity = np.zeros_like(self.constant)
        if self.per_similarity is not None:
            per_similarity = self.per_similarity
            for s, pivot in enumerate(subgraphs.pivots):
                part = slice(*subgraphs.node_starts[s : s + 2])
                pivot_row = self.rows[np.array([pivot])][0]
                similarities[part] = self.rows[subgraphs.nodes[part]] @ pivot_row
        _gather(
            self.per_item, subgraphs.pivots, subgraphs.nodes, subgraphs.node_starts,
            similarities, per_similarity, self.constant, out,
        )  # fmt: skip
        return out

    def _fixed_edge_weights(self, subgraphs: Subgraphs) -> Floats:
        """The entries of G (edges,) where they do not depend on the layer."""
        out = np.empty(len(subgraphs.edges), np.float32)
        if self.architecture.aggregator == "mean":
            power = 0.5 if self.architecture.symmetric else 1.0
            _mean_weights(subgraphs.edge_starts, subgraphs.edges, power, out)
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
def _gather(per_item, pivots, nodes, node_starts, similarities, per_similarity, constant, out):
    for s in range(len(pivots)):
        at_pivot = per_item[pivots[s]]
        for q in range(node_starts[s], node_starts[s + 1]):
            at_node = per_item[nodes[q]]
            similarity, row = similarities[q], out[q]
            for c in range(len(row)):
                shift = similarity * per_similarity[c] + constant[c]
                row[c] = at_node[c] - at_pivot[c] + shift


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
def _mean_weights(edge_starts, edges, power, out):
    for q in range(len(edge_starts) - 1):
        degree = edge_starts[q + 1] - edge_starts[q]
        for e in range(edge_starts[q], edge_starts[q + 1]):
            other = edges[e]
            # Degrees of both ends at power 0.5, of the node itself alone at power 1.
            far = edge_starts[other + 1] - edge_starts[other]
            out[e] = 1.0 / (degree**power * far ** (1.0 - power))


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
