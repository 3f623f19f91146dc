"""Links without a direction: each pair of items once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array

from facelink.compiled import compiled


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


def join_directions(neighbors: NDArray[np.int32], likelihood: NDArray[np.float32]) -> Pairs:
    """Give a pair seen from both sides the mean of the two, one seen from one side what it has.

    Both arrays are (n, k): item i's neighbours, and what i thinks of them.
    """
    n_items, k = likelihood.shape
    starts = np.arange(0, n_items * k + 1, k, dtype=np.int64) if k else np.zeros(n_items + 1, int)
    seen = csr_array((likelihood.ravel(), neighbors.ravel(), starts), shape=(n_items, n_items))
    back = seen.T.tocsr()  # rows come out sorted
    seen = back.T.tocsr()
    first, second, joined = _merge_rows(
        seen.indptr, seen.indices, seen.data, back.indptr, back.indices, back.data
    )
    return Pairs(n_items, first, second, joined)


@compiled
def _merge_rows(starts, columns, values, back_starts, back_columns, back_values):
    """Walk each row of a matrix and of its transpose together, above the diagonal."""
    first = np.empty(len(columns), np.int32)
    second = np.empty(len(columns), np.int32)
    likelihood = np.empty(len(columns), np.float32)
    count = 0
    for i in range(len(starts) - 1):
        a, a_stop = starts[i], starts[i + 1]
        b, b_stop = back_starts[i], back_starts[i + 1]
        while a < a_stop or b < b_stop:
            there = columns[a] if a < a_stop else len(starts)
            here = back_columns[b] if b < b_stop else len(starts)
            if there == here:
                other, value = there, (values[a] + back_values[b]) / np.float32(2)
                a += 1
                b += 1
            elif there < here:
                other, value = there, values[a]
                a += 1
            else:
                other, value = here, back_values[b]
                b += 1
            if other > i:
                first[count], second[count], likelihood[count] = i, other, value
                count += 1
    return first[:count].copy(), second[:count].copy(), likelihood[:count].copy()
