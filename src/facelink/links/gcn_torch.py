"""The paper's network on a device of torch's: the scorer for who has a GPU.

The same order of operations as `facelink.links.gcn`, which see; subgraphs are built on
the CPU while the device works on those before them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from facelink.compiled import blocks
from facelink.embeddings import UnitRows
from facelink.errors import InputError
from facelink.links.gcn import Folded
from facelink.links.model import GcnModel
from facelink.neighbors.order import near_one_another
from facelink.progress import Progress, silent
from facelink.runs import Run
from facelink.subgraphs import Context, Subgraphs, build_subgraphs

PIVOTS = 128  # per batch: enough to keep a GPU busy
FIXED_ROWS = 65_536


def check(device: str) -> None:
    """Refuse a device that torch cannot use here."""
    try:
        torch.empty(1, device=torch.device(device))
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"device should be one that torch can use here, got {device!r} ({reason}). "
            "Without device= the scorer for the CPU is used."
        ) from None


class TorchScorer:
    """A model made ready for one collection, on a device.

    Parameters
    ----------
    rows : UnitRows
        The embeddings. They and the first layer's product of each have to fit on the device.
    neighbors : (n, k) int32 array
        The indices of their kNN graph.
    model : GcnModel
    context : Context
        The subgraphs to score in.
    device : str
        As torch names it: ``"cuda"``, ``"mps"``, ``"cpu"``.
    """

    def __init__(
        self,
        rows: UnitRows,
        neighbors: NDArray[np.int32],
        model: GcnModel,
        context: Context,
        device: str,
    ) -> None:
        check(device)
        self.device = torch.device(device)
        self.neighbors = neighbors
        self.context = context
        self.architecture = model.architecture
        self.weights = {name: self._there(array) for name, array in model.weights.items()}
        folded = Folded.of(model)
        self.constant = self._there(folded.constant)
        self.per_similarity = self._there(folded.per_similarity)
        self.matrices = [self._there(matrix) for matrix in folded.matrices]
        first = self._there(folded.per_item)
        parts = [self._there(rows[block]) for block in blocks(len(rows), FIXED_ROWS)]
        self.rows = torch.cat(parts)  # (n, d)
        self.per_item = torch.cat([part @ first for part in parts])  # (n, m)

    def _there(self, array: NDArray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def score_all(
        self,
        run: Run,
        out: NDArray[np.float32] | None = None,
        *,
        progress: Progress = silent,
    ) -> NDArray[np.float32]:
        """The likelihoods of every item's links (n, k₁)."""
        shape = (len(self.neighbors), self.context.hops[0])
        likelihood = run.array("links", shape, np.float32) if out is None else out
        order = near_one_another(self.neighbors)
        one_at_a_time = threading.Lock()  # on the device; subgraphs are built meanwhile

        def score_batch(batch: NDArray[np.integer]) -> None:
            subgraphs = build_subgraphs(self.neighbors, batch, self.context)
            with one_at_a_time:
                likelihood[batch] = self.score(subgraphs)

        run.work("links", order, score_batch, size=PIVOTS, n_threads=2, progress=progress)
        return likelihood

    @torch.no_grad()
    def score(self, subgraphs: Subgraphs) -> NDArray[np.float32]:
        """The likelihoods of the links of some subgraphs: (batch, n_links)."""
        graph = _Edges(subgraphs, self._there)
        widths, last = self.architecture.widths, len(self.architecture.widths) - 1
        edge_weights = self._fixed_edge_weights(graph)
        similarity = torch.zeros(len(graph.nodes), device=self.device)
        if self.architecture.similarity:
            similarity = torch.linalg.vecdot(self.rows[graph.nodes], self.rows[graph.pivots])
        x = torch.empty(0)
        for depth, width in enumerate(widths):
            prefix = f"convolutions.{depth}."
            if depth == 0:
                projected = self.per_item[graph.nodes] - self.per_item[graph.pivots]
                projected += self.constant
                projected.addcmul_(similarity[:, None], self.per_similarity)
            else:
                projected = x @ self.matrices[depth - 1]
            if self.architecture.aggregator == "attention":
                edge_weights = self._attention(prefix, projected, graph)
            bias = self.weights[prefix + "bias"]
            if depth < last or depth == 0:
                x = projected[:, :width] + graph.sums(projected[:, width : 2 * width], edge_weights)
                x = x[graph.link_nodes] if depth == last else x
                x = torch.relu_(x + bias)
            else:
                gathered = graph.sums(x, edge_weights)[graph.link_nodes]
                x = torch.addmm(bias, x[graph.link_nodes], self.weights[prefix + "own"])
                x = torch.relu_(torch.addmm(x, gathered, self.weights[prefix + "aggregated"]))
        x = x @ self.weights["classifier.hidden"] + self.weights["classifier.hidden_bias"]
        x = torch.where(x > 0, x, x * self.weights["classifier.slope"])
        logits = x @ self.weights["classifier.output"] + self.weights["classifier.output_bias"]
        likelihood = torch.sigmoid(logits[:, 1] - logits[:, 0])
        return likelihood.reshape(len(subgraphs), subgraphs.n_links).cpu().numpy()

    def _fixed_edge_weights(self, graph: _Edges) -> Tensor:
        """The entries of G (edges,) where they do not depend on the layer."""
        if self.architecture.aggregator == "weighted":
            ends = (self.rows[graph.nodes[graph.targets]], self.rows[graph.nodes[graph.sources]])
            return graph.softmax(torch.linalg.vecdot(*ends))
        degrees = graph.degrees.to(torch.float32)
        if self.architecture.symmetric:
            return (degrees[graph.targets] * degrees[graph.sources]).rsqrt()
        return 1 / degrees[graph.targets]

    def _attention(self, prefix: str, projected: Tensor, graph: _Edges) -> Tensor:
        """The entries of G (edges,) from the two projections, the last columns."""
        score = self.weights[prefix + "attention.score"]
        target, source = projected[:, -2 * len(score) :].split(len(score), dim=1)
        pairs = target[graph.targets] + source[graph.sources]
        pairs += self.weights[prefix + "attention.bias"]
        return graph.softmax(torch.relu_(pairs) @ score)


class _Edges:
    """The nodes and edges of a batch, on the device."""

    def __init__(self, subgraphs: Subgraphs, there: Callable[[NDArray], Tensor]) -> None:
        self.nodes = there(subgraphs.nodes).long()
        self.pivots = there(subgraphs.pivot_of_node)  # (nodes,)
        self.link_nodes = there(subgraphs.link_nodes.ravel())
        self.degrees = there(subgraphs.degrees)
        numbers = torch.arange(len(self.nodes), device=self.nodes.device)
        self.targets = torch.repeat_interleave(numbers, self.degrees)  # (edges,)
        self.sources = there(subgraphs.edges).long()

    def sums(self, x: Tensor, weights: Tensor) -> Tensor:
        """GX, with the entry of G for each edge in ``weights``: (nodes, d)."""
        out = torch.zeros_like(x, memory_format=torch.contiguous_format)
        return out.index_add_(0, self.targets, weights[:, None] * x[self.sources])

    def softmax(self, scores: Tensor) -> Tensor:
        """Softmax over the edges that arrive at the same node: (edges,)."""
        lowest = scores.new_full((len(self.nodes),), -torch.inf)
        highest = lowest.scatter_reduce(0, self.targets, scores, "amax")
        exponentials = (scores - highest[self.targets]).exp()
        totals = scores.new_zeros(len(self.nodes)).index_add_(0, self.targets, exponentials)
        return exponentials / totals[self.targets]
