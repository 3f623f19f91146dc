"""Threshold components: single linkage (Sneath 1957) on the kNN graph.

Neighbours with a similarity of at least the threshold are joined, and clusters
are what is joined by a chain of them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facelink.baselines.pairs import graph_of, similarity_pairs
from facelink.baselines.sizes import check_size, graph_bytes
from facelink.embeddings import UnitRows
from facelink.merging import by_size
from facelink.merging.components import merge_components
from facelink.neighbors import KnnGraph

NAME = "Threshold components"
GRID = tuple(round(0.2 + 0.02 * i, 2) for i in range(38))  # 0.20 to 0.94


def components(
    embeddings: ArrayLike | UnitRows,
    *,
    threshold: float,
    graph: KnnGraph | None = None,
    k: int = 80,
) -> NDArray[np.int64]:
    """Join all neighbours above a similarity.

    Parameters
    ----------
    embeddings : (n, d) array
    threshold : float
        The lowest similarity of neighbours that are joined, from 0 to 1. Rising,
        it splits more.
    graph : KnnGraph, optional
        Used in its full width; by default one is made.
    k : int
        Neighbours per item of the graph that is made.

    Returns
    -------
    (n,) int array
        Labels from 0 for the largest cluster on; an item alone has one of its own.

    Notes
    -----
    Takes time and memory linear in the n k neighbours, about 70 bytes for each.

    Examples
    --------
    >>> from facelink.baselines.components import components
    >>> components([[1, 0], [1, 0.1], [0, 1]], threshold=0.5)
    array([0, 0, 1])
    """
    return prepare_components(embeddings, graph=graph, k=k)(threshold)


def prepare_components(
    embeddings: ArrayLike | UnitRows, *, graph: KnnGraph | None = None, k: int = 80
) -> Callable[[float], NDArray[np.int64]]:
    """Find the pairs; returns the labels as a function of the threshold."""
    rows = UnitRows.of(embeddings)
    check_size(NAME, len(rows), memory(len(rows), k if graph is None else graph.k))
    pairs = similarity_pairs(graph_of(rows, graph, k))
    return lambda threshold: by_size(merge_components(pairs, threshold=threshold))


def memory(n_items: int, k: int = 80) -> int:
    """Bytes for the graph and its pairs."""
    return graph_bytes(n_items, k)
