r"""Rank-order clustering (Zhu, Wen and Sun, *A rank-order distance based clustering algorithm
for face tagging*, 2011).

With f_a(i) the i-th neighbour of a, f_a(0) = a, and O_a(b) the rank of b in the
list of a,

.. math::

    D(a, b) = \sum_{i=0}^{O_a(b) - 1} O_b(f_a(i)) \qquad
    D_R(a, b) = \frac{D(a, b) + D(b, a)}{\min(O_a(b), O_b(a))}

Clusters have the distance of their nearest items, d(C_i, C_j) = min d(a, b), and
with it lists, ranks and D_R like items. That distance is also compared with how
dense the two clusters are:

.. math::

    D_N(C_i, C_j) = \frac{d(C_i, C_j)}{\phi(C_i, C_j)} \qquad
    \phi(C_i, C_j) = \frac{1}{|C_i| + |C_j|} \sum_{a \in C_i \cup C_j}
                     \frac{1}{K} \sum_{r=1}^{K} d(a, f_a(r))

Each round merges, transitively, all clusters with D_R < threshold and D_N < 1;
rounds follow until nothing merges.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facelink.baselines.adjacency import join, nearest_columns
from facelink.baselines.pairs import similarity_pairs
from facelink.baselines.sizes import check_size
from facelink.compiled import compiled, over_rows
from facelink.embeddings import UnitRows
from facelink.merging import by_size
from facelink.neighbors import KnnGraph
from facelink.neighbors.copies import find_distinct

GRID: tuple[float, ...] = (
    *(2.5, 3.5, 5.0, 7.0, 9.0, 11.0, 14.0, 16.0, 18.0, 20.0),
    *(25.0, 32.0, 40.0, 50.0, 65.0, 80.0, 110.0, 150.0, 250.0, 500.0),
)


def rank_order(
    embeddings: ArrayLike | UnitRows,
    *,
    threshold: float,
    graph: KnnGraph | None = None,
    k: int = 80,
    n_density: int = 9,
) -> NDArray[np.int64]:
    """Merge clusters that rank each other and each other's neighbours high, until none are left.

    Parameters
    ----------
    embeddings : (n, d) array
    threshold : float
        Clusters with a distance D_R below it are merged. Rising, it merges more.
        The least possible is 2, of two clusters that are each other's nearest; the
        source's threshold is 14.
    graph : KnnGraph, optional
        At least k wide; made from the embeddings by default.
    k : int
        How long the lists are. Longer ones tell more pairs apart, and cost k² each.
    n_density : int
        K in φ: how many neighbours say how dense it is around an item. Rising, it
        lets clusters merge from farther apart.

    Returns
    -------
    (n,) int array
        Labels from 0 for the largest cluster on; an item alone has one of its own.
        (The source puts them all in one group of leftovers.)

    Notes
    -----
    The source ranks all n items. Here a list holds the k nearest, of clusters as of
    items, and whoever is not in it has the rank after its last, the least that it
    can have. Clusters of which neither lists the other are not compared, and the
    distance of two clusters is that of the nearest two of their items of which one
    lists the other.

    The distance d is the Euclidean one of unit vectors, √(2 − 2 cos). Exact copies
    are one cluster from the start: among them, ranks would be chance. Where d = 0,
    D_N counts as 0 whatever φ.

    A round takes time n k, and k look-ups for each pair with D_N < 1; there are 10 to
    50 rounds. Memory is about 100 n k bytes: 0.5 GiB at 70,000 items.

    Examples
    --------
    >>> import facelink
    >>> from facelink.baselines.rank_order import rank_order
    >>> faces = facelink.load_sample()
    >>> labels = rank_order(faces.embeddings, threshold=14)
    >>> facelink.metrics.bcubed(faces.labels, labels).f > 0.7
    True
    """
    return prepare_rank_order(embeddings, graph=graph, k=k, n_density=n_density)(threshold)


def prepare_rank_order(
    embeddings: ArrayLike | UnitRows,
    *,
    graph: KnnGraph | None = None,
    k: int = 80,
    n_density: int = 9,
) -> Callable[[float], NDArray[np.int64]]:
    """Compare the items once; returns the labels as a function of the threshold."""
    rows = UnitRows.of(embeddings)
    check_size("Rank-Order", len(rows), 100 * len(rows) * k)
    graph = nearest_columns("Rank-Order", rows, graph, k)
    pairs = similarity_pairs(graph)
    near = _distance(graph.similarities[:, :n_density])  # (n, K)
    reach = near.mean(axis=1, dtype=np.float64) if near.shape[1] else np.zeros(len(rows))
    order = np.argsort(-pairs.likelihood, kind="stable")
    items = Clusters(
        pairs.first[order],
        pairs.second[order],
        _distance(pairs.likelihood[order]),
        np.ones(len(rows), np.int64),
        reach,
    )
    copies = find_distinct(rows)[1]
    distinct = merged(items, copies)
    ranked = rank_order_distances(distinct, k)  # of the first round, the same for each threshold

    def labels_at(threshold: float) -> NDArray[np.int64]:
        labels, clusters, distance = copies, distinct, ranked
        while True:
            found = (distance < threshold) & clusters.is_dense
            if not found.any():
                return by_size(labels)
            joined = join(len(clusters.size), clusters.first[found], clusters.second[found])
            labels, clusters = joined[labels], merged(clusters, joined)
            distance = rank_order_distances(clusters, k)

    return labels_at


@dataclass(frozen=True)
class Clusters:
    """Clusters with the distances known between them: each pair once, the nearest pairs first."""

    first: NDArray[np.int32]  # (m,)
    second: NDArray[np.int32]  # (m,)
    distance: NDArray[np.float32]  # (m,) of their nearest items, ascending
    size: NDArray[np.int64]  # (c,)
    reach: NDArray[np.float64]  # (c,) sum over the items of the mean distance to K neighbours

    @property
    def is_dense(self) -> NDArray[np.bool_]:
        """Which pairs have D_N < 1."""
        reach = self.reach[self.first] + self.reach[self.second]
        size = self.size[self.first] + self.size[self.second]
        return (self.distance * size < reach) | (self.distance == 0)


def _distance(similarity: NDArray[np.float32]) -> NDArray[np.float32]:
    """Euclidean, of unit vectors of a cosine similarity; rounding may put that above 1."""
    return np.sqrt(np.maximum(2 - 2 * similarity, 0)).astype(np.float32)


def merged(clusters: Clusters, labels: NDArray[np.int64]) -> Clusters:
    """The clusters after those of one label became one."""
    size = np.bincount(labels, weights=clusters.size).astype(np.int64)
    first, second = labels[clusters.first], labels[clusters.second]
    apart = first != second
    first, second = first[apart].astype(np.int32), second[apart].astype(np.int32)
    nearest = _first_of_each(first, second, len(size))
    return Clusters(
        first[nearest],
        second[nearest],
        clusters.distance[apart][nearest],
        size,
        np.bincount(labels, weights=clusters.reach).astype(np.float64),
    )


def rank_order_distances(clusters: Clusters, k: int) -> NDArray[np.float64]:
    """D_R of the pairs with D_N < 1; infinity for others, and where neither lists the other."""
    starts, others, slots = _lists(clusters.first, clusters.second, len(clusters.size))
    total = np.full(2 * len(clusters.first), np.inf)  # D(a, b), D(b, a)
    rank = np.ones(2 * len(clusters.first), np.int64)  # O_a(b), O_b(a)
    wanted = clusters.is_dense

    def work(start: int, stop: int) -> None:
        _add_ranks(starts, others, slots, wanted, k, start, stop, total, rank)

    over_rows(work, len(clusters.size))
    lower_rank = rank.reshape(-1, 2).min(axis=1)  # (m,)
    distance = total.reshape(-1, 2).sum(axis=1) / lower_rank
    return np.where(lower_rank <= k, distance, np.inf)


@compiled
def _lists(first, second, n_clusters):
    """All pairs around each cluster; as pairs come nearest first, so does each row.

    A slot is 2 * pair, + 1 where the row's cluster is the pair's second.
    """
    starts = np.zeros(n_clusters + 1, np.int64)
    for e in range(len(first)):
        starts[first[e] + 1] += 1
        starts[second[e] + 1] += 1
    for c in range(n_clusters):
        starts[c + 1] += starts[c]
    others = np.empty(2 * len(first), np.int32)
    slots = np.empty(2 * len(first), np.int64)
    filled = starts[:-1].copy()
    for e in range(len(first)):
        a, b = first[e], second[e]
        others[filled[a]], slots[filled[a]] = b, 2 * e
        filled[a] += 1
        others[filled[b]], slots[filled[b]] = a, 2 * e + 1
        filled[b] += 1
    return starts, others, slots


@compiled
def _first_of_each(first, second, n_clusters):
    """Which pairs are the first, and so the nearest, of those that join the same clusters."""
    starts, others, slots = _lists(first, second, n_clusters)
    keep = np.zeros(len(first), np.bool_)
    seen_by = np.full(n_clusters, -1, np.int64)
    for a in range(n_clusters):
        for e in range(starts[a], starts[a + 1]):
            b = others[e]
            if a < b and seen_by[b] != a:
                seen_by[b] = a
                keep[slots[e] // 2] = True
    return keep


@compiled
def _add_ranks(starts, others, slots, wanted, k, start, stop, total, rank):
    """Add up, for each cluster b, the ranks it gives to those before it in the others' lists."""
    n_clusters = len(starts) - 1
    rank_by = np.zeros(n_clusters, np.int64)
    ranked_by = np.full(n_clusters, -1, np.int64)  # ranked_by[x] == b: rank_by[x] is b's
    for b in range(start, stop):
        row, row_stop = starts[b], starts[b + 1]
        length = min(k, row_stop - row)
        outside = length + 1
        for position in range(length):
            x = others[row + position]
            ranked_by[x], rank_by[x] = b, position + 1
        for e in range(row, row_stop):
            if not wanted[slots[e] // 2]:
                continue
            a = others[e]
            sum_of_ranks = rank_by[a] if ranked_by[a] == b else outside  # i = 0: a itself
            steps = 1
            for other in range(starts[a], min(starts[a] + k, starts[a + 1])):
                x = others[other]
                if x == b:
                    break
                sum_of_ranks += rank_by[x] if ranked_by[x] == b else outside
                steps += 1
            # The row is b's and the view a's: the pair's other slot.
            total[slots[e] ^ 1], rank[slots[e] ^ 1] = sum_of_ranks, steps
