"""The map equation (Rosvall and Bergstrom 2008) on the kNN graph, without training.

Neighbours with a similarity of at least the threshold are linked, with the
similarity as weight; clusters are the modules that a random walk on the links
seldom leaves. See `facelink.merging.map_equation` for the formula.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facelink.baselines.pairs import graph_of, similarity_pairs
from facelink.baselines.sizes import check_size, graph_bytes
from facelink.embeddings import UnitRows
from facelink.merging import by_size
from facelink.merging.map_equation import merge_map_equation
from facelink.neighbors import KnnGraph

NAME = "Map equation"
GRID = tuple(round(0.2 + 0.04 * i, 2) for i in range(19))  # 0.20 to 0.92


def map_equation(
    embeddings: ArrayLike | UnitRows,
    *,
    threshold: float,
    graph: KnnGraph | None = None,
    k: int = 80,
    seed: int = 0,
) -> NDArray[np.int64]:
    """Find groups of similar neighbours that a random walk seldom leaves.

    Parameters
    ----------
    embeddings : (n, d) array
    threshold : float
        The lowest similarity of neighbours that are linked, from 0 to 1. Rising,
        it splits more.
    graph : KnnGraph, optional
        Used in its full width; by default one is made.
    k : int
        Neighbours per item of the graph that is made.
    seed : int
        Of the order in which items are tried.

    Returns
    -------
    (n,) int array
        Labels from 0 for the largest cluster on; an item alone has one of its own.

    Notes
    -----
    Links have no direction here, and modules no modules inside. Takes time
    linear in the n k neighbours, some dozens of times over, and about 140 bytes
    for each.

    Examples
    --------
    >>> from facelink.baselines.map_equation import map_equation
    >>> map_equation([[1, 0], [1, 0.1], [0, 1]], threshold=0.5)
    array([0, 0, 1])
    """
    return prepare_map_equation(embeddings, graph=graph, k=k, seed=seed)(threshold)


def prepare_map_equation(
    embeddings: ArrayLike | UnitRows,
    *,
    graph: KnnGraph | None = None,
    k: int = 80,
    seed: int = 0,
) -> Callable[[float], NDArray[np.int64]]:
    """Find the pairs; returns the labels as a function of the threshold."""
    rows = UnitRows.of(embeddings)
    check_size(NAME, len(rows), memory(len(rows), k if graph is None else graph.k))
    pairs = similarity_pairs(graph_of(rows, graph, k))
    return lambda threshold: by_size(merge_map_equation(pairs, threshold=threshold, seed=seed))


def memory(n_items: int, k: int = 80) -> int:
    """Bytes for the graph, and for another such while modules are cut into parts."""
    return 2 * graph_bytes(n_items, k)
