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
SPARE = 64


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
        for part in blocks(n_items, TILE):
            scores = mine @ rows[items[part]].T
            _nominate(
                scores, block.start, part.start, k, slack, candidates, products, counts, floors
            )
        for start in range(0, len(mine), SPARE):
            some = slice(start, start + SPARE)
            _settle(rows, items, block.start + start, mine[some], candidates[some], counts[some],
                    indices, similarities)  # fmt: skip
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
        count, floor = counts[q], floors[q]
        if count == CROWDED:
            continue
        own = first_query + q - first_item
        for j in range(scores.shape[1]):
            if scores[q, j] < floor or j == own:
                continue
            if count == capacity:
                floor = np.partition(products[q], capacity - k)[capacity - k] - slack
                kept = 0
                for c in range(count):
                    if products[q, c] >= floor:
                        candidates[q, kept] = candidates[q, c]
                        products[q, kept] = products[q, c]
                        kept += 1
                count = kept
                if count == capacity:
                    count = CROWDED
                    break
                if scores[q, j] < floor:
                    continue
            candidates[q, count] = first_item + j
            products[q, count] = scores[q, j]
            count += 1
        counts[q], floors[q] = count, floor


def _settle(rows, items, first_query, mine, candidates, counts, indices, similarities):
    """Score the candidates of a few queries in a fixed order and keep the k nearest."""
    k = indices.shape[1]
    for q in range(len(mine)):
        if counts[q] == CROWDED:
            positions = np.delete(np.arange(len(items), dtype=np.int32), first_query + q)
        else:
            # Ascending, so that a stable sort by similarity leaves ties to the lower index.
            positions = np.sort(candidates[q, : counts[q]])
        numbers = items[positions]
        values = np.empty(len(numbers), np.float32)
        if rows.array is not None:
            _dots(mine[q], rows.array, numbers, values)
        else:
            for block in blocks(len(numbers), TILE):
                some = rows[numbers[block]]
                _dots(mine[q], some, np.arange(len(some)), values[block])
        order = np.argsort(-values, kind="stable")[:k]
        indices[first_query + q] = numbers[order]
        similarities[first_query + q] = values[order]


@compiled
def _dots(row, others, numbers, out):
    """Dot products in float64, four running sums: one fixed order of additions."""
    dimension = len(row)
    whole = dimension - dimension % 4
    for c in range(len(numbers)):
        other = others[numbers[c]]
        a = b = e = f = 0.0
        for j in range(0, whole, 4):
            a += np.float64(row[j]) * np.float64(other[j])
            b += np.float64(row[j + 1]) * np.float64(other[j + 1])
            e += np.float64(row[j + 2]) * np.float64(other[j + 2])
            f += np.float64(row[j + 3]) * np.float64(other[j + 3])
        for j in range(whole, dimension):
            a += np.float64(row[j]) * np.float64(other[j])
        out[c] = min(1.0, max(-1.0, (a + b) + (e + f)))
