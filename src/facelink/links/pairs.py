"""Links without a direction: each pair of items once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array

from facelink.compiled import compiled
from facelink.neighbors import KnnGraph


@dataclass(frozen=True)
class Pairs:
    """Pairs of items, each once, with the likelihood that they are one person."""

    n_items: int
    first: NDArray[np.int32]  # (m,) ascending
    second: NDArray[np.int32]  # (m,) greater than first
    likelihood: NDArray[np.float32]  # (m,)

    def at_least(self, threshold: float) -> Pairs:
        """The pairs from a likelihood on."""
        keep = self.likelihood >= np.float32(threshold)
        return Pairs(self.n_items, self.first[keep], self.second[keep], self.likelihood[keep])

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
    _count_pairs(graph.indices, graph.back, values, np.float32(threshold), counts)
    starts = np.cumsum(counts)
    first = np.repeat(np.arange(n_items, dtype=np.int32), counts[1:])
    second = np.empty(starts[-1], np.int32)
    joined = np.empty(starts[-1], np.float32)
    _list_pairs(graph.indices, graph.back, values, np.float32(threshold), starts, second, joined)
    rows = csr_array((joined, second, starts), shape=(n_items, n_items))
    rows.sort_indices()
    return Pairs(n_items, first, rows.indices.astype(np.int32, copy=False), rows.data)


@compiled
def joined_value(neighbors, back, values, i, place):
    """What both sides think of a link, and whether it is this side's to say: once per pair."""
    value = values[i, place]
    if back[i, place] >= values.shape[1]:
        return value, True
    j = neighbors[i, place]
    return (value + values[j, back[i, place]]) / np.float32(2), i < j


@compiled
def _count_pairs(neighbors, back, values, threshold, counts):
    """Add to ``counts[i + 1]`` the pairs whose lesser item is i."""
    n_items, k = values.shape
    for i in range(n_items):
        for place in range(k):
            value, mine = joined_value(neighbors, back, values, i, place)
            if mine and value >= threshold:
                counts[min(i, neighbors[i, place]) + 1] += 1


@compiled
def _list_pairs(neighbors, back, values, threshold, starts, second, joined):
    n_items, k = values.shape
    filled = starts[:-1].copy()
    for i in range(n_items):
        for place in range(k):
            value, mine = joined_value(neighbors, back, values, i, place)
            if mine and value >= threshold:
                j = neighbors[i, place]
                at = filled[min(i, j)]
                second[at], joined[at] = max(i, j), value
                filled[min(i, j)] += 1
