"""An order to work through a collection in."""

from __future__ import annotations

import numpy as np

from facelink.compiled import compiled


@compiled
def near_one_another(neighbors):
    """An order of all items in which each is followed by a neighbour: depth first.

    Subgraphs of neighbours have most items in common, which are still in the cache.
    """
    n_items, k = neighbors.shape
    order = np.empty(n_items, np.int64)
    seen = np.zeros(n_items, np.bool_)
    path = np.empty(n_items, np.int64)  # to the item at hand
    tried = np.zeros(n_items, np.int32)  # of each item's neighbours
    end = 0
    for start in range(n_items):
        if seen[start]:
            continue
        seen[start] = True
        path[0], depth = start, 1
        order[end] = start
        end += 1
        while depth > 0:
            here = path[depth - 1]
            if tried[here] == k:
                depth -= 1
                continue
            other = neighbors[here, tried[here]]
            tried[here] += 1
            if not seen[other]:
                seen[other] = True
                path[depth] = other
                depth += 1
                order[end] = other
                end += 1
    return order
