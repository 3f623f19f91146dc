"""Links as seen from each item, and without a direction: each pair of items once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array

from facelink.compiled import compiled
from facelink.errors import InputError
from facelink.links.background import Background
from facelink.links.variation import Whitened
from facelink.neighbors import KnnGraph


@dataclass(frozen=True)
class Links:
    """The likelihood that an item and each of its neighbours are one person.

    Attributes
    ----------
    graph : KnnGraph
        Its first k₁ columns are the neighbours that were scored.
    likelihood : (n, k₁) float32 array
        Between 0 and 1; as seen from item i in row i.
    background : Background, optional
        What strangers look like in the collection, where the scorer had to know.
    whitened : Whitened, optional
        The embeddings by what photos of one person differ in, where clusters have shown it.
    """

    graph: KnnGraph
    likelihood: NDArray[np.float32]
    background: Background | None = None
    whitened: Whitened | None = None

    def __post_init__(self) -> None:
        n_items, k = self.likelihood.shape
        if n_items != self.graph.n_items or k > self.graph.k:
            raise InputError(
                f"Likelihoods of shape {self.likelihood.shape} do not fit a kNN graph of shape "
                f"{self.graph.indices.shape}."
            )

    @property
    def neighbors(self) -> NDArray[np.int32]:
        """(n, k₁) the neighbours that were scored."""
        return self.graph.indices[:, : self.likelihood.shape[1]]

    @property
    def similarities(self) -> NDArray[np.float32]:
        """(n, k₁) how similar they are."""
        return self.graph.similarities[:, : self.likelihood.shape[1]]

    def pairs(self, threshold: float = 0.0) -> Pairs:
        """Each pair of items once, the mean of its two likelihoods where it is seen from both.

        Those from a threshold on; few are, and all would take more memory than the links.
        """
        return join_directions(self.graph, self.likelihood, threshold)

    def with_copies(self) -> Links:
        """Link items of similarity 1 surely, in place: a stored copy is no other person."""
        self.likelihood[self.similarities == 1.0] = 1.0
        return self


@dataclass(frozen=True)
class Pairs:
    """Pairs of items, each once, with the likelihood that they are one person."""

    n_items: int
    first: NDArray[np.int32]  # (m,) ascending
    second: NDArray[np.int32]  # (m,) greater than first
    likelihood: NDArray[np.float32]  # (m,)
    order: NDArray[np.int64] | None = None  # (n,) items near one another, if it is known

    def at_least(self, threshold: float) -> Pairs:
        """The pairs from a likelihood on."""
        keep = self.likelihood >= np.float32(threshold)
        if keep.all():
            return self
        first, second, likelihood = self.first[keep], self.second[keep], self.likelihood[keep]
        return Pairs(self.n_items, first, second, likelihood, self.order)

    def both_ways(self) -> csr_array:
        """The likelihoods as a symmetric sparse (n, n) matrix."""
        counts = np.bincount(self.first, minlength=self.n_items)
        counts += np.bincount(self.second, minlength=self.n_items)
        numbers = np.int32 if 2 * len(self.first) < 1 << 31 else np.int64
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(numbers)
        columns = np.empty(starts[-1], numbers)
        values = np.empty(starts[-1], np.float32)
        _fill_both(self.first, self.second, self.likelihood, starts[:-1].copy(), columns, values)
        return csr_array((values, columns, starts), shape=(self.n_items, self.n_items))

    def matrix(self) -> csr_array:
        """The likelihoods as a sparse (n, n) matrix, each pair once, above the diagonal."""
        shape = (self.n_items, self.n_items)
        return coo_array((self.likelihood, (self.first, self.second)), shape=shape).tocsr()


def join_directions(
    graph: KnnGraph, values: NDArray[np.float32], threshold: float = -np.inf
) -> Pairs:
    """Give a pair seen from both sides the mean of the two, one seen from one side what it has.

    ``values`` (n, k) are what each item thinks of its first k neighbours. Pairs below the
    threshold are left out.
    """
    n_items = graph.n_items
    counts = np.zeros(n_items + 1, np.int64)
    seen = graph.order, graph.indices, graph.back, values, np.float32(threshold)
    _count_pairs(*seen, counts)
    starts = np.cumsum(counts)
    first = np.repeat(np.arange(n_items, dtype=np.int32), counts[1:])
    second = np.empty(starts[-1], np.int32)
    joined = np.empty(starts[-1], np.float32)
    _list_pairs(*seen, starts, second, joined)
    rows = csr_array((joined, second, starts), shape=(n_items, n_items))
    rows.sort_indices()
    second = rows.indices.astype(np.int32, copy=False)
    return Pairs(n_items, first, second, rows.data, graph.order)


@compiled
def _fill_both(first, second, likelihood, filled, columns, values):
    for pair in range(len(first)):
        for here, there in ((first[pair], second[pair]), (second[pair], first[pair])):
            columns[filled[here]], values[filled[here]] = there, likelihood[pair]
            filled[here] += 1


@compiled
def joined_value(neighbors, back, values, i, place):
    """What both sides think of a link, and whether it is this side's to say: once per pair."""
    value = values[i, place]
    if back[i, place] >= values.shape[1]:
        return value, True
    j = neighbors[i, place]
    return (value + values[j, back[i, place]]) / np.float32(2), i < j


@compiled
def _count_pairs(order, neighbors, back, values, threshold, counts):
    """Add to ``counts[i + 1]`` the pairs whose lesser item is i."""
    for i in order:
        for place in range(values.shape[1]):
            value, mine = joined_value(neighbors, back, values, i, place)
            if mine and value >= threshold:
                counts[min(i, neighbors[i, place]) + 1] += 1


@compiled
def _list_pairs(order, neighbors, back, values, threshold, starts, second, joined):
    filled = starts[:-1].copy()
    for i in order:
        for place in range(values.shape[1]):
            value, mine = joined_value(neighbors, back, values, i, place)
            if mine and value >= threshold:
                j = neighbors[i, place]
                at = filled[min(i, j)]
                second[at], joined[at] = max(i, j), value
                filled[min(i, j)] += 1
