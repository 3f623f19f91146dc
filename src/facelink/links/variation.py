"""How photos of one person differ, learned from the clusters of the collection itself.

Age, pose, light and blur move an embedding, and not in all directions alike. Along those in
which photos of one person differ much, a difference says little; clusters show which these are.
Seen with the variation inside clusters brought to one length in all directions (within-class
covariance normalisation, Hatch and others 2006), and in the directions alone in which people
then differ most (linear discriminant analysis), the parts of one person come closer, and
strangers in the same light do not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from facelink.compiled import blocks, in_threads, one_blas_thread
from facelink.embeddings import Rows
from facelink.links.background import BLOCK_ROWS, Background
from facelink.links.clusters import sums_of
from facelink.scratch import scratch_array

Floats = NDArray[np.floating]
Labels = NDArray[np.int64]

DIRECTIONS = 128  # in which people differ most
EVEN = 0.3  # the share of the variation that is taken to be alike in all directions
FEW = 2  # of this many times as many photos as dimensions, a half more is taken to be so
SAMPLE = 8192  # items, whose variation is seen
LARGE_SAMPLE = 512  # of one cluster, at most
WIDEST, SPANNING = 512, 1024  # dimensions; wider rows are seen in what so many items span


class Whitened:
    """The rows of a collection with the variation inside clusters alike in all directions.

    Takes the place of `UnitRows` where rows are compared; its dimensions are fewer.

    Parameters
    ----------
    rows : Rows
    labels : (n,) int array
        The cluster of each item. Where all are alone the rows stay about as they are.
    n_threads : int, optional
        All cores of the process by default.

    Attributes
    ----------
    shape : (n, directions)
    background : Background
        What strangers look like in these rows.
    """

    def __init__(self, rows: Rows, labels: Labels, *, n_threads: int | None = None) -> None:
        chosen = _some_clusters(labels)
        _, cluster_of, sizes = np.unique(labels[chosen], return_inverse=True, return_counts=True)
        # Somebody with many photos counts for more, but not as much more.
        weights = (sizes[cluster_of] ** -0.5).astype(np.float32)
        with one_blas_thread:  # the result does not depend on how many there are
            matrix = _directions(rows[chosen], cluster_of, sizes, weights, n_threads=n_threads)
        self.shape = len(rows), matrix.shape[1]
        self.array = scratch_array(self.shape)

        def see(block: slice) -> None:
            seen = rows[block] @ matrix
            seen /= np.maximum(np.linalg.norm(seen, axis=1, keepdims=True), 1e-12)
            self.array[block] = seen

        for _ in in_threads(see, blocks(len(rows), BLOCK_ROWS), n_threads=n_threads):
            pass
        with one_blas_thread:
            self.background = Background.of_moments(self, self.array[chosen], weights)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: slice | NDArray[np.integer]) -> NDArray[np.float32]:
        return self.array[index]


def _some_clusters(labels: Labels) -> Labels:
    """The items of clusters drawn at random, whole but for very large ones."""
    rng = np.random.default_rng(0)
    _, cluster_of = np.unique(labels, return_inverse=True)
    rank = rng.permutation(cluster_of.max() + 1)[cluster_of]
    order = rng.permutation(len(labels))
    order = order[np.argsort(rank[order], kind="stable")]
    rank = rank[order]
    place = np.arange(len(order)) - np.searchsorted(rank, rank)  # within its cluster
    return np.sort(order[place < LARGE_SAMPLE][:SAMPLE])


def _directions(
    x: Floats,
    cluster_of: Labels,
    sizes: Labels,
    weights: Floats,
    *,
    n_threads: int | None = None,
) -> NDArray[np.float32]:
    """The matrix that brings rows to where they are compared: (d, directions)."""
    basis = None
    if x.shape[1] > min(WIDEST, len(x)):  # an eigendecomposition is cubic in the dimensions
        some = x[:: -(-len(x) // SPANNING)]
        values, axes = np.linalg.eigh((some @ some.T).astype(np.float64))
        there = np.flatnonzero(values > 1e-6 * values[-1])[-WIDEST:]
        basis = some.T @ (axes[:, there] / np.sqrt(values[there])).astype(np.float32)
        x = x @ basis
    dimension = x.shape[1]

    means = sums_of(x, cluster_of, len(sizes)) / sizes[:, None].astype(np.float32)
    n = sizes[cluster_of]
    # A mean of n photos lies too close to each of them.
    share = np.sqrt(weights * n / np.maximum(n - 1, 1)).astype(np.float32)
    residuals = (x - means[cluster_of]) * share[:, None]
    scatter = _scatter(residuals, n_threads)
    level = max(np.trace(scatter) / dimension, 1e-12)
    shown = len(x) - len(sizes)
    even = EVEN + (1 - EVEN) * FEW * dimension / (FEW * dimension + shown)
    within = (1 - even) * scatter / level + even * np.eye(dimension)

    x = (x - np.average(x, axis=0, weights=weights)) * np.sqrt(weights)[:, None]
    # Directions in which the variation inside clusters is 1, those in which people differ most.
    _, axes = eigh(_scatter(x, n_threads), within)
    matrix = axes[:, -DIRECTIONS:]
    return (matrix if basis is None else basis @ matrix).astype(np.float32)


def _scatter(x: NDArray[Any], n_threads: int | None) -> NDArray[np.float64]:
    """The sum of the squares of rows, as a matrix."""

    def squares(block: slice) -> NDArray[Any]:
        return x[block].T @ x[block]

    parts = in_threads(squares, blocks(len(x), BLOCK_ROWS), n_threads=n_threads)
    return sum((part.astype(np.float64) for part in parts), np.zeros((x.shape[1],) * 2))
