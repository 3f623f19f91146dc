r"""Deep density clustering (Lin, Chen, Castillo and Chellappa, *Deep density clustering of
unconstrained faces*, 2018).

For each item the smallest sphere around its neighbourhood, with a soft margin (the
support vector domain description of Tax and Duin, 2004):

.. math::

    \min_{R, a, \xi \ge 0} R^2 + \frac{1}{\nu m} \sum_r \xi_r
    \quad \text{with} \quad \|x_r - a\|^2 \le R^2 + \xi_r

whose centre is a = Σ β_r x_r, where β maximises Σ β_r x_r·x_r − β·Kβ over Σ β_r = 1,
0 ≤ β_r ≤ 1 / ν m. Two items have the similarity s(i, j), the mean product of each
one's centre with the other's neighbourhood (`facelink.baselines.neighborhoods`; the
function is ⟨a_i, x⟩). Average linkage of these similarities gives the clusters.
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

TOLERANCE = 1e-5  # of the products with the centre
MAX_STEPS = 1000


def ddc(
    embeddings: ArrayLike | UnitRows,
    *,
    threshold: float,
    graph: KnnGraph | None = None,
    k: int = 200,
    n_near: int = 3,
    softness: float = 0.5,
) -> NDArray[np.int64]:
    """Average linkage of how near each one's neighbourhood is to the other's sphere.

    Parameters
    ----------
    embeddings : (n, d) array
    threshold : float
        Clusters with at least this average similarity are merged. Rising, it splits more.
    graph : KnnGraph, optional
        At least k wide; made from the embeddings by default.
    k : int
        Neighbours per item: the pairs that have a similarity.
    n_near : int
        Neighbours in a neighbourhood, beside the item itself. More of them make it
        smoother, and include strangers sooner where people have few photos.
    softness : float
        ν, above 0 up to 1: at most this share of the neighbourhood is outside of its
        sphere. At 1 the centre is the mean; near 0 the sphere covers everything.

    Returns
    -------
    (n,) int array
        Labels from 0 for the largest cluster on; an item alone has one of its own.

    Notes
    -----
    From memory of the source, which could not be read again: the sphere is in the space
    of the embeddings itself (a linear kernel), where a centre is one vector and the
    similarity of two items two products; the source also considers Gaussian kernels.
    It is not said there, or not remembered, how large neighbourhoods and ν are: three
    neighbours and ν = ½ did well here, and ν matters little.

    The source compares all items; here those that are not neighbours count with the
    similarity 0, about what strangers have.

    The spheres are solved in the dual by moving weight between two examples at a time.
    Takes n k d multiplications, and 12 n d + 140 n k bytes: 2.2 GiB at 70,000 items of
    512 dimensions.

    Examples
    --------
    >>> import facelink
    >>> from facelink.baselines.ddc import ddc
    >>> faces = facelink.load_sample()
    >>> labels = ddc(faces.embeddings, threshold=0.3)
    >>> facelink.metrics.bcubed(faces.labels, labels).f > 0.7
    True
    """
    prepared = prepare_ddc(embeddings, graph=graph, k=k, n_near=n_near, softness=softness)
    return prepared(threshold)


def prepare_ddc(
    embeddings: ArrayLike | UnitRows,
    *,
    graph: KnnGraph | None = None,
    k: int = 200,
    n_near: int = 3,
    softness: float = 0.5,
) -> Callable[[float], NDArray[np.int64]]:
    """Build the tree once; returns the labels as a function of the threshold."""
    rows = UnitRows.of(embeddings)
    check_size("DDC", len(rows), len(rows) * (12 * rows.shape[1] + 140 * k))
    graph = nearest_columns("DDC", rows, graph, k)
    if not 0 < softness <= 1:
        raise InputError(f"softness should be a number above 0 and up to 1, got {softness!r}.")
    near = with_itself(graph, n_near)  # (n, m)

    def describe(examples: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return cover(examples, softness), np.zeros(len(examples))

    views = describe_neighborhoods(rows, near, near.shape[1], describe)
    pairs = similarity_pairs(graph)
    likeness = mutual_similarity(pairs, views)
    return average_linkage(Pairs(pairs.n_items, pairs.first, pairs.second, likeness)).cut


def cover(examples: NDArray[np.float32], softness: float) -> NDArray[np.float64]:
    """Find the smallest spheres around sets of unit vectors (block, m, d): β, (block, m)."""
    products = (examples @ examples.transpose(0, 2, 1)).astype(np.float64)  # (block, m, m)
    return _solve_spheres(products, 1 / (softness * examples.shape[1]))


@compiled
def _solve_spheres(products, cap):  # (block, m, m), 1 / ν m
    """Minimise ½ β·Kβ over Σβ = 1, 0 ≤ β ≤ cap, moving weight between two at a time.

    For unit vectors x·x is 1 and falls out of the dual. The centre's product with x is
    the slope of x's weight: what is nearer to the centre than needed gives weight to
    what is too far from it.
    """
    n_spheres, n_examples = products.shape[0], products.shape[1]
    beta = np.full((n_spheres, n_examples), 1.0 / n_examples)
    slope = np.empty(n_examples)
    for sphere in range(n_spheres):
        kernel, b = products[sphere], beta[sphere]
        for r in range(n_examples):
            slope[r] = kernel[r].mean()
        for _ in range(MAX_STEPS):
            giver, taker = -1, -1
            for r in range(n_examples):
                if b[r] > 0.0 and (giver < 0 or slope[r] > slope[giver]):
                    giver = r
                if b[r] < cap and (taker < 0 or slope[r] < slope[taker]):
                    taker = r
            if giver < 0 or taker < 0 or slope[giver] - slope[taker] < TOLERANCE:
                break
            curve = kernel[giver, giver] + kernel[taker, taker] - 2.0 * kernel[giver, taker]
            step = (slope[giver] - slope[taker]) / max(curve, 1e-12)
            if step >= b[giver] or step >= cap - b[taker]:
                step = min(b[giver], cap - b[taker])
            # Set to the bound exactly, or a rest of 1e-17 would be moved for ever.
            b[giver] = 0.0 if step == b[giver] else b[giver] - step
            b[taker] = cap if step == cap - b[taker] else b[taker] + step
            for r in range(n_examples):
                slope[r] += step * (kernel[taker, r] - kernel[giver, r])
    return beta
