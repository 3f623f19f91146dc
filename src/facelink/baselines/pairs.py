"""The similarities that the methods start from: of neighbours, or of all pairs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from facelink.compiled import blocks
from facelink.embeddings import BLOCK_BYTES, UnitRows
from facelink.errors import InputError
from facelink.links.pairs import Pairs, join_directions
from facelink.neighbors import KnnGraph, knn_graph


def similarity_pairs(graph: KnnGraph) -> Pairs:
    """Each two items of which one is the other's neighbour, once, with their similarity.

    The similarity takes the place of the likelihood, and may be negative.

    Examples
    --------
    >>> import numpy as np, facelink
    >>> angles = np.radians([0, 60, 90])
    >>> graph = facelink.knn_graph(np.c_[np.cos(angles), np.sin(angles)], k=1)
    >>> pairs = similarity_pairs(graph)
    >>> pairs.first, pairs.second, pairs.likelihood.round(3)
    (array([0, 1], dtype=int32), array([1, 2], dtype=int32), array([0.5  , 0.866], dtype=float32))
    """
    return join_directions(graph, graph.similarities)


def graph_of(rows: UnitRows, graph: KnnGraph | None, k: int) -> KnnGraph:
    """The graph given, if it is of these items, or else one of k neighbours made now."""
    if graph is None:
        return knn_graph(rows, k)
    if graph.n_items != len(rows):
        raise InputError(
            f"The kNN graph is of {graph.n_items:,} items, the embeddings are of {len(rows):,}. "
            "Make the graph from these embeddings, or leave it out."
        )
    return graph


def all_similarities(rows: UnitRows) -> NDArray[np.float32]:
    """The similarity of every two items, as SciPy orders them: (0, 1), (0, 2), …, (1, 2), …

    Takes n² d multiplications and 2 n² bytes.
    """
    n_items = len(rows)
    similarities = np.empty(n_items * (n_items - 1) // 2, np.float32)
    everyone = rows[slice(None)]
    end = 0
    for block in blocks(n_items, max(1, BLOCK_BYTES // (4 * n_items))):
        table = everyone[block] @ everyone[block.start :].T  # (block, items from its first on)
        for row, others in enumerate(table):
            start, end = end, end + len(others) - row - 1
            similarities[start:end] = others[row + 1 :]
    return similarities
