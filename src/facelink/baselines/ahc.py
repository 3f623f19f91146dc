"""Agglomerative hierarchical clustering with average linkage (Sokal and Michener 1958).

The two clusters of the highest average similarity are merged, again and again;
see `facelink.baselines.linkage` for the formula. The tree is cut where the
average falls below a threshold.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facelink.baselines.linkage import average_linkage
from facelink.baselines.pairs import all_similarities, graph_of, similarity_pairs
from facelink.baselines.sizes import LIMIT, check_size, graph_bytes
from facelink.embeddings import UnitRows
from facelink.merging import by_size
from facelink.neighbors import KnnGraph

NAME = "AHC"
GRID = tuple(round(0.02 * i, 2) for i in range(1, 48))  # 0.02 to 0.94


def ahc(
    embeddings: ArrayLike | UnitRows,
    *,
    threshold: float,
    graph: KnnGraph | None = None,
    k: int = 80,
    exact: bool | None = None,
) -> NDArray[np.int64]:
    """Merge clusters by average cosine similarity, down to a threshold.

    Parameters
    ----------
    embeddings : (n, d) array
    threshold : float
        The lowest average similarity of two clusters that are merged. Rising,
        it splits more.
    graph : KnnGraph, optional
        Used in its full width where the similarities of all pairs are not; by
        default one is made.
    k : int
        Neighbours per item of the graph that is made.
    exact : bool, optional
        True takes the similarities of all pairs, False those of neighbours, the
        others as 0. By default all pairs up to the 40,132 items that fit.

    Returns
    -------
    (n,) int array
        Labels from 0 for the largest cluster on; an item alone has one of its own.

    Notes
    -----
    From neighbours alone, averages of clusters larger than the graph is wide
    come out too low, so people with many items are split at the thresholds that
    suit others; thresholds of 0 and below all give the same.

    All pairs take time n² d for their similarities, n² for the tree, and 8 n²
    bytes; neighbours n k per round, some dozens of rounds, and about 70 n k bytes.

    Examples
    --------
    >>> from facelink.baselines.ahc import ahc
    >>> ahc([[1, 0], [1, 0.1], [0, 1]], threshold=0.5)
    array([0, 0, 1])
    """
    return prepare_ahc(embeddings, graph=graph, k=k, exact=exact)(threshold)


def prepare_ahc(
    embeddings: ArrayLike | UnitRows,
    *,
    graph: KnnGraph | None = None,
    k: int = 80,
    exact: bool | None = None,
) -> Callable[[float], NDArray[np.int64]]:
    """Grow the tree; returns the labels as a function of the threshold."""
    rows = UnitRows.of(embeddings)
    n_items = len(rows)
    if exact is None:
        exact = all_pairs_bytes(n_items) <= LIMIT
    if not exact:
        check_size(NAME, n_items, graph_bytes(n_items, k if graph is None else graph.k))
        return average_linkage(similarity_pairs(graph_of(rows, graph, k))).cut
    check_size(NAME, n_items, all_pairs_bytes(n_items))
    return _all_pairs(rows)


def _all_pairs(rows: UnitRows) -> Callable[[float], NDArray[np.int64]]:
    from scipy.cluster.hierarchy import fcluster, linkage

    if len(rows) == 1:  # SciPy's tree needs two
        return lambda threshold: np.zeros(1, np.int64)
    distances = np.subtract(1, all_similarities(rows), dtype=np.float64)
    tree = linkage(np.maximum(distances, 0, out=distances), "average")
    return lambda threshold: by_size(fcluster(tree, 1 - threshold, "distance"))


def all_pairs_bytes(n_items: int) -> int:
    """Bytes for the distances of all pairs and SciPy's copy of them, 8 each."""
    return 8 * n_items**2
