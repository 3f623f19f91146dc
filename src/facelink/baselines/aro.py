r"""Approximate rank-order clustering (Otto, Wang and Jain, *Clustering millions of faces by
identity*, 2018).

The rank-order distance of Zhu et al. (2011), with the ranks in the other's list
replaced by whether one is in it, and one pass of merging:

.. math::

    d_m(a, b) = \sum_{i=1}^{\min(O_a(b), k)} [f_a(i) \text{ not among b's k nearest}]
    \qquad
    D_m(a, b) = \frac{d_m(a, b) + d_m(b, a)}{\min(O_a(b), O_b(a))}

where f_a(i) is the i-th neighbour of a and O_a(b) the rank of b among the
neighbours of a. Pairs with D_m ≤ threshold are merged transitively.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facelink.baselines.adjacency import both_sides, join, nearest_columns
from facelink.baselines.pairs import similarity_pairs
from facelink.baselines.sizes import check_size
from facelink.compiled import compiled, over_rows
from facelink.embeddings import UnitRows
from facelink.links import Pairs
from facelink.merging import by_size
from facelink.neighbors import KnnGraph

GRID: tuple[float, ...] = (
    *(0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4),
    *(0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5),
)


def aro(
    embeddings: ArrayLike | UnitRows,
    *,
    threshold: float,
    graph: KnnGraph | None = None,
    k: int = 200,
) -> NDArray[np.int64]:
    """Merge neighbours that share most of their nearest neighbours.

    Parameters
    ----------
    embeddings : (n, d) array
    threshold : float
        The largest distance D_m of a pair that is merged. Rising, it merges more.
        The source's is about 1.
    graph : KnnGraph, optional
        At least k wide; made from the embeddings by default.
    k : int
        Neighbours per item. More of them make D_m finer and more pairs comparable.

    Returns
    -------
    (n,) int array
        Labels from 0 for the largest cluster on; an item alone has one of its own.

    Notes
    -----
    The source compares an item with its k neighbours. Where only one of the two
    lists the other, the one that does not has walked its whole list, and ranks
    the other at k + 1. The term of b itself, at i = O_a(b), is always 0.

    The source's k = 200 is for collections of 10,000 items and more: where it is far
    above a person's photos and not small beside n, strangers share their lists too.

    Takes time n k² (a look-up each) and about 120 n k bytes: 1.6 GiB at 70,000 items.

    Examples
    --------
    >>> import facelink
    >>> from facelink.baselines.aro import aro
    >>> faces = facelink.load_sample()
    >>> labels = aro(faces.embeddings, threshold=0.5, k=40)
    >>> facelink.metrics.bcubed(faces.labels, labels).f > 0.7
    True
    """
    return prepare_aro(embeddings, graph=graph, k=k)(threshold)


def prepare_aro(
    embeddings: ArrayLike | UnitRows, *, graph: KnnGraph | None = None, k: int = 200
) -> Callable[[float], NDArray[np.int64]]:
    """Compute the distances once; returns the labels as a function of the threshold."""
    rows = UnitRows.of(embeddings)
    check_size("ARO", len(rows), 120 * len(rows) * k)
    graph = nearest_columns("ARO", rows, graph, k)
    pairs = similarity_pairs(graph)
    distance = approximate_rank_order(graph, pairs)

    def labels_at(threshold: float) -> NDArray[np.int64]:
        near = distance <= np.float32(threshold)
        return by_size(join(pairs.n_items, pairs.first[near], pairs.second[near]))

    return labels_at


def approximate_rank_order(graph: KnnGraph, pairs: Pairs) -> NDArray[np.float32]:
    """The distance D_m of each pair of the graph."""
    sides = both_sides(pairs)
    absent = np.empty(2 * len(pairs.first), np.int32)  # d_m(a, b), d_m(b, a) of each pair
    rank = np.empty(2 * len(pairs.first), np.int32)  # O_a(b), O_b(a)

    def work(start: int, stop: int) -> None:
        _count_absent(graph.indices, *sides, start, stop, absent, rank)

    over_rows(work, graph.n_items)
    both, lower_rank = absent.reshape(-1, 2).sum(axis=1), rank.reshape(-1, 2).min(axis=1)  # (m,)
    return (both / lower_rank).astype(np.float32)


@compiled
def _count_absent(neighbors, starts, others, slots, start, stop, absent, rank):
    """Walk, for each item b, the lists of all items paired with it up to where b stands."""
    listed_by = np.full(len(neighbors), -1, np.int32)  # listed_by[x] == b: b lists x
    for b in range(start, stop):
        for x in neighbors[b]:
            listed_by[x] = b
        for e in range(starts[b], starts[b + 1]):
            a = others[e]
            count, steps = 0, 1
            for x in neighbors[a]:
                if x == b:
                    break
                count += listed_by[x] != b
                steps += 1
            # The slot says which of the pair's items a is, and so whose view this is.
            absent[slots[e]], rank[slots[e]] = count, steps
