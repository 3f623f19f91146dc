"""Stage 4: from links to clusters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import NDArray

from facelink.errors import InputError
from facelink.links import Links, Pairs
from facelink.merging.components import merge_components
from facelink.merging.fragments import join_fragments
from facelink.merging.map_equation import merge_map_equation
from facelink.merging.propagation import merge_propagation

__all__ = [
    "METHODS",
    "by_size",
    "check_merging",
    "join_fragments",
    "merge_links",
]

METHODS: dict[str, Callable[..., NDArray[np.int64]]] = {
    "map-equation": merge_map_equation,
    "propagation": merge_propagation,
    "components": merge_components,
}


def merge_links(links: Links, method: str = "map-equation", **options: Any) -> NDArray[np.int64]:
    """Merge links into clusters.

    Parameters
    ----------
    links : Links
        A pair seen from both sides counts with the mean of its two
        likelihoods, a pair seen from one side with the one it has.
    method : {"map-equation", "propagation", "components"}
        ``"components"`` takes the connected components of the links from a
        likelihood on. ``"propagation"``, the paper's, takes those apart again,
        at ever higher likelihoods, that are larger than a maximum size.
        ``"map-equation"`` finds the groups that a random walk on the links
        seldom leaves: a few wrong links do not join two people.
    **options
        Of the method: see `facelink.merging.map_equation.merge_map_equation`,
        `facelink.merging.propagation.merge_propagation` and
        `facelink.merging.components.merge_components`.

    Returns
    -------
    (n,) int array
        Labels from 0 for the largest cluster on; an item alone has one of its own.

    Examples
    --------
    >>> import numpy as np, facelink
    >>> from facelink.links import Links, Pairs
    >>> graph = facelink.KnnGraph(
    ...     indices=np.array([[1], [0], [0]], dtype=np.int32),
    ...     similarities=np.ones((3, 1), dtype=np.float32))
    >>> links = Links(graph, np.array([[0.9], [0.8], [0.1]], dtype=np.float32))
    >>> facelink.merge_links(links, "components", threshold=0.7)
    array([0, 0, 1])
    """
    check_merging(method, options)
    # No method looks at links below its threshold.
    threshold = options.get("threshold", signature(METHODS[method]).parameters["threshold"].default)
    return by_size(METHODS[method](links.pairs(threshold), **options))


def check_merging(method: str, options: Mapping[str, Any]) -> None:
    """Refuse a method or options that `merge_links` would refuse, before the work is done."""
    if method not in METHODS:
        raise InputError(f"method should be one of {', '.join(METHODS)}, got {method!r}.")
    known = {name: _option_names(function) for name, function in METHODS.items()}
    for option in options:
        if option not in known[method]:
            having = [name for name in METHODS if option in known[name]]
            raise InputError(
                f"Method {method!r} has no option {option!r}; it has {', '.join(known[method])}."
                + (f" Choose method {having[0]!r} to use it." if having else "")
            )
    nothing = np.empty(0, np.int32)
    METHODS[method](Pairs(1, nothing, nothing, nothing.astype(np.float32)), **options)


def _option_names(function: Callable[..., object]) -> list[str]:
    return [name for name in signature(function).parameters if name != "pairs"]


def by_size(labels: NDArray[np.integer]) -> NDArray[np.int64]:
    """Number clusters from 0 by falling size, those of one size by their first item."""
    _, first, inverse, sizes = np.unique(
        labels, return_index=True, return_inverse=True, return_counts=True
    )
    rank = np.empty(len(sizes), np.int64)
    rank[np.lexsort((first, -sizes))] = np.arange(len(sizes))
    return rank[inverse]
