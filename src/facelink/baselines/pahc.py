r"""Proximity-aware hierarchical clustering (Lin, Chen and Chellappa, *A proximity-aware
hierarchical clustering of faces*, 2017).

For each item a linear support vector machine of squared hinge loss separates its
neighbourhood (y = 1) from local negatives (y = −1); with z = (x, 1) and u = (w, b),

.. math::

    \min_u \tfrac12 u \cdot u + C_p \sum_{y_r = 1} \max(0, 1 - u \cdot z_r)^2
                              + C_n \sum_{y_r = -1} \max(0, 1 + u \cdot z_r)^2
    \qquad C_p = C \frac{N_p + N_n}{N_p}, \; C_n = C \frac{N_p + N_n}{N_n}

Two items have the similarity s(i, j), the mean margin of each one's machine on the
other's neighbourhood (`facelink.baselines.neighborhoods`), brought into bounds by
½ + arctan(s) / π. Average linkage of these similarities gives the clusters.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facelink.baselines.adjacency import nearest_columns
from facelink.baselines.linkage import average_linkage
from facelink.baselines.neighborhoods import describe_neighborhoods, mutual_similarity, with_itself
from facelink.baselines.pairs import similarity_pairs
from facelink.baselines.sizes import check_size
from facelink.compiled import compiled
from facelink.embeddings import UnitRows
from facelink.errors import InputError
from facelink.links import Pairs
from facelink.neighbors import KnnGraph

# Low ones too: where people have more photos than k, most of a cluster's pairs count as 0.
GRID: tuple[float, ...] = (
    *(0.01, 0.015, 0.025, 0.04, 0.06, 0.1, 0.14, 0.18, 0.22, 0.26),
    *(0.3, 0.34, 0.38, 0.42, 0.46, 0.5, 0.54, 0.58, 0.62, 0.66, 0.72),
)

TOLERANCE = 1e-3  # of the margins; the similarities are read to about that
MAX_ROUNDS = 1000


def pahc(
    embeddings: ArrayLike | UnitRows,
    *,
    threshold: float,
    graph: KnnGraph | None = None,
    k: int = 200,
    n_near: int = 3,
    n_negative: int = 40,
    c: float = 1.0,
) -> NDArray[np.int64]:
    """Average linkage of how well support vector machines take one's neighbours for the other's.

    Parameters
    ----------
    embeddings : (n, d) array
    threshold : float
        Clusters with at least this average similarity are merged. Rising, it splits more.
    graph : KnnGraph, optional
        At least k wide; made from the embeddings by default.
    k : int
        Neighbours per item: the pairs that have a similarity, and where negatives are from.
    n_near : int
        Neighbours in a neighbourhood, beside the item itself. More of them make it
        smoother, and include strangers sooner where people have few photos.
    n_negative : int
        Negatives per machine, the farthest of the k neighbours.
    c : float
        C above. Rising, a machine follows its examples more closely.

    Returns
    -------
    (n,) int array
        Labels from 0 for the largest cluster on; an item alone has one of its own.

    Notes
    -----
    The source takes negatives from outside the neighbourhood. Here they are the
    farthest of the k neighbours: the nearest ones after the neighbourhood are too often
    the same person, random ones say nothing local. In a collection of fewer items they
    are what neighbours there are beyond the neighbourhood, or none.

    The source names arctan as one way to bound the similarity; ½ + arctan / π puts it
    between 0 and 1. C and the sizes are open there, or not remembered: three neighbours
    did well here, and C from 0.1 to 10 did the same.

    The source compares all items; here those that are not neighbours count with the
    similarity 0, the least there is.

    The machines are solved in the dual by coordinate descent. For n items of m = 1 +
    n_near + n_negative examples that takes n m² (d + some 50) multiplications, and
    12 n d + 140 n k bytes: 2.2 GiB at 70,000 items of 512 dimensions.

    Examples
    --------
    >>> import facelink
    >>> from facelink.baselines.pahc import pahc
    >>> faces = facelink.load_sample()
    >>> labels = pahc(faces.embeddings, threshold=0.3)
    >>> facelink.metrics.bcubed(faces.labels, labels).f > 0.7
    True
    """
    prepared = prepare_pahc(embeddings, graph=graph, k=k, n_near=n_near, n_negative=n_negative, c=c)
    return prepared(threshold)


def prepare_pahc(
    embeddings: ArrayLike | UnitRows,
    *,
    graph: KnnGraph | None = None,
    k: int = 200,
    n_near: int = 3,
    n_negative: int = 40,
    c: float = 1.0,
) -> Callable[[float], NDArray[np.int64]]:
    """Build the tree once; returns the labels as a function of the threshold."""
    rows = UnitRows.of(embeddings)
    check_size("PAHC", len(rows), len(rows) * (12 * rows.shape[1] + 140 * k))
    graph = nearest_columns("PAHC", rows, graph, k)
    near = with_itself(graph, n_near)  # (n, N_p)
    n_negative = max(0, min(n_negative, graph.k - n_near))
    if c <= 0:
        raise InputError(f"c, the cost of a wrong margin, should be above 0, got {c!r}.")
    negatives = graph.indices[:, graph.k - n_negative :]  # (n, N_n)
    n_positive = near.shape[1]

    def describe(examples: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return separate(examples, n_positive, c)

    examples = np.concatenate([near, negatives], axis=1)
    views = describe_neighborhoods(rows, examples, n_positive, describe)
    pairs = similarity_pairs(graph)
    margin = mutual_similarity(pairs, views)
    likeness = (0.5 + np.arctan(margin) / np.pi).astype(np.float32)
    return average_linkage(Pairs(pairs.n_items, pairs.first, pairs.second, likeness)).cut


def separate(
    examples: NDArray[np.float32], n_positive: int, c: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Solve a machine for each set of examples (block, m, d), the first N_p of them positive.

    Returns the share of each example in w, (block, m), and b, (block,): with α the dual
    variables, u = Σ α_r y_r z_r.
    """
    n_examples = examples.shape[1]
    n_negative = n_examples - n_positive
    sign = np.where(np.arange(n_examples) < n_positive, 1.0, -1.0)
    cost = np.where(sign > 0, c * n_examples / n_positive, c * n_examples / max(n_negative, 1))
    products = examples @ examples.transpose(0, 2, 1) + 1.0  # (block, m, m), z_r · z_s
    alpha = _solve_machines(products * np.outer(sign, sign), 0.5 / cost)
    return alpha * sign, alpha @ sign


@compiled
def _solve_machines(signed, ridge):  # (block, m, m) y_r y_s z_r · z_s, (m,) 1 / 2C
    """Minimise ½ α·(Q + ridge)α − Σα over α ≥ 0, one coordinate after the other."""
    n_machines, n_examples = signed.shape[0], signed.shape[1]
    alpha = np.zeros((n_machines, n_examples))
    slope = np.empty(n_examples)
    for machine in range(n_machines):
        q, a = signed[machine], alpha[machine]
        slope[:] = -1.0
        for _ in range(MAX_ROUNDS):
            worst = 0.0
            for r in range(n_examples):
                curve = q[r, r] + ridge[r]
                value = max(0.0, a[r] - (slope[r] + ridge[r] * a[r]) / curve)
                change = value - a[r]
                if change != 0.0:
                    worst = max(worst, abs(change) * curve)
                    a[r] = value
                    for s in range(n_examples):
                        slope[s] += change * q[r, s]
            if worst < TOLERANCE:
                break
    return alpha
