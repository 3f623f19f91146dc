"""Clusters as wholes: how large, how similar to strangers, how coherent."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from facelink.compiled import blocks, compiled
from facelink.embeddings import Rows
from facelink.links.background import BLOCK_ROWS, Background

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

USUAL, ASSUMED = 0.6, 50  # the coherence of a person, as if this many items had shown it
LEAST_COHERENCE = 0.05


class Clusters:
    """The clusters of a collection, and what their items have in common.

    Parameters
    ----------
    labels : (n,) int array
        The cluster of each item.
    rows : Rows
        The embeddings, or as they are seen.
    background : Background
        Of these rows.

    Attributes
    ----------
    cluster_of : (n,) int array
        Clusters numbered from 0.
    sizes : (clusters,) array
    sums : (clusters, d) array
        Of the embeddings of its items.
    centers : (clusters,) array
        How similar strangers are to its items, summed.
    usual : float
        The coherence of clusters in this collection.
    """

    def __init__(self, labels: Labels, rows: Rows, background: Background) -> None:
        _, self.cluster_of = np.unique(labels, return_inverse=True)
        self.sizes = np.bincount(self.cluster_of).astype(np.float64)
        self.sums = sums_of(rows, self.cluster_of, len(self.sizes))
        self.centers = np.bincount(self.cluster_of, weights=background.center)
        several = np.flatnonzero(self.sizes > 1)
        weights = self.sizes[several]
        # A few clusters, perhaps wrong ones, do not say what is usual.
        known = USUAL * ASSUMED + weights @ self.inside(several)
        self.usual = known / (ASSUMED + weights.sum())

    def inside(self, clusters: NDArray[np.int64]) -> Floats:
        """The mean similarity of the items of some clusters to each other."""
        n, squares = self.sizes[clusters], np.empty(len(clusters))
        for block in blocks(len(clusters), BLOCK_ROWS):
            sums = self.sums[clusters[block]]
            squares[block] = np.einsum("ij,ij->i", sums, sums)
        mean = (squares - n) / np.maximum(n * (n - 1), 1)
        return against(self.centers[clusters] / n, mean)

    def coherence(self, clusters: NDArray[np.int64]) -> Floats:
        """The same, drawn towards that of the others; a cluster of one has none of its own."""
        n = self.sizes[clusters]
        return np.maximum((self.inside(clusters) * (n - 1) + self.usual) / n, LEAST_COHERENCE)


def against(strangers: Floats, similarity: NDArray[np.floating]) -> Floats:
    """0: like strangers, 1: identical."""
    return (similarity - strangers) / (1 - strangers)


def sums_of(rows: Rows, labels: Labels, n_clusters: int) -> NDArray[np.float32]:
    """The sum of the embeddings of each cluster."""
    sums = np.zeros((n_clusters, rows.shape[1]), np.float32)
    for block in blocks(len(labels), BLOCK_ROWS):
        mine = labels[block]
        _add_rows(rows[block], mine, np.argsort(mine, kind="stable"), sums)
    return sums


@compiled
def _add_rows(rows, labels, order, sums):
    """Those of one cluster are added up before they are added to others: it rounds less."""
    total = np.zeros(rows.shape[1], np.float64)
    for place in range(len(order)):
        i = order[place]
        for c in range(len(total)):
            total[c] += rows[i, c]
        if place + 1 == len(order) or labels[order[place + 1]] != labels[i]:
            for c in range(len(total)):
                sums[labels[i], c] += total[c]
                total[c] = 0
