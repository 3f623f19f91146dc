"""How well predicted clusters agree with the true identities.

All of them are read off the contingency table, how many items of identity a are
in cluster b, which has at most n cells that are not empty: linear in the items
once the labels are numbered.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facelink.errors import InputError
from facelink.labels import as_labels

__all__ = ["Scores", "bcubed", "nmi", "pairwise"]


class Scores(NamedTuple):
    """Precision, recall and their harmonic mean."""

    precision: float
    recall: float
    f: float


class Contingency(NamedTuple):
    """The cells of the contingency table that are not empty, and its margins."""

    n_items: int
    cells: NDArray[np.float64]  # (m,) items in each cell
    identity_sizes: NDArray[np.float64]  # (m,) items of the cell's identity
    cluster_sizes: NDArray[np.float64]  # (m,) items of the cell's cluster
    all_identity_sizes: NDArray[np.float64]
    all_cluster_sizes: NDArray[np.float64]


def bcubed(truth: ArrayLike, predicted: ArrayLike, *, without_singletons: bool = False) -> Scores:
    """BCubed precision, recall and F: for each item, how pure its cluster is and how much of
    its identity is in it (section 4.1 of the paper).

    Parameters
    ----------
    truth, predicted : (n,) arrays of labels
        Numbers or text. Every label is a cluster: there is no label for noise.
    without_singletons : bool
        Leave out the items that are alone in their predicted cluster, as figure
        5 of the paper does. With none left all scores are 0.

    Examples
    --------
    >>> from facelink.metrics import bcubed
    >>> bcubed([0, 0, 1, 1], [0, 0, 0, 1]).precision
    0.6666666666666666
    """
    table = _contingency(truth, predicted, without_singletons)
    if table.n_items == 0:
        return Scores(0.0, 0.0, 0.0)
    precision = float((table.cells**2 / table.cluster_sizes).sum()) / table.n_items
    recall = float((table.cells**2 / table.identity_sizes).sum()) / table.n_items
    return Scores(precision, recall, _harmonic_mean(precision, recall))


def pairwise(truth: ArrayLike, predicted: ArrayLike, *, without_singletons: bool = False) -> Scores:
    """Precision, recall and F over the pairs of items in one cluster, or of one identity.

    Where there is no such pair to be wrong or missed, precision or recall is 1.
    Parameters as for `bcubed`.

    Examples
    --------
    >>> from facelink.metrics import pairwise
    >>> pairwise([0, 0, 1, 1], [0, 0, 0, 1]).recall
    0.5
    """
    table = _contingency(truth, predicted, without_singletons)
    if table.n_items == 0:
        return Scores(0.0, 0.0, 0.0)
    together = _pairs(table.cells)
    predicted_pairs, true_pairs = _pairs(table.all_cluster_sizes), _pairs(table.all_identity_sizes)
    precision = together / predicted_pairs if predicted_pairs else 1.0
    recall = together / true_pairs if true_pairs else 1.0
    return Scores(precision, recall, _harmonic_mean(precision, recall))


def nmi(
    truth: ArrayLike,
    predicted: ArrayLike,
    *,
    average: str = "geometric",
    without_singletons: bool = False,
) -> float:
    """Mutual information, divided by the mean of the two entropies.

    Parameters
    ----------
    average : {"geometric", "arithmetic"}
        The mean: geometric in the paper, arithmetic in scikit-learn since 0.22.

    Other parameters as for `bcubed`. Two labelings without information (one
    cluster each) agree: 1.

    Examples
    --------
    >>> from facelink.metrics import nmi
    >>> nmi([0, 0, 1, 1], ["b", "b", "a", "a"])
    1.0
    """
    if average not in ("geometric", "arithmetic"):
        raise InputError(f"average should be geometric or arithmetic, got {average!r}.")
    table = _contingency(truth, predicted, without_singletons)
    if table.n_items == 0:
        return 0.0
    joint = table.cells / table.n_items
    expected = table.identity_sizes * table.cluster_sizes / table.n_items**2
    information = max(0.0, float((joint * np.log(joint / expected)).sum()))
    entropies = [
        _entropy(sizes / table.n_items)
        for sizes in (table.all_identity_sizes, table.all_cluster_sizes)
    ]
    if entropies[0] == entropies[1] == 0.0:
        return 1.0
    if average == "geometric":
        mean = float(np.sqrt(entropies[0] * entropies[1]))
    else:
        mean = sum(entropies) / 2
    return min(1.0, information / mean) if mean else 0.0


def _contingency(truth: ArrayLike, predicted: ArrayLike, without_singletons: bool) -> Contingency:
    identities, clusters = as_labels(truth, "truth"), as_labels(predicted, "predicted")
    if len(identities) != len(clusters):
        raise InputError(
            "truth and predicted should have one label per item each, got "
            f"{len(identities):,} and {len(clusters):,}."
        )
    if len(identities) == 0:
        raise InputError("truth and predicted are empty: expected at least one label each.")
    _, a = np.unique(identities, return_inverse=True)
    _, b, sizes = np.unique(clusters, return_inverse=True, return_counts=True)
    if without_singletons:
        kept = sizes[b] > 1
        a, b = a[kept], b[kept]
    n_identities, n_clusters = int(a.max(initial=-1)) + 1, int(b.max(initial=-1)) + 1
    identity_sizes = np.bincount(a, minlength=n_identities).astype(float)
    cluster_sizes = np.bincount(b, minlength=n_clusters).astype(float)
    keys, cells = np.unique(a * np.int64(max(n_clusters, 1)) + b, return_counts=True)
    return Contingency(
        len(a),
        cells.astype(float),
        identity_sizes[keys // max(n_clusters, 1)],
        cluster_sizes[keys % max(n_clusters, 1)],
        identity_sizes[identity_sizes > 0],
        cluster_sizes[cluster_sizes > 0],
    )


def _pairs(sizes: NDArray[np.float64]) -> float:
    return float((sizes * (sizes - 1)).sum())


def _entropy(shares: NDArray[np.float64]) -> float:
    return max(0.0, float(-(shares * np.log(shares)).sum()))


def _harmonic_mean(a: float, b: float) -> float:
    return 2 * a * b / (a + b) if a + b else 0.0
