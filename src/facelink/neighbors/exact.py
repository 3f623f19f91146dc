"""Exact search: matrix products in tiles, then the close calls scored again in a fixed order.

A matrix product's rounding depends on its shape, so on the size of the tiles
and on the number of threads. Each product therefore only nominates candidates:
everything that could be among the k nearest given the largest possible
rounding error. These are scored again by one loop that always adds in the same
order, and that score decides. The graph is the same on every machine setting.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from facelink.compiled import blocks, compiled, in_threads
from facelink.embeddings import UnitRows

QUERIES, TILE = 512, 4096  # 8 MB of similarities per thread: they stay in the cache
SETTLED = 64  # queries whose candidates are read at once where the collection is on disk
SPARE = 64  # candidates beyond 4 k that a query has room for


def nearest(
    rows: UnitRows,
    items: NDArray[np.int64],
    k: int,
    *,
    n_threads: int | None = None,
    report: Callable[[int, int], None],
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Find the k nearest of ``items`` for each of ``items``, itself excepted.

    ``items`` are ascending row numbers, all rows distinct; k < len(items).
    Returns (m, k) row numbers and similarities, nearest first, ties to the lower.
    """
    n_items, dimension = len(items), rows.shape[1]
    indices = np.empty((n_items, k), np.int32)
    similarities = np.empty((n_items, k), np.float32)
    if k == 0:
        return indices, similarities
    # A float32 dot product of unit vectors errs by at most (d + 2) 2^-24. If a is nearer
    # than b, a's product is above b's less twice that; once more for storing the
    # reference value itself in float32.
    slack = np.float32(2 * (dimension + 3) * 2.0**-24)

    def search(block: slice) -> slice:
        mine = rows[items[block]]
        candidates = np.empty((len(mine), 4 * k + SPARE), np.int32)
        products = np.empty(candidates.shape, np.float32)
        counts = np.zeros(len(mine), np.int64)
        floors = np.full(len(mine), -np.inf, np.float32)
        for tile in blocks(n_items, TILE):
            scores = mine @ rows[items[tile]].T
            _nominate(
                scores, block.start, tile.start, k, slack, candidates, products, counts, floors
            )
        for q in range(len(mine)):
            _drop_far(candidates[q], products[q], counts, q, k, slack)
        for start in range(0, len(mine), SETTLED):
            some = slice(start, min(start + SETTLED, len(mine)))
            found = slice(block.start + some.start, block.start + some.stop)
            others, place = _read_candidates(rows, items, candidates[some], counts[some])
            _settle(
                mine[some], others, place, items, candidates[some], counts[some],
                indices[found], similarities[found],
            )  # fmt: skip
        for crowded in np.flatnonzero(counts == CROWDED):
            _search_plainly(rows, items, block.start + int(crowded), indices, similarities)
        return block

    done = 0
    report(done, n_items)
    for block in in_threads(search, blocks(n_items, QUERIES), n_threads=n_threads):
        done += block.stop - block.start
        report(done, n_items)
    return indices, similarities


CROWDED = -1


@compiled
def _nominate(scores, first_query, first_item, k, slack, candidates, products, counts, floors):
    """Add to each query's candidates those of a tile that could be among its k nearest.

    A query with more close calls than there is room for is marked crowded.
    """
    capacity = candidates.shape[1]
    for q in range(scores.shape[0]):
        if counts[q] == CROWDED:
            continue
        own = first_query + q - first_item
        floor = floors[q]
        for j in range(scores.shape[1]):
            if scores[q, j] < floor or j == own:
                continue
            if counts[q] == capacity:
                floor = _drop_far(candidates[q], products[q], counts, q, k, slack)
                if counts[q] == capacity:
                    counts[q] = CROWDED
                    break
                if scores[q, j] < floor:
                    continue
            candidates[q, counts[q]] = first_item + j
            products[q, counts[q]] = scores[q, j]
            counts[q] += 1
        floors[q] = floor


@compiled
def _drop_far(candidates, products, counts, q, k, slack):
    """Drop the candidates of query q that cannot be among its k nearest; return the bar."""
    count = counts[q]
    if count <= k:
        return np.float32(-np.inf)
    bar = np.partition(products[:count], count - k)[count - k] - slack
    kept = 0
    for c in range(count):
        if products[c] >= bar:
            candidates[kept], products[kept] = candidates[c], products[c]
            kept += 1
    counts[q] = kept
    return bar


def _read_candidates(
    rows: UnitRows, items: NDArray[np.int64], candidates: NDArray[np.int32], counts: NDArray
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """An array of rows, and where in it the row of each item is."""
    if rows.array is not None:
        return rows.array, items
    listed = np.arange(candidates.shape[1]) < counts[:, None]
    needed = np.unique(candidates[listed])
    place = np.zeros(len(items), np.int64)
    place[needed] = np.arange(len(needed))
    return rows[items[needed]], place


@compiled
def _settle(mine, others, place, items, candidates, counts, indices, similarities):
    """Score each query's candidates in a fixed order and keep the k nearest."""
    k = indices.shape[1]
    for q in range(len(mine)):
        if counts[q] == CROWDED:
            continue
        # Nominated in ascending order: a stable sort by similarity leaves ties to the lower.
        chosen = candidates[q, : counts[q]]
        values = np.empty(len(chosen), np.float32)
        for c in range(len(chosen)):
            values[c] = _dot(mine[q], others[place[chosen[c]]])
        order = np.argsort(-values, kind="mergesort")
        for slot in range(k):
            indices[q, slot] = items[chosen[order[slot]]]
            similarities[q, slot] = values[order[slot]]


def _search_plainly(
    rows: UnitRows,
    items: NDArray[np.int64],
    query: int,
    indices: NDArray[np.int32],
    similarities: NDArray[np.float32],
) -> None:
    """Score everything for one query in the fixed order: for rows with endless ties."""
    row = rows[items[query : query + 1]][0]
    values = np.empty(len(items), np.float32)
    for block in blocks(len(items), TILE):
        _dots(row, rows[items[block]], values[block])
    values[query] = -np.inf
    order = np.argsort(-values, kind="stable")[: indices.shape[1]]
    indices[query] = items[order]
    similarities[query] = values[order]


@compiled
def _dots(row, others, out):
    for i in range(len(others)):
        out[i] = _dot(row, others[i])


@compiled
def _dot(a, b):
    """A dot product in float64 with eight running sums: one fixed order of additions."""
    dimension = len(a)
    whole = dimension - dimension % 8
    sums = np.zeros(8)
    for j in range(0, whole, 8):
        for lane in range(8):
            sums[lane] += np.float64(a[j + lane]) * np.float64(b[j + lane])
    for j in range(whole, dimension):
        sums[0] += np.float64(a[j]) * np.float64(b[j])
    total = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + (
        (sums[4] + sums[5]) + (sums[6] + sums[7])
    )
    return np.float32(min(1.0, max(-1.0, total)))
