"""Approximate search: items are put into cells, and each looks into the cells nearest to it.

The graph of a whole collection with itself is an easier problem than search. Cells are
groups of items around centres (k-means on a sample); whoever looks into a cell is compared
with all of its items by one matrix product. How many cells to look into is not guessed:
the exact neighbours of a few items, found once, say how many it takes to find nearly all
of those that matter. A neighbour matters if it is more similar than a stranger would be;
beyond that, one stranger is as good as another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from facelink.compiled import blocks, compiled, in_threads
from facelink.embeddings import UnitRows
from facelink.progress import Progress, silent
from facelink.runs import Run

Floats = NDArray[np.float32]

CELLS = 3.0  # times the root of the number of items
SAMPLED = 32  # items per cell that centres are found from
ROUNDS = 5  # of k-means
ASKED = 1024  # items whose exact neighbours are looked for
WANTED = 0.99  # of the neighbours that matter, to be found
FEWEST, WIDEST = 4, 0.25  # cells that each looks into; share of all items to compare with
BLOCK = 2048  # items searched for at once


@dataclass(frozen=True)
class Cells:
    """A collection in cells.

    Attributes
    ----------
    centers : (c, d) float32 array
        Of unit length.
    members : (m,) int32 array
        The items of the first cell, then those of the second, and so on.
    starts : (c + 1,) int64 array
        Where each cell begins among the members.
    """

    centers: Floats
    members: NDArray[np.int32]
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, rows: UnitRows, n_threads: int | None = None) -> Cells:
        """Find centres by spherical k-means on a sample, and the nearest centre of each item."""
        n_items = len(rows)
        n_cells = max(1, int(CELLS * np.sqrt(n_items)))
        rng = np.random.default_rng(0)
        sample = np.sort(rng.permutation(n_items)[: SAMPLED * n_cells])
        centers = rows[rng.permutation(sample)[:n_cells]]
        for _ in range(ROUNDS):
            sums, counts = np.zeros_like(centers), np.zeros(n_cells, np.int64)
            for block, cell in _nearest_centers(rows, sample, centers, n_threads):
                _add_rows(rows[sample[block]], cell, sums, counts)
            # A cell that nobody is in stays where it is.
            lengths = np.linalg.norm(sums, axis=1, keepdims=True)
            centers = np.where(lengths > 0, sums / np.maximum(lengths, 1e-12), centers)
        cell_of = np.empty(n_items, np.int32)
        for block, cell in _nearest_centers(rows, np.arange(n_items), centers, n_threads):
            cell_of[block] = cell
        members = np.argsort(cell_of, kind="stable").astype(np.int32)
        starts = np.concatenate([[0], np.cumsum(np.bincount(cell_of, minlength=n_cells))])
        return cls(centers, members, starts)

    @property
    def cell_of(self) -> NDArray[np.int32]:
        """(m,) the cell of each item."""
        cell_of = np.empty(len(self.members), np.int32)
        cell_of[self.members] = np.repeat(np.arange(len(self.centers)), np.diff(self.starts))
        return cell_of


def _nearest_centers(
    rows: UnitRows, items: NDArray[np.int64], centers: Floats, n_threads: int | None
) -> Iterator[tuple[slice, NDArray[np.intp]]]:
    """Yield blocks of the items, and the nearest centre of each."""

    def work(block: slice) -> tuple[slice, NDArray[np.intp]]:
        return block, (rows[items[block]] @ centers.T).argmax(axis=1)

    return in_threads(work, blocks(len(items), BLOCK), n_threads=n_threads)


@dataclass(frozen=True)
class Exact:
    """The exact neighbours of a few items, to see what a search misses.

    Attributes
    ----------
    asked : (q,) int64 array
        Numbers of items.
    nearest : (q, k) int64 array
        Numbers of their neighbours.
    matters : (q, k) bool array
        Which of them are more similar than the nearest stranger would be.
    """

    asked: NDArray[np.int64]
    nearest: NDArray[np.int64]
    matters: NDArray[np.bool_]

    @classmethod
    def of(cls, rows: UnitRows, k: int, n_threads: int | None = None) -> Exact:
        n_items = len(rows)
        asked = np.random.default_rng(1).permutation(n_items)[:ASKED]
        queries = rows[asked]
        # Nearly all pairs are strangers: their median, and a spread that the few others do
        # not move, say how similar the nearest of n strangers is.
        lower, center = np.quantile(queries @ queries.T, [0.1, 0.5])
        level = center - (center - lower) / 1.2816 * ndtri(1 / n_items)
        kept = Kept.room_for(len(asked), k)
        everyone = np.arange(len(asked))

        def compare(block: slice) -> tuple[slice, Floats]:
            return block, queries @ rows[block].T

        for block, scores in in_threads(compare, blocks(n_items, BLOCK), n_threads=n_threads):
            kept.add(scores, everyone, np.arange(block.start, block.stop), asked)
        nearest, similarities = kept.sorted()
        return cls(asked, nearest, similarities > level)

    def recall(self, found: NDArray[np.bool_], part: slice = slice(None)) -> float:
        """The share of what matters that was found (q, k); 1 if nothing matters."""
        matters = self.matters[part]
        return float(found[part][matters].mean()) if matters.any() else 1.0


# The first half of the items asked about says how many cells to look into, the other how
# well that did.
CHOOSING, JUDGING = slice(ASKED // 2), slice(ASKED // 2, None)


def choose_probes(cells: Cells, exact: Exact, rows: UnitRows) -> int:
    """The number of cells to look into so that `WANTED` of what matters is found."""
    order = np.argsort(-(rows[exact.asked] @ cells.centers.T), axis=1)
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.arange(order.shape[1])[None], axis=1)
    needed = np.take_along_axis(rank, cells.cell_of[exact.nearest].astype(np.int64), axis=1)
    needed = np.sort(needed[CHOOSING][exact.matters[CHOOSING]])
    compared = np.diff(cells.starts)[order].cumsum(axis=1).mean(axis=0)  # items, by cells
    most = max(FEWEST, int(np.searchsorted(compared, WIDEST * len(rows))))
    wanted = 1 + int(needed[int(np.ceil(WANTED * len(needed))) - 1]) if len(needed) else 1
    return min(max(wanted, FEWEST), most, len(cells.centers))


def nearest(
    rows: UnitRows,
    k: int,
    *,
    run: Run,
    n_threads: int | None = None,
    progress: Progress = silent,
) -> tuple[NDArray[np.int32], NDArray[np.float32], float]:
    """Find most of the k nearest of every item, itself excepted; all rows distinct, k < n.

    Returns (n, k) row numbers and similarities, nearest first, and the share of the neighbours
    more similar than strangers that were found, by the exact neighbours of a sample.
    """
    n_items = len(rows)
    progress("neighbours", 0, n_items)

    def prepare() -> dict[str, NDArray]:
        cells = Cells.of(rows, n_threads)
        exact = Exact.of(rows, k, n_threads)
        probes = np.array(choose_probes(cells, exact, rows))
        return {**vars(cells), **vars(exact), "probes": probes}

    prepared = run.once("cells", prepare)
    probes = int(prepared["probes"])
    cells = Cells(*(prepared[name] for name in Cells.__dataclass_fields__))
    exact = Exact(*(prepared[name] for name in Exact.__dataclass_fields__))
    indices = run.array("neighbours", (n_items, k), np.int32)
    similarities = run.array("similarities", (n_items, k), np.float32)

    def search(block: slice) -> None:
        mine = cells.members[block]
        found, values = _search(rows, cells, mine, probes, k)
        indices[mine], similarities[mine] = found, values

    run.work("neighbours", n_items, search, size=BLOCK, n_threads=n_threads, progress=progress)
    listed = indices[exact.asked]
    found = (exact.nearest[:, :, None] == listed[:, None, :]).any(axis=2)
    return indices, similarities, exact.recall(found, JUDGING)


def _search(
    rows: UnitRows,
    cells: Cells,
    mine: NDArray[np.int32],
    probes: int,
    k: int,
) -> tuple[NDArray[np.int64], Floats]:
    """The k nearest of some items in the cells that each looks into."""
    queries = rows[mine]
    near = queries @ cells.centers.T
    n_cells = near.shape[1]
    # Look into as many more cells as it takes to find k others.
    looked = min(probes, n_cells)
    sizes = np.diff(cells.starts)
    while True:
        into = np.argpartition(-near, looked - 1, axis=1)[:, :looked]
        if looked == n_cells or sizes[into].sum(axis=1).min() > k:
            break
        looked = min(2 * looked, n_cells)
    asker = np.repeat(np.arange(len(mine)), looked)
    order = np.argsort(into.ravel(), kind="stable")
    into, asker = into.ravel()[order], asker[order]
    firsts = np.flatnonzero(np.concatenate([[True], into[1:] != into[:-1]]))
    bounds = np.append(firsts, len(into))

    kept = Kept.room_for(len(mine), k)
    for first, stop in pairwise(bounds):
        cell, asking = into[first], asker[first:stop]
        members = cells.members[cells.starts[cell] : cells.starts[cell + 1]]
        scores = queries[asking] @ rows[members].T
        kept.add(scores, asking, members, mine)
    return kept.sorted()


@dataclass(frozen=True)
class Kept:
    """The nearest found so far, of some items."""

    k: int
    found: NDArray[np.int32]  # (q, 2 k)
    values: Floats  # (q, 2 k)
    counts: NDArray[np.int64]  # (q,)
    floors: Floats  # (q,) whoever is farther is not among the k nearest

    @classmethod
    def room_for(cls, n_items: int, k: int) -> Kept:
        return cls(
            k,
            np.empty((n_items, 2 * k), np.int32),
            np.empty((n_items, 2 * k), np.float32),
            np.zeros(n_items, np.int64),
            np.full(n_items, -np.inf, np.float32),
        )

    def add(self, scores: Floats, asking: NDArray, members: NDArray, mine: NDArray) -> None:
        """Note the members (m,) that are near, by the scores (a, m) of those who ask (a,).

        ``mine`` are the numbers of the items: nobody is among its own nearest.
        """
        _keep_nearest(
            scores, asking, members, mine, self.k, self.found, self.values, self.counts, self.floors
        )

    def sorted(self) -> tuple[NDArray[np.int64], Floats]:
        """The k nearest of each item and their similarities, nearest first."""
        nearest = np.empty((len(self.counts), self.k), np.int64)
        similarities = np.empty((len(self.counts), self.k), np.float32)
        _sort_nearest(self.found, self.values, self.counts, nearest, similarities)
        return nearest, similarities


@compiled
def _add_rows(rows, cells, sums, counts):
    for i in range(len(rows)):
        counts[cells[i]] += 1
        total = sums[cells[i]]
        for c in range(rows.shape[1]):
            total[c] += rows[i, c]


@compiled
def _keep_nearest(scores, asking, members, mine, k, found, values, counts, floors):
    """Note the members that may be among the k nearest of each item that asks."""
    for a in range(len(asking)):
        q = asking[a]
        me, floor, count, row = mine[q], floors[q], counts[q], scores[a]
        for m in range(len(members)):
            score = row[m]
            if score <= floor or members[m] == me:
                continue
            if count == 2 * k:  # no room: the farther half is not among the k nearest
                bar = np.partition(values[q], k)[k]
                kept = 0
                for c in range(count):
                    if values[q, c] >= bar and kept < 2 * k - 1:
                        found[q, kept], values[q, kept] = found[q, c], values[q, c]
                        kept += 1
                count = kept
                floor = floors[q] = bar
                if score <= floor:
                    continue
            found[q, count], values[q, count] = members[m], score
            count += 1
        counts[q] = count


@compiled
def _sort_nearest(found, values, counts, nearest, similarities):
    """The k nearest of each item, nearest first, the lower number first among equals."""
    k = nearest.shape[1]
    for q in range(len(nearest)):
        by_number = np.argsort(found[q, : counts[q]])
        order = by_number[np.argsort(-values[q, : counts[q]][by_number], kind="mergesort")]
        for slot in range(k):
            nearest[q, slot] = found[q, order[slot]]
            similarities[q, slot] = min(np.float32(1), max(np.float32(-1), values[q, order[slot]]))
