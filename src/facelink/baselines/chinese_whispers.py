r"""Chinese Whispers (Biemann 2006) on the kNN graph.

Every item starts with a label of its own. In random order each takes the label
that is strongest among its neighbours,

.. math:: \arg\max_\ell \sum_{j : \ell_j = \ell} s(i, j)

again and again, until none changes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facelink.baselines.pairs import graph_of, similarity_pairs
from facelink.baselines.sizes import check_size, graph_bytes
from facelink.compiled import compiled
from facelink.embeddings import UnitRows
from facelink.merging import by_size
from facelink.merging.components import check_share
from facelink.neighbors import KnnGraph

NAME = "Chinese Whispers"
GRID = tuple(round(0.32 + 0.06 * i, 2) for i in range(11))  # 0.32 to 0.92


def chinese_whispers(
    embeddings: ArrayLike | UnitRows,
    *,
    threshold: float,
    graph: KnnGraph | None = None,
    k: int = 80,
    n_rounds: int = 20,
    seed: int = 0,
) -> NDArray[np.int64]:
    """Let every item take the label that is strongest around it.

    Parameters
    ----------
    embeddings : (n, d) array
    threshold : float
        The lowest similarity of neighbours that listen to each other, from 0 to
        1. Rising, it splits more.
    graph : KnnGraph, optional
        Used in its full width; by default one is made.
    k : int
        Neighbours per item of the graph that is made.
    n_rounds : int
        At most. The source uses 20 or so: a few items may never settle.
    seed : int
        Of the order of the items, another in each round.

    Returns
    -------
    (n,) int array
        Labels from 0 for the largest cluster on; an item alone has one of its own.

    Notes
    -----
    The source breaks ties at random; here the label heard first, from the
    neighbour of the lowest index, wins. Takes time linear in the n k
    neighbours per round, and about 70 bytes for each.

    Examples
    --------
    >>> from facelink.baselines.chinese_whispers import chinese_whispers
    >>> chinese_whispers([[1, 0], [1, 0.1], [0, 1]], threshold=0.5)
    array([0, 0, 1])
    """
    return prepare_chinese_whispers(embeddings, graph=graph, k=k, n_rounds=n_rounds, seed=seed)(
        threshold
    )


def prepare_chinese_whispers(
    embeddings: ArrayLike | UnitRows,
    *,
    graph: KnnGraph | None = None,
    k: int = 80,
    n_rounds: int = 20,
    seed: int = 0,
) -> Callable[[float], NDArray[np.int64]]:
    """Find the pairs; returns the labels as a function of the threshold."""
    rows = UnitRows.of(embeddings)
    check_size(NAME, len(rows), memory(len(rows), k if graph is None else graph.k))
    pairs = similarity_pairs(graph_of(rows, graph, k))

    def labels_at(threshold: float) -> NDArray[np.int64]:
        check_share("threshold", threshold)
        heard = pairs.at_least(threshold).both_ways()
        order = np.random.default_rng(seed)
        labels = np.arange(pairs.n_items)
        for _ in range(n_rounds):
            everyone = order.permutation(pairs.n_items)
            if not _whisper(heard.indptr, heard.indices, heard.data, everyone, labels):
                break
        return by_size(labels)

    return labels_at


@compiled
def _whisper(starts, neighbors, weights, order, labels):
    """One round in place; how many labels changed."""
    strength = np.zeros(len(labels))
    changed = 0
    for i in order:
        best = labels[i]
        for e in range(starts[i], starts[i + 1]):
            label = labels[neighbors[e]]
            strength[label] += weights[e]
        highest = 0.0
        for e in range(starts[i], starts[i + 1]):
            label = labels[neighbors[e]]
            if strength[label] > highest:
                highest, best = strength[label], label
        for e in range(starts[i], starts[i + 1]):
            strength[labels[neighbors[e]]] = 0.0
        changed += labels[i] != best
        labels[i] = best
    return changed


def memory(n_items: int, k: int = 80) -> int:
    """Bytes for the graph, its pairs and the matrix of who hears whom."""
    return graph_bytes(n_items, k)
