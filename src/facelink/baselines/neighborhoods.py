r"""How much two neighbourhoods are alike, each seen from the other.

PAHC and DDC describe the neighbourhood of each item by a linear function, h_i(x) =
w_i · x + b_i, that is high near it. Two items are as similar as each one's function
finds the other's neighbourhood N, on average:

.. math::

    s(i, j) = \tfrac12 \Big( \frac{1}{|N_j|} \sum_{x \in N_j} h_i(x)
                           + \frac{1}{|N_i|} \sum_{x \in N_i} h_j(x) \Big)
            = \tfrac12 (w_i \cdot m_j + b_i + w_j \cdot m_i + b_j)

with m_i the mean of N_i, since h is linear.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from facelink.compiled import blocks, in_threads
from facelink.embeddings import UnitRows
from facelink.links import Pairs
from facelink.neighbors import KnnGraph

BLOCK_BYTES = 16 << 20  # of gathered rows per thread


@dataclass(frozen=True)
class Views:
    """The function of each item, and the mean of its neighbourhood."""

    weights: NDArray[np.float32]  # (n, d)
    offset: NDArray[np.float32]  # (n,)
    mean: NDArray[np.float32]  # (n, d)


Describe = Callable[[NDArray[np.float32]], tuple[NDArray[np.float64], NDArray[np.float64]]]
"""From (block, m, d) examples to the functions: weights of the examples (block, m), offsets."""


def with_itself(graph: KnnGraph, n_near: int) -> NDArray[np.int32]:
    """Each item, followed by its nearest neighbours: (n, 1 + n_near)."""
    itself = np.arange(graph.n_items, dtype=np.int32)[:, None]
    return np.concatenate([itself, graph.indices[:, :n_near]], axis=1)


def describe_neighborhoods(
    rows: UnitRows, examples: NDArray[np.int32], n_inside: int, describe: Describe
) -> Views:
    """Find the function of each item from its examples, block by block over the threads.

    ``examples`` is (n, m); the first ``n_inside`` columns are the neighbourhood. The
    weights of a function are a sum of its examples, weighted as ``describe`` says.
    """
    n_items, dimension = rows.shape
    weights = np.empty((n_items, dimension), np.float32)
    offset = np.empty(n_items, np.float32)
    mean = np.empty((n_items, dimension), np.float32)

    def work(block: slice) -> None:
        near = examples[block]
        gathered = rows[near.ravel()].reshape(*near.shape, dimension)  # (block, m, d)
        shares, offset[block] = describe(gathered)  # (block, m), (block,)
        weights[block] = np.einsum("bm,bmd->bd", shares.astype(np.float32), gathered)
        mean[block] = gathered[:, :n_inside].mean(axis=1)

    size = max(1, BLOCK_BYTES // (4 * examples.shape[1] * dimension))
    for _ in in_threads(work, blocks(n_items, size)):
        pass
    return Views(weights, offset, mean)


def mutual_similarity(pairs: Pairs, views: Views) -> NDArray[np.float32]:
    """s(i, j) of each pair."""
    similarity = np.empty(len(pairs.first), np.float32)

    def work(block: slice) -> None:
        a, b = pairs.first[block], pairs.second[block]
        there = np.einsum("pd,pd->p", views.weights[a], views.mean[b]) + views.offset[a]
        back = np.einsum("pd,pd->p", views.weights[b], views.mean[a]) + views.offset[b]
        similarity[block] = (there + back) / 2

    size = max(1, BLOCK_BYTES // (16 * views.mean.shape[1]))
    for _ in in_threads(work, blocks(len(pairs.first), size)):
        pass
    return similarity
