r"""Average linkage of a sparse similarity: agglomeration by rounds.

The similarity of two clusters is the mean over all pairs of their items
(UPGMA, Sokal and Michener 1958), where pairs that are not listed count with a
constant m:

.. math::

    s(A, B) = \frac{1}{|A| |B|} \sum_{a \in A, b \in B} s(a, b)
            = m + \frac{1}{|A| |B|} \sum_{(a, b) \text{ listed}} (s(a, b) - m)

so it is enough to keep, for each two clusters, the sum of what their listed
pairs have more than m. Average linkage is reducible: where A and B are nearest
to each other, their union is to no third cluster nearer than one of them was.
So all clusters that are mutually nearest can be merged at once, in a round, and
the tree is the one that merging the best pair at a time gives (Murtagh 1983).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from facelink.compiled import compiled
from facelink.links.pairs import Pairs
from facelink.merging import by_size


@dataclass(frozen=True)
class Tree:
    """The merges of an agglomeration, each as one item of either cluster.

    Attributes
    ----------
    n_items : int
    first, second : (m,) int32 arrays
        The first item of each of the two clusters; ``first`` is the lower.
    similarity : (m,) float32 array
        The average similarity at which they were merged; never above that of
        the merges that made the two.
    """

    n_items: int
    first: NDArray[np.int32]
    second: NDArray[np.int32]
    similarity: NDArray[np.float32]

    def cut(self, threshold: float) -> NDArray[np.int64]:
        """Labels of the clusters in which every merge has at least this average similarity."""
        kept = self.similarity >= np.float32(threshold)
        merges = coo_array(
            (np.ones(kept.sum(), np.int8), (self.first[kept], self.second[kept])),
            shape=(self.n_items, self.n_items),
        )
        return by_size(connected_components(merges, directed=False)[1])


def average_linkage(pairs: Pairs, *, missing: float = 0.0) -> Tree:
    """Merge the clusters of the highest average similarity, until none is above ``missing``.

    Parameters
    ----------
    pairs : Pairs
        The similarities known, as likelihoods; any number, not only from 0 to 1.
    missing : float
        The similarity of the pairs that are not listed. Clusters without a
        listed pair between them are never merged.

    Returns
    -------
    Tree

    Notes
    -----
    Of equal similarities that with the cluster of the lower first item counts
    as higher; so there are mutually nearest clusters in every round.

    A round takes time linear in the listed pairs left, and there are some dozens
    of them, at worst one per merge. Memory is about 50 bytes per listed pair.

    Examples
    --------
    >>> import numpy as np
    >>> from facelink.links import Pairs
    >>> similarity = np.array([0.9, 0.5, 0.3], dtype=np.float32)
    >>> tree = average_linkage(Pairs(3, np.array([0, 0, 1]), np.array([1, 2, 2]), similarity))
    >>> tree.similarity
    array([0.9, 0.4], dtype=float32)
    >>> tree.cut(0.45)
    array([0, 0, 1])
    """
    first, second = pairs.first.astype(np.int32), pairs.second.astype(np.int32)
    excess = pairs.likelihood.astype(np.float64) - missing  # (pairs,) summed as clusters grow
    sizes = np.ones(pairs.n_items)
    items = np.arange(pairs.n_items, dtype=np.int32)  # the first item of each cluster
    made_at = np.full(pairs.n_items, np.inf)  # the average similarity of each one's last merge
    merges = [(items[:0], items[:0], made_at[:0])]
    while True:
        nearest, average = _find_nearest(first, second, excess, sizes)
        clusters = np.arange(len(sizes), dtype=np.int32)
        # Clusters are in the order of their first items, so the lower one stays.
        gone = np.flatnonzero(
            (nearest >= 0) & (nearest[nearest] == clusters) & (nearest < clusters)
        )
        if len(gone) == 0:
            break
        kept = nearest[gone]
        # Rounding could lift a merge above the ones before it.
        made_at[kept] = np.minimum(
            missing + average[gone], np.minimum(made_at[gone], made_at[kept])
        )
        merges.append((items[kept], items[gone], made_at[kept]))

        sizes[kept] += sizes[gone]
        stays = np.ones(len(sizes), np.bool_)
        stays[gone] = False
        new_name = (np.cumsum(stays) - 1).astype(np.int32)
        new_name[gone] = new_name[kept]
        sizes, items, made_at = sizes[stays], items[stays], made_at[stays]
        first, second, excess = _add_up(first, second, excess, new_name, len(sizes))
    return Tree(
        pairs.n_items,
        np.concatenate([merge[0] for merge in merges]),
        np.concatenate([merge[1] for merge in merges]),
        np.concatenate([merge[2] for merge in merges]).astype(np.float32),
    )


@compiled
def _find_nearest(first, second, excess, sizes):
    """Each cluster's most similar one (-1: none above ``missing``), and by how much above it."""
    nearest = np.full(len(sizes), -1, np.int32)
    highest = np.zeros(len(sizes))
    for e in range(len(first)):
        a, b = first[e], second[e]
        # Computed once for both ends: the two must agree to the bit on who is nearest.
        average = excess[e] / (sizes[a] * sizes[b])
        if average > highest[a] or (average == highest[a] and b < nearest[a]):
            highest[a], nearest[a] = average, b
        if average > highest[b] or (average == highest[b] and a < nearest[b]):
            highest[b], nearest[b] = average, a
    return nearest, highest


@compiled
def _add_up(first, second, excess, new_name, n_clusters):
    """Rename the ends of the pairs, drop those inside a cluster and add up those alike."""
    starts = np.zeros(n_clusters + 1, np.int64)
    for e in range(len(first)):
        a, b = new_name[first[e]], new_name[second[e]]
        if a != b:
            starts[min(a, b) + 1] += 1
    for c in range(n_clusters):
        starts[c + 1] += starts[c]
    others = np.empty(starts[-1], np.int32)  # by the lower cluster, the higher one
    values = np.empty(starts[-1])
    filled = starts[:-1].copy()
    for e in range(len(first)):
        a, b = new_name[first[e]], new_name[second[e]]
        if a != b:
            low = min(a, b)
            others[filled[low]], values[filled[low]] = max(a, b), excess[e]
            filled[low] += 1

    slot = np.full(n_clusters, -1, np.int64)  # where the pair with each cluster was put last
    lows = np.empty(starts[-1], np.int32)
    count = 0
    for low in range(n_clusters):
        row = count
        for e in range(starts[low], starts[low + 1]):
            high, value = others[e], values[e]
            if slot[high] >= row:
                values[slot[high]] += value
            else:
                slot[high] = count
                lows[count], others[count], values[count] = low, high, value
                count += 1
    return lows[:count].copy(), others[:count].copy(), values[:count].copy()
