"""DBSCAN (Ester, Kriegel, Sander and Xu 1996) on the kNN graph.

An item is a core if at least m items, itself among them, are within the radius
ε. Cores within ε of each other are in one cluster, and with each core all items
within its ε; what no core reaches is noise. Distance is 1 − similarity.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from facelink.baselines.pairs import graph_of
from facelink.baselines.sizes import check_size, graph_bytes
from facelink.embeddings import UnitRows
from facelink.errors import InputError
from facelink.merging import by_size
from facelink.neighbors import KnnGraph

NAME = "DBSCAN"
GRID = tuple(round(0.08 + 0.04 * i, 2) for i in range(17))  # 0.08 to 0.72
COPY = 1e-6  # distance of copies; a stored 0 would be no neighbour


def dbscan(
    embeddings: ArrayLike | UnitRows,
    *,
    eps: float,
    graph: KnnGraph | None = None,
    k: int = 80,
    min_samples: int = 2,
    one_way: bool = False,
) -> NDArray[np.int64]:
    """Join neighbourhoods that are dense enough.

    Parameters
    ----------
    embeddings : (n, d) array
    eps : float
        ε, the radius, as a distance above 0. Rising, it merges more.
    graph : KnnGraph, optional
        Used in its full width; by default one is made.
    k : int
        Neighbours per item of the graph that is made; only they can be within
        the radius.
    min_samples : int
        m, at most k + 1. Rising, it takes more items for noise, and chains
        fewer people together. At 1 and 2 the clusters are those of `components`.
    one_way : bool
        True lets an item see its k neighbours, but not the items whose neighbour
        it is. Clusters then depend on the order of the items.

    Returns
    -------
    (n,) int array
        Labels from 0 for the largest cluster on; an item of noise has one of its own.

    Notes
    -----
    The source asks for all items within ε; here those count of which one is
    among the other's k neighbours. An item that several clusters reach and that
    is no core goes to the one found first.

    Takes time and memory linear in the n k neighbours, about 100 bytes for each.

    Examples
    --------
    >>> from facelink.baselines.dbscan import dbscan
    >>> dbscan([[1, 0], [1, 0.1], [0, 1]], eps=0.5)
    array([0, 0, 1])
    """
    return prepare_dbscan(embeddings, graph=graph, k=k, min_samples=min_samples, one_way=one_way)(
        eps
    )


def prepare_dbscan(
    embeddings: ArrayLike | UnitRows,
    *,
    graph: KnnGraph | None = None,
    k: int = 80,
    min_samples: int = 2,
    one_way: bool = False,
) -> Callable[[float], NDArray[np.int64]]:
    """Make the distances; returns the labels as a function of the radius."""
    rows = UnitRows.of(embeddings)
    check_size(NAME, len(rows), memory(len(rows), k if graph is None else graph.k))
    graph = graph_of(rows, graph, k)
    distances = _one_way(graph)
    if not one_way:
        distances = distances.maximum(distances.T).tocsr()

    def labels_at(eps: float) -> NDArray[np.int64]:
        from sklearn.cluster import DBSCAN
        from sklearn.exceptions import EfficiencyWarning

        if not eps > 0:
            raise InputError(f"eps, the radius, should be a number above 0, got {eps!r}.")
        search = DBSCAN(eps=eps, min_samples=min_samples, metric="precomputed")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EfficiencyWarning)  # it sorts the rows by distance
            return by_size(noise_alone(search.fit_predict(distances)))

    return labels_at


def _one_way(graph: KnnGraph) -> csr_array:
    """The distances from each item, in its row, to its neighbours."""
    starts = graph.k * np.arange(graph.n_items + 1)
    values = np.maximum(1 - graph.similarities.ravel(), COPY)
    shape = (graph.n_items, graph.n_items)
    return csr_array((values, graph.indices.ravel(), starts), shape=shape)


def noise_alone(labels: NDArray[np.integer]) -> NDArray[np.int64]:
    """Give every item of noise (-1) a label of its own."""
    noise = labels < 0
    alone = labels.astype(np.int64)
    alone[noise] = labels.max() + 1 + np.arange(noise.sum())
    return alone


def memory(n_items: int, k: int = 80) -> int:
    """Bytes for the graph, the distances and those within the radius."""
    return graph_bytes(n_items, k) * 3 // 2
