r"""Affinity propagation (Frey and Dueck 2007).

Items choose exemplars among themselves by messages over the similarities s(i, j):

.. math::

    r(i, j) &= s(i, j) - \max_{l \ne j} \left( a(i, l) + s(i, l) \right) \\
    a(i, j) &= \min \Bigl( 0, r(j, j) + \sum_{l \notin \{i, j\}} \max(0, r(l, j)) \Bigr),
    \quad a(j, j) = \sum_{l \ne j} \max(0, r(l, j))

each damped, λ of the old message and 1 − λ of the new. The preference s(j, j),
one for all, says how readily an item becomes an exemplar.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facelink.baselines.dbscan import noise_alone
from facelink.baselines.pairs import all_similarities
from facelink.baselines.sizes import check_size
from facelink.embeddings import UnitRows
from facelink.merging import by_size
from facelink.merging.components import check_share
from facelink.neighbors import KnnGraph

NAME = "Affinity Propagation"
GRID = (0.5, 0.9, 0.97, 0.99)  # few: each takes minutes from 10,000 items on
TURNS = 300  # at most
SETTLED = 50  # turns without another exemplar; damped by 0.9, messages have not arrived after 15


def affinity_propagation(
    embeddings: ArrayLike | UnitRows,
    *,
    preference: float,
    graph: KnnGraph | None = None,
    damping: float = 0.9,
    seed: int = 0,
) -> NDArray[np.int64]:
    """Let items choose exemplars; those of one exemplar are a cluster.

    Parameters
    ----------
    embeddings : (n, d) array
    preference : float
        As a quantile of the similarities of all pairs, from 0 (the lowest) to 1.
        Rising, it splits more. The source proposes the median, 0.5, for a
        moderate number of clusters.
    graph : KnnGraph, optional
        Not used; every method takes one.
    damping : float
        λ, from 0.5 to 1. Rising, it swings less and takes longer.
    seed : int
        Of the noise, as small as rounding, that breaks ties.

    Returns
    -------
    (n,) int array
        Labels from 0 for the largest cluster on.

    Notes
    -----
    The source's similarity is the negative squared distance; of unit vectors
    that is 2 s − 2 with s their cosine, which gives the same clusters when the
    preference is a quantile. What is not settled after 500 turns is taken as it
    stands; without an exemplar by then, every item is alone. Where all pairs
    are equally similar (two items, or copies of one) there is one cluster.

    Takes time n² per turn and about 32 n² bytes: 20,000 items at most.

    Examples
    --------
    >>> from facelink.baselines.affinity_propagation import affinity_propagation
    >>> affinity_propagation([[1, 0], [1, 0.1], [0, 1], [0.1, 1], [0.2, 1]], preference=0.5)
    array([1, 1, 0, 0, 0])
    """
    return prepare_affinity_propagation(embeddings, graph=graph, damping=damping, seed=seed)(
        preference
    )


def prepare_affinity_propagation(
    embeddings: ArrayLike | UnitRows,
    *,
    graph: KnnGraph | None = None,
    damping: float = 0.9,
    seed: int = 0,
) -> Callable[[float], NDArray[np.int64]]:
    """Compare all pairs; returns the labels as a function of the preference."""
    rows = UnitRows.of(embeddings)
    check_size(NAME, len(rows), memory(len(rows)))
    similarities = all_similarities(rows)

    def labels_at(preference: float) -> NDArray[np.int64]:
        from scipy.spatial.distance import squareform
        from sklearn.cluster import affinity_propagation as propagate

        check_share("preference", preference)
        if len(rows) == 1:
            return np.zeros(1, np.int64)
        with warnings.catch_warnings():
            # Not settled, or all equally similar: what is done then is said above.
            warnings.simplefilter("ignore", UserWarning)
            _, labels = propagate(
                squareform(similarities, checks=False),  # (n, n), with the diagonal to be set
                preference=np.quantile(similarities, preference),
                damping=damping,
                max_iter=TURNS,
                convergence_iter=SETTLED,
                copy=False,
                random_state=seed,
            )
        return by_size(noise_alone(labels))

    return labels_at


def memory(n_items: int) -> int:
    """Bytes for three tables of messages, 8 each, and the similarities, 4 and 2."""
    return 32 * n_items**2
