r"""Spectral clustering (Ng, Jordan and Weiss 2001; Shi and Malik 2000) of the kNN graph.

With W the similarities of neighbours and D the diagonal of its row sums, the K
eigenvectors of the largest eigenvalues of

.. math:: D^{-1/2} W D^{-1/2}

(the smallest of the normalised Laplacian, which is I minus this) are the columns
of a table. Its rows, brought to unit length, are clustered by K-means.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh
from scipy.sparse import csr_array, diags_array
from scipy.sparse.linalg import ArpackNoConvergence, eigsh

from facelink.baselines.kmeans import check_count, nearest_centers
from facelink.baselines.pairs import graph_of, similarity_pairs
from facelink.baselines.sizes import check_size, graph_bytes
from facelink.embeddings import UnitRows
from facelink.merging import by_size
from facelink.neighbors import KnnGraph

NAME = "Spectral"
NEXT_TO_0 = float(np.finfo(np.float32).tiny)
SMALL = 100  # items; below it all eigenvectors are found at once
TOLERANCE = 1e-3  # of the eigenvalues; the labels were the same as at the machine's precision


def spectral(
    embeddings: ArrayLike | UnitRows,
    *,
    n_clusters: int,
    graph: KnnGraph | None = None,
    k: int = 80,
    seed: int = 0,
) -> NDArray[np.int64]:
    """Cluster items by the slowest modes of a random walk among neighbours.

    Parameters
    ----------
    embeddings : (n, d) array
    n_clusters : int
        K, also the number of eigenvectors. Rising, it splits more.
    graph : KnnGraph, optional
        Used in its full width; by default one is made.
    k : int
        Neighbours per item of the graph that is made. More of them tell fewer
        groups apart, and more surely.
    seed : int
        Of K-means and of the search for eigenvectors.

    Returns
    -------
    (n,) int array
        Labels from 0 for the largest cluster on.

    Notes
    -----
    The sources leave the affinity open: W is max(similarity, 0) where one item
    is among the other's neighbours, else 0. An item with no neighbour of
    positive similarity has no place in the spectrum: it is alone, and not one
    of the K.

    Eigenvectors take a time of about n K² and 24 n K bytes, K-means n K² per turn.

    Examples
    --------
    >>> from facelink.baselines.spectral import spectral
    >>> spectral([[1, 0], [1, 0.1], [0, 1], [0.1, 1], [0.2, 1]], n_clusters=2, k=2)
    array([1, 1, 0, 0, 0])
    """
    return prepare_spectral(embeddings, graph=graph, k=k, seed=seed)(n_clusters)


def prepare_spectral(
    embeddings: ArrayLike | UnitRows,
    *,
    graph: KnnGraph | None = None,
    k: int = 80,
    seed: int = 0,
) -> Callable[[int], NDArray[np.int64]]:
    """Make the normalised affinity; returns the labels as a function of their number.

    The function keeps the most eigenvectors it was asked for and serves smaller
    numbers from them: ask for the largest first. (Of equal eigenvalues the
    vectors, and so the labels, can then be others than when asked for alone.)
    """
    rows = UnitRows.of(embeddings)
    check_size(NAME, len(rows), graph_bytes(len(rows), k if graph is None else graph.k))
    pairs = similarity_pairs(graph_of(rows, graph, k))
    affinity = pairs.at_least(NEXT_TO_0).both_ways().astype(np.float64)
    degree = np.asarray(affinity.sum(axis=1)).ravel()
    connected = np.flatnonzero(degree > 0)
    scale = diags_array(1 / np.sqrt(degree[connected]))
    walk = (scale @ affinity[connected][:, connected] @ scale).tocsr()
    widest = np.empty((len(connected), 0))

    def labels_of(n_clusters: int) -> NDArray[np.int64]:
        nonlocal widest
        check_count(n_clusters)
        labels = np.arange(len(rows))  # the unconnected keep these
        n_clusters = min(n_clusters, len(connected))
        if n_clusters == 0:
            return by_size(labels)
        check_size(NAME, len(rows), vector_bytes(len(rows), n_clusters))
        if widest.shape[1] < n_clusters:
            widest = leading_vectors(walk, n_clusters, seed=seed)
        points = widest[:, :n_clusters]  # (connected, K)
        lengths = np.linalg.norm(points, axis=1, keepdims=True)
        points = points / np.maximum(lengths, NEXT_TO_0)
        labels[connected] = len(rows) + nearest_centers(points, n_clusters, seed=seed)
        return by_size(labels)

    return labels_of


def leading_vectors(matrix: csr_array, count: int, *, seed: int) -> NDArray[np.float64]:
    """The eigenvectors of a symmetric matrix, (n, count), by falling eigenvalue."""
    n_items = matrix.shape[0]
    if n_items < SMALL or 2 * count > n_items:
        last = (n_items - count, n_items - 1)
        return eigh(matrix.toarray(), subset_by_index=last)[1][:, ::-1]
    start = np.random.default_rng(seed).normal(size=n_items)
    try:
        values, vectors = eigsh(matrix, k=count, which="LA", v0=start, tol=TOLERANCE)
    except ArpackNoConvergence as some:  # those found so far tell the most
        values, vectors = some.eigenvalues, some.eigenvectors
    return vectors[:, np.argsort(-values, kind="stable")]


def vector_bytes(n_items: int, n_clusters: int) -> int:
    """Bytes for K eigenvectors and the 2 K vectors that they are found among, or for all n."""
    return 24 * n_items * min(n_clusters, n_items)
