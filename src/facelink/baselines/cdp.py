"""CDP's clustering (Zhan, Liu, Yan, Lin and Loy, *Consensus-Driven Propagation in Massive
Unlabeled Data for Face Recognition*, 2018) for one embedding.

Pairs of neighbours with a similarity of at least the threshold θ are links. The
connected components of the links are clusters if they have at most 600 items;
those that are larger are cut again with θ ← θ + 0.05 (1 − θ), and so on.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facelink.baselines.adjacency import nearest_columns
from facelink.baselines.pairs import similarity_pairs
from facelink.baselines.sizes import check_size
from facelink.embeddings import UnitRows
from facelink.merging import by_size
from facelink.merging.propagation import merge_propagation
from facelink.neighbors import KnnGraph

GRID: tuple[float, ...] = tuple(round(0.2 + 0.04 * i, 2) for i in range(19))  # 0.20 to 0.92


def cdp(
    embeddings: ArrayLike | UnitRows,
    *,
    threshold: float,
    graph: KnnGraph | None = None,
    k: int = 15,
    max_size: int = 600,
    step: float = 0.05,
) -> NDArray[np.int64]:
    """Take components of similar neighbours, and cut those that are too large.

    Parameters
    ----------
    embeddings : (n, d) array
    threshold : float
        The similarity to start with, from 0 to 1. Rising, it splits more.
    graph : KnnGraph, optional
        At least k wide; made from the embeddings by default.
    k : int
        Neighbours per item. More of them find more of a person's photos, and more
        chains from one person to another.
    max_size : int
        Components within it are clusters. Falling, it cuts more of them apart.
    step : float
        The share of the way to 1 that the threshold goes each time. Smaller steps
        cut large components more gently.

    Returns
    -------
    (n,) int array
        Labels from 0 for the largest cluster on; an item alone has one of its own.

    Notes
    -----
    The source's committee of several embeddings and its learned mediator are left
    out: there is one embedding, and no labels to learn from. Its code gives up
    after 100 rounds and makes one cluster of whatever is left; here the threshold
    rises until nothing is left but what is larger than ``max_size`` at similarity 1,
    which stays whole.

    Takes time and memory linear in the n k pairs, about 100 bytes for each.

    Examples
    --------
    >>> import facelink
    >>> from facelink.baselines.cdp import cdp
    >>> faces = facelink.load_sample()
    >>> labels = cdp(faces.embeddings, threshold=0.5)
    >>> facelink.metrics.bcubed(faces.labels, labels).f > 0.7
    True
    """
    return prepare_cdp(embeddings, graph=graph, k=k, max_size=max_size, step=step)(threshold)


def prepare_cdp(
    embeddings: ArrayLike | UnitRows,
    *,
    graph: KnnGraph | None = None,
    k: int = 15,
    max_size: int = 600,
    step: float = 0.05,
) -> Callable[[float], NDArray[np.int64]]:
    """Find the pairs once; returns the labels as a function of the threshold."""
    rows = UnitRows.of(embeddings)
    check_size("CDP", len(rows), 100 * len(rows) * k)
    pairs = similarity_pairs(nearest_columns("CDP", rows, graph, k))

    def labels_at(threshold: float) -> NDArray[np.int64]:
        merged = merge_propagation(pairs, threshold=threshold, max_size=max_size, step=step)
        return by_size(merged)

    return labels_at
