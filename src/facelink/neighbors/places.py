"""Looking up where an item is among one item's neighbours.

A small table for compiled loops: it fits into the fastest cache, where an array with a place
for every item of the collection would be fetched from memory again and again.
"""

from __future__ import annotations

import numpy as np

from facelink.compiled import compiled


@compiled
def empty_places(k):
    """A table for k neighbours, and room for what clearing it needs."""
    size = 512
    while size < 32 * k:
        size *= 2
    return np.full(size, -1, np.int16), np.empty(k, np.int64)


@compiled
def set_places(neighbors, table, taken):
    """Note the place of each of an item's neighbours (k,), all distinct."""
    mask = len(table) - 1
    for place in range(len(neighbors)):
        slot = _first_slot(neighbors[place], mask)
        while table[slot] >= 0:
            slot = (slot + 1) & mask
        table[slot] = place
        taken[place] = slot


@compiled
def clear_places(table, taken):
    """Forget them."""
    for slot in taken:
        table[slot] = -1


@compiled
def place_of(item, neighbors, table):
    """The place of an item among the neighbours noted in the table, or -1."""
    mask = len(table) - 1
    slot = _first_slot(item, mask)
    while table[slot] >= 0:
        place = table[slot]
        if neighbors[place] == item:
            return place
        slot = (slot + 1) & mask
    return -1


@compiled
def _first_slot(item, mask):
    # Numbers of neighbours are often alike in their last digits: these are spread.
    return ((item * np.int64(2654435761)) >> np.int64(12)) & mask
