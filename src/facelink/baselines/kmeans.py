r"""K-means (Lloyd 1982), with the seeding of Arthur and Vassilvitskii (2007).

Items of unit length are put to the nearest of K centres, and the centres to the
mean of their items, in turns; each turn lowers

.. math:: \sum_i \min_c \lVert x_i - \mu_c \rVert^2
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import threadpool_limits

from facelink.baselines.sizes import check_size
from facelink.embeddings import UnitRows
from facelink.errors import InputError
from facelink.merging import by_size
from facelink.neighbors import KnnGraph

NAME = "K-means"


def kmeans(
    embeddings: ArrayLike | UnitRows,
    *,
    n_clusters: int,
    graph: KnnGraph | None = None,
    seed: int = 0,
) -> NDArray[np.int64]:
    """Put every item to the nearest of a given number of centres.

    Parameters
    ----------
    embeddings : (n, d) array
    n_clusters : int
        K. Rising, it splits more; from the number of items on, each is alone.
    graph : KnnGraph, optional
        Not used; every method takes one.
    seed : int
        Of the first centres. The same seed gives the same labels.

    Returns
    -------
    (n,) int array
        Labels from 0 for the largest cluster on.

    Notes
    -----
    The source leaves the first centres open: one greedy k-means++ seeding is
    used, not the best of several. Where fewer than K items are distinct, there
    are fewer clusters.

    Takes time n K d per turn, up to 300 turns; memory (n + 3 K) d floats.

    Examples
    --------
    >>> from facelink.baselines.kmeans import kmeans
    >>> kmeans([[1, 0], [1, 0.1], [0, 1]], n_clusters=2)
    array([0, 0, 1])
    """
    return prepare_kmeans(embeddings, graph=graph, seed=seed)(n_clusters)


def prepare_kmeans(
    embeddings: ArrayLike | UnitRows, *, graph: KnnGraph | None = None, seed: int = 0
) -> Callable[[int], NDArray[np.int64]]:
    """Bring the rows to unit length; returns the labels as a function of their number."""
    rows = UnitRows.of(embeddings)
    check_size(NAME, len(rows), memory(len(rows), rows.shape[1]))
    return lambda n_clusters: by_size(nearest_centers(rows[slice(None)], n_clusters, seed=seed))


def memory(n_items: int, dimension: int = 512) -> int:
    """Bytes for the rows, as they came and as float32, and as many for centres and distances."""
    return 16 * n_items * dimension


def nearest_centers(
    points: NDArray[np.floating], n_clusters: int, *, seed: int
) -> NDArray[np.int32]:
    """K-means of rows as they are: the number of each one's centre."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    check_count(n_clusters)
    n_clusters = int(min(n_clusters, len(points)))
    # The seeding multiplies thousands of small matrices; on two threads of a busy machine
    # they wait for each other 25 times as long. The turns after it have threads of their own.
    with threadpool_limits(limits=1, user_api="blas"), warnings.catch_warnings():
        # Says that copies make fewer clusters than asked for, which is right.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return KMeans(n_clusters, n_init=1, random_state=seed).fit_predict(points)


def check_count(n_clusters: int) -> None:
    """Refuse what is not a number of clusters."""
    whole = isinstance(n_clusters, int | np.integer) and not isinstance(n_clusters, bool)
    if not whole or n_clusters < 1:
        raise InputError(
            f"n_clusters should be a whole number from 1, got {n_clusters!r}. Where nobody knows "
            "the number of people, use a method with a threshold."
        )
