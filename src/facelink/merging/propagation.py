"""Merging by pseudo label propagation (section 3.4 of the paper).

Take the connected components of the links above a threshold. Those within a
maximum size are clusters; the others are cut again at a higher threshold, and
so on until none is left.

Seen from the top, this is one pass over the links in falling order: as the
threshold falls, components grow, and an item's cluster is its component at the
last level before that grew too large. So the work is one sort and one
union-find, whatever the number of levels.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from facelink.compiled import compiled
from facelink.errors import InputError
from facelink.links import Pairs
from facelink.merging.components import check_share


def merge_propagation(
    pairs: Pairs,
    *,
    threshold: float = 0.6,
    max_size: int = 2000,
    step: float = 0.1,
) -> NDArray[np.int64]:
    """Cut components that are too large at a rising threshold.

    Parameters
    ----------
    pairs : Pairs
    threshold : float
        The likelihood to start with; links below it never hold. Rising, it
        splits more.
    max_size : int
        Components within it are clusters. Falling, it cuts more of them apart. It
        should be more than one person can have: the reference code's 900 breaks
        up anyone with more photos.
    step : float
        The threshold goes this share of the way to 1 each time. Smaller steps
        cut oversized components more gently, and take longer.

    Returns
    -------
    (n,) int array of labels

    Notes
    -----
    A component that is too large even at likelihood 1 is one cluster. It
    always ends: the threshold reaches 1 as soon as no float32 is in between.
    """
    check_share("threshold", threshold)
    if not isinstance(max_size, int | np.integer) or max_size < 1:
        raise InputError(f"max_size should be a whole number from 1, got {max_size!r}.")
    if not isinstance(step, int | float | np.number) or not 0.001 <= step <= 1:
        raise InputError(f"step should be a number from 0.001 to 1, got {step!r}.")
    kept = pairs.at_least(threshold)
    levels = rising_thresholds(threshold, step)
    # The level of a link is the highest threshold that it reaches.
    level = np.searchsorted(levels, kept.likelihood, side="right") - 1
    order = np.argsort(-level, kind="stable")
    return _propagate(
        pairs.n_items,
        kept.first[order],
        kept.second[order],
        level[order],
        len(levels) - 1,
        max_size,
    )


def rising_thresholds(start: float, step: float) -> NDArray[np.float32]:
    """The thresholds, from ``start`` to 1, each a share of the way on from the one before."""
    levels = [np.float32(start)]
    gap = 1.0 - float(start)
    while levels[-1] < 1:
        gap *= 1 - step
        level = np.float32(1 - gap)
        if level > levels[-1]:
            levels.append(level)
    return np.array(levels, np.float32)


@compiled
def _propagate(n_items, first, second, level, top, max_size):
    parent = np.arange(n_items)
    size = np.ones(n_items, np.int64)
    labels = np.full(n_items, -1, np.int64)
    roots = np.arange(n_items)  # each item's component one level above
    stop = 0
    while stop < len(level):
        current = level[stop]
        while stop < len(level) and level[stop] == current:
            a, b = root(parent, first[stop]), root(parent, second[stop])
            if a != b:
                if size[a] < size[b]:
                    a, b = b, a
                parent[b] = a
                size[a] += size[b]
            stop += 1
        for i in range(n_items):
            mine = root(parent, i)
            if labels[i] < 0 and size[mine] > max_size:
                # Too large here, so what it was one level above is a cluster. Nothing is
                # above likelihood 1: what is too large there stays whole.
                labels[i] = mine if current == top else roots[i]
            roots[i] = mine
    for i in range(n_items):
        if labels[i] < 0:
            labels[i] = roots[i]
    return labels


@compiled
def root(parent, i):
    """The root of an item in a forest of parents, whose paths are shortened on the way."""
    while parent[i] != i:
        parent[i] = parent[parent[i]]
        i = parent[i]
    return i
