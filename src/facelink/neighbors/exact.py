"""Exact search: matrix products in tiles, then the close calls scored again in a fixed order.

A matrix product's rounding depends on its shape, so on the size of the tiles
and on the number of threads. Each product therefore only nominates candidates:
everything that could be among the k nearest given the largest possible
rounding error. Two items are multiplied once: what a finds out about b, b finds
out about a. The candidates are scored again by one loop that always adds in the same
order, and that score decides. The graph is the same on every machine setting.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import numpy as np
from numpy.typing import NDArray

from facelink.compiled import blocks, compiled, in_threads
from facelink.embeddings import UnitRows

TILE = 2048  # items: 16 MB of similarities per thread
SETTLED = 64  # items whose candidates are scored at once
SPARE = 128  # candidates beyond 2 k that an item has room for


def nearest(
    rows: UnitRows,
    k: int,
    *,
    n_threads: int | None = None,
    report: Callable[[int, int], None],
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Find the k nearest of every item, itself excepted; all rows distinct, k < n.

    Returns (n, k) row numbers and similarities, nearest first, ties to the lower.
    """
    n_items, dimension = rows.shape
    indices = np.empty((n_items, k), np.int32)
    similarities = np.empty((n_items, k), np.float32)
    if k == 0:
        return indices, similarities
    # A float32 dot product of unit vectors errs by at most (d + 2) 2^-24. If a is nearer
    # than b, a's product is above b's less twice that; once more for storing the
    # reference value itself in float32.
    slack = np.float32(2 * (dimension + 3) * 2.0**-24)

    candidates = np.empty((n_items, 2 * k + SPARE), np.int32)
    products = np.empty(candidates.shape, np.float32)
    counts = np.zeros(n_items, np.int64)
    floors = np.full(n_items, -np.inf, np.float32)
    parts = list(blocks(n_items, TILE))
    locks = [threading.Lock() for _ in parts]  # of the candidates of each part

    def compare(pair: tuple[int, int]) -> int:
        """Nominate from one product for the items of both its sides."""
        a, b = pair
        first, second = parts[a], parts[b]
        scores = rows[first] @ rows[second].T
        least = np.full(len(scores), -np.inf, np.float32)
        if a == b and len(scores) > k:  # oneself, and the k nearest of one's own part
            least = np.partition(scores, -k - 1, axis=1)[:, -k - 1] - slack
        with locks[a], locks[b] if a != b else nullcontext():
            floors[first] = np.maximum(floors[first], least)
            _nominate(
                scores, first.start, second.start, k, slack, candidates, products, counts, floors
            )
        return scores.size

    def settle(block: slice) -> slice:
        for q in range(block.start, block.stop):
            _drop_far(candidates[q], products[q], counts, q, k, slack)
        others, place = _read_candidates(rows, candidates[block], counts[block])
        _settle(
            rows[block], others, place, candidates[block], counts[block], indices[block],
            similarities[block],
        )  # fmt: skip
        for crowded in np.flatnonzero(counts[block] == CROWDED):
            _search_plainly(rows, block.start + int(crowded), indices, similarities)
        return block

    done = 0
    report(done, n_items)
    everything = n_items * (n_items + TILE) / 2  # products, about
    for size in in_threads(compare, _pairs(len(parts)), n_threads=n_threads):
        done += size
        report(min(int(n_items * done / everything), n_items - 1), n_items)
    for _ in in_threads(settle, blocks(n_items, SETTLED), n_threads=n_threads):
        pass
    report(n_items, n_items)
    return indices, similarities


def _pairs(n_parts: int) -> Iterator[tuple[int, int]]:
    """Each pair of parts once, (a, b) with a <= b.

    By distance, so that pairs that follow one another seldom share a part, and threads
    seldom wait for one another.
    """
    for distance in range(n_parts):
        for a in range(n_parts - distance):
            yield a, a + distance


CROWDED = -1


@compiled
def _nominate(scores, first, second, k, slack, candidates, products, counts, floors):
    """Add to each item's candidates those of the other side that could be among its k nearest.

    ``first`` and ``second`` are the first items of the two sides. An item with more close
    calls than there is room for is marked crowded.
    """
    one_side = first == second
    far = floors[second : second + scores.shape[1]]
    for i in range(scores.shape[0]):
        q, row = first + i, scores[i]
        floor = floors[q]
        for j in range(len(row)):
            score = row[j]
            if score < floor and score < far[j]:
                continue
            other = second + j
            if score >= floor and q != other:
                _add(q, other, score, k, slack, candidates, products, counts, floors)
                floor = floors[q]
            if score >= far[j] and not one_side:
                _add(other, q, score, k, slack, candidates, products, counts, floors)


@compiled
def _add(q, other, score, k, slack, candidates, products, counts, floors):
    """Add one candidate of item q, dropping those that have become too far if there is no room."""
    capacity = candidates.shape[1]
    if counts[q] == capacity:
        floors[q] = _drop_far(candidates[q], products[q], counts, q, k, slack)
        if counts[q] == capacity:
            counts[q] = CROWDED
            floors[q] = np.inf
            return
        if score < floors[q]:
            return
    candidates[q, counts[q]] = other
    products[q, counts[q]] = score
    counts[q] += 1


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
    rows: UnitRows, candidates: NDArray[np.int32], counts: NDArray
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """An array of rows, and where in it the row of each item is; nothing, if at its number."""
    if rows.array is not None:
        return rows.array, np.empty(0, np.int64)
    listed = np.arange(candidates.shape[1]) < counts[:, None]
    needed = np.unique(candidates[listed])
    place = np.zeros(len(rows), np.int64)
    place[needed] = np.arange(len(needed))
    return rows[needed], place


@compiled
def _settle(mine, others, place, candidates, counts, indices, similarities):
    """Score each query's candidates in a fixed order and keep the k nearest."""
    k = indices.shape[1]
    for q in range(len(mine)):
        if counts[q] == CROWDED:
            continue
        # In ascending order a stable sort by similarity leaves ties to the lower.
        chosen = np.sort(candidates[q, : counts[q]])
        values = np.empty(len(chosen), np.float32)
        for c in range(len(chosen)):
            at = place[chosen[c]] if len(place) else np.int64(chosen[c])
            values[c] = _dot(mine[q], others[at])
        order = np.argsort(-values, kind="mergesort")
        for slot in range(k):
            indices[q, slot] = chosen[order[slot]]
            similarities[q, slot] = values[order[slot]]


def _search_plainly(
    rows: UnitRows,
    query: int,
    indices: NDArray[np.int32],
    similarities: NDArray[np.float32],
) -> None:
    """Score everything for one query in the fixed order: for rows with endless ties."""
    row = rows[query : query + 1][0]
    values = np.empty(len(rows), np.float32)
    for block in blocks(len(rows), TILE):
        _dots(row, rows[block], values[block])
    values[query] = -np.inf
    order = np.argsort(-values, kind="stable")[: indices.shape[1]]
    indices[query] = order
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
