"""Merging by connected components: everything joined by a chain of likely links."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from facelink.errors import InputError
from facelink.links import Pairs


def merge_components(pairs: Pairs, *, threshold: float = 0.6) -> NDArray[np.int64]:
    """Cut the links below a likelihood and take the connected components of the rest.

    Parameters
    ----------
    pairs : Pairs
    threshold : float
        Links of at least this likelihood hold. Rising, it splits more.

    Returns
    -------
    (n,) int array of labels
    """
    check_share("threshold", threshold)
    links = pairs.at_least(threshold).matrix()
    links.data[:] = 1  # at threshold 0 a link may weigh nothing, but holds
    return connected_components(links, directed=False)[1].astype(np.int64)


def check_share(name: str, value: float) -> None:
    """Refuse what is not a number from 0 to 1."""
    if not isinstance(value, int | float | np.number) or not 0 <= value <= 1:
        raise InputError(f"{name} should be a number from 0 to 1, got {value!r}.")
