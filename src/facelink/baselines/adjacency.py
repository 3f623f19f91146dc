"""The kNN graph as the face methods read it: so many neighbours, each pair from both sides."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from facelink.baselines.pairs import graph_of
from facelink.embeddings import UnitRows
from facelink.errors import InputError
from facelink.links import Pairs
from facelink.neighbors import KnnGraph


def nearest_columns(name: str, rows: UnitRows, graph: KnnGraph | None, k: int) -> KnnGraph:
    """The k nearest neighbours of every item: the graph's first columns, or one made now.

    Refuses a graph that is narrower than k, unless it lists all other items.
    """
    graph = graph_of(rows, graph, k)
    if graph.k < min(k, len(rows) - 1):
        raise InputError(
            f"{name} reads k = {k} neighbours per item, the kNN graph given has {graph.k}. "
            f"Make it with knn_graph(embeddings, {k}), leave it out, or pass a smaller k."
        )
    return graph.narrowed(k)


class BothSides(NamedTuple):
    """The pairs around each item: those of item i are ``starts[i]`` to ``starts[i + 1]``."""

    starts: NDArray[np.int64]  # (n + 1,)
    others: NDArray[np.int32]  # (2 m,) the other item of the pair, ascending in each row
    slots: NDArray[np.int64]  # (2 m,) 2 * pair, + 1 where the other item is the pair's second


def both_sides(pairs: Pairs) -> BothSides:
    """List each pair with both of its items."""
    slots = 2 * np.arange(len(pairs.first), dtype=np.int64)
    rows = np.concatenate([pairs.first, pairs.second])
    columns = np.concatenate([pairs.second, pairs.first])
    shape = (pairs.n_items, pairs.n_items)
    table = coo_array((np.concatenate([slots + 1, slots]), (rows, columns)), shape=shape).tocsr()
    table.sort_indices()
    return BothSides(table.indptr.astype(np.int64), table.indices.astype(np.int32), table.data)


def join(
    n_items: int, first: NDArray[np.integer], second: NDArray[np.integer]
) -> NDArray[np.int64]:
    """Merge transitively: everything joined by a chain of pairs has one label."""
    links = coo_array((np.ones(len(first), np.int8), (first, second)), shape=(n_items, n_items))
    return connected_components(links, directed=False)[1].astype(np.int64)
