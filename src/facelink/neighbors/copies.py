"""Exact copies of an item: collapsed before the search, expanded after it.

A face stored 200 times would otherwise have nothing but itself among its 80
neighbours, and so would everyone who resembles it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from facelink.compiled import blocks, compiled
from facelink.embeddings import UnitRows

BLOCK = 8192


def hash_rows(rows: UnitRows) -> NDArray[np.uint64]:
    """A number for each row, the same for equal ones."""
    hashes = np.empty(len(rows), np.uint64)
    for block in blocks(len(rows), BLOCK):
        _hash_rows(np.ascontiguousarray(rows[block]).view(np.uint32), hashes[block])
    return hashes


def find_distinct(
    rows: UnitRows, hashes: NDArray[np.uint64] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find which rows are equal to the bit, given their hashes or not.

    Returns
    -------
    first_copy : (m,) array
        The lowest index of each distinct row, ascending.
    group : (n,) array
        For each item, which of the m distinct rows it is.
    """
    n_items = len(rows)
    hashes = hash_rows(rows) if hashes is None else hashes
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    leader = np.arange(n_items)  # the lowest index with the same row
    repeats = np.flatnonzero(ordered[1:] == ordered[:-1]) + 1
    for run in np.split(repeats, np.flatnonzero(np.diff(repeats) > 1) + 1):
        if not len(run):
            continue
        start, stop = run[0] - 1, run[-1] + 1
        members = order[start:stop]  # equal hashes, ascending indices
        while len(members):  # once, unless two distinct rows share a hash
            same = (rows[members] == rows[members[:1]]).all(axis=1)
            leader[members[same]] = members[0]
            members = members[~same]
    first_copy, group = np.unique(leader, return_inverse=True)
    return first_copy, group


@compiled
def _hash_rows(words, hashes):  # (n, d) uint32, (n,) uint64
    for i in range(words.shape[0]):
        state = np.uint64(14695981039346656037)  # FNV-1a over 32-bit words
        for j in range(words.shape[1]):
            state = (state ^ np.uint64(words[i, j])) * np.uint64(1099511628211)
        hashes[i] = state ^ (state >> np.uint64(32))


def list_copies(
    neighbors: NDArray[np.int32],
    similarities: NDArray[np.float32],
    first_copy: NDArray[np.int64],
    group: NDArray[np.int64],
    width: int,
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Turn the graph of the m distinct rows into the graph of all n items.

    ``neighbors`` (m, k) holds items' indices (first copies). The row of an item
    lists one copy of itself, then its neighbours' first copies, then, where
    there is still room, further copies of all of these; nearest first.
    """
    n_items = len(group)
    members = np.argsort(group, kind="stable")  # items by group, ascending inside
    starts = np.searchsorted(group[members], np.arange(len(first_copy) + 1))
    indices = np.empty((n_items, width), np.int32)
    values = np.empty((n_items, width), np.float32)
    _list_copies(neighbors, similarities, group, members, starts, indices, values)
    return indices, values


@compiled
def _list_copies(neighbors, similarities, group, members, starts, indices, values):
    n_items, width = indices.shape
    for i in range(n_items):
        own = group[i]
        filled = 0
        # Round 0 takes the first copy of every distinct item, round 1 the rest.
        for later in range(2):
            for slot in range(-1, neighbors.shape[1]):
                if slot < 0:
                    other, value = own, np.float32(1.0)
                else:
                    other, value = group[neighbors[own, slot]], similarities[own, slot]
                seen = 0
                for position in range(starts[other], starts[other + 1]):
                    item = members[position]
                    if item == i:
                        continue
                    seen += 1
                    if (seen > 1) == (later == 1) and filled < width:
                        indices[i, filled] = item
                        values[i, filled] = value
                        filled += 1
                    if filled == width or (seen == 1 and later == 0):
                        break
        # Nearest first, lower index first among equals: insertion sort, nearly sorted already.
        for a in range(1, width):
            item, value = indices[i, a], values[i, a]
            b = a - 1
            while b >= 0 and (
                values[i, b] < value or (values[i, b] == value and indices[i, b] > item)
            ):
                indices[i, b + 1], values[i, b + 1] = indices[i, b], values[i, b]
                b -= 1
            indices[i, b + 1], values[i, b + 1] = item, value
