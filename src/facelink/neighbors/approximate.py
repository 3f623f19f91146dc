"""Approximate search: items look into the cells nearest to them, then at their neighbours'.

The graph of a whole collection with itself is an easier problem than search. Cells are
groups of items around centres (k-means on a sample); whoever looks into a cell is compared
with all of its items by one matrix product. That finds most of the neighbours. The others
are neighbours of neighbours: items near one another are compared, together and by one
product again, with everyone whom the neighbours of one of them know.

How many cells to look into and how often to ask neighbours is not guessed: the exact
neighbours of a few items, found once, say when enough is found of those that matter. A
neighbour matters if it is more similar than a stranger would be; beyond that, one stranger
is nearly as good as another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from facelink.compiled import blocks, compiled, in_threads
from facelink.embeddings import UnitRows
from facelink.neighbors.order import near_one_another
from facelink.progress import Progress, silent
from facelink.runs import Run

Floats = NDArray[np.float32]

CELLS = 3.0  # times the root of the number of items
SAMPLED = 32  # items per cell that centres are found from
ROUNDS = 5  # of k-means
SPANNED = 0.99  # of the centres' squares, by the directions in which items are compared with them
ASKED = 1024  # items whose exact neighbours are looked for
FEWEST, MOST = 12, 24  # cells that each item looks into
MET = 2500  # items that it meets there at least, as far as the most cells hold so many
BEGUN, WANTED = 0.93, 0.985  # of the neighbours that matter, to be found in cells and in the end
ASKING = 4  # times that neighbours are asked, at most; once always
BLOCK = 2048  # items that are compared with all centres at once
SEARCHED, PARTS = 32_768, 16  # items searched for at once at most; blocks at least
TOGETHER = 128  # items that ask their neighbours together
SOURCES, KNOWN = 8, 40  # neighbours that each asks, and theirs that each of them names


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
    near : (m, p) int32 array
        The cells nearest to each item, as good as nearest first; its own is the first.
    """

    centers: Floats
    members: NDArray[np.int32]
    starts: NDArray[np.int64]
    near: NDArray[np.int32]

    @classmethod
    def of(
        cls, rows: UnitRows, *, n_threads: int | None = None, progress: Progress = silent
    ) -> Cells:
        """Find centres by spherical k-means on a sample, and the nearest centre of each item."""
        n_items = len(rows)
        n_cells = min(max(1, int(CELLS * np.sqrt(n_items))), n_items)
        progress("cells", 0, n_items)
        rng = np.random.default_rng(0)
        sample = np.sort(rng.permutation(n_items)[: SAMPLED * n_cells])
        centers = rows[rng.permutation(sample)[:n_cells]]
        for _ in range(ROUNDS):
            sums = np.zeros_like(centers)
            for block, near in _nearest_centers(rows, sample, centers, 1, n_threads):
                _add_rows(rows[sample[block]], near[:, 0], sums)
            # A cell that nobody is in stays where it is.
            lengths = np.linalg.norm(sums, axis=1, keepdims=True)
            centers = np.where(lengths > 0, sums / np.maximum(lengths, 1e-12), centers)
        every = np.empty((n_items, min(MOST, n_cells)), np.int32)
        found = _nearest_centers(rows, np.arange(n_items), centers, every.shape[1], n_threads)
        for block, near in found:
            every[block] = near
            progress("cells", block.stop, n_items)
        members = np.argsort(every[:, 0], kind="stable").astype(np.int32)
        starts = np.concatenate([[0], np.cumsum(np.bincount(every[:, 0], minlength=n_cells))])
        return cls(centers, members, starts, every)

    @classmethod
    def found_in(
        cls,
        run: Run,
        rows: UnitRows,
        *,
        n_threads: int | None = None,
        progress: Progress = silent,
    ) -> Cells:
        """The cells of a collection, found once in a run."""
        find = partial(cls.of, rows, n_threads=n_threads, progress=progress)
        return cls(**run.once("cells", lambda: vars(find())))

    def in_order(self) -> Cells:
        """The same cells of the collection whose items are the members, one after the other."""
        members = np.arange(len(self.members), dtype=np.int32)
        return Cells(self.centers, members, self.starts, self.near[self.members])


def _nearest_centers(
    rows: UnitRows, items: NDArray[np.int64], centers: Floats, count: int, n_threads: int | None
) -> Iterator[tuple[slice, NDArray[np.intp]]]:
    """Yield blocks of the items, and so many of the nearest centres of each, nearest first.

    Centres, being means, lie in fewer directions than items do: only these are compared, and
    of two that are nearly as near one may stand for the other.
    """
    scales, axes = np.linalg.eigh(centers.T @ centers)
    axes = axes[:, np.cumsum(scales) > (1 - SPANNED) * scales.sum()]
    flat_centers = (centers @ axes).T

    def work(block: slice) -> tuple[slice, NDArray[np.intp]]:
        scores = (rows[items[block]] @ axes) @ flat_centers
        if count == 1:
            return block, scores.argmax(axis=1)[:, None]
        kept = Kept.room_for(len(scores), count)
        nobody = np.full(len(scores), -1)  # is a centre
        kept.add(scores, np.arange(len(scores)), np.arange(scores.shape[1]), nobody)
        return block, kept.sorted()[0]

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
    level : () float array
        How similar that stranger would be.
    """

    asked: NDArray[np.int64]
    nearest: NDArray[np.int64]
    matters: NDArray[np.bool_]
    level: NDArray[np.float64]

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
        return cls(asked, nearest, similarities > level, np.array(level))

    @property
    def halves(self) -> tuple[slice, slice]:
        """One half of those asked says when enough is found, the other how much it is."""
        half = len(self.asked) // 2
        return slice(half), slice(half, None)

    def recall(self, indices: NDArray[np.int32], part: slice) -> float | None:
        """The share of what matters to some of those asked that a graph (n, k) holds."""
        matters = self.matters[part]
        listed = indices[self.asked[part]]
        found = (self.nearest[part][:, :, None] == listed[:, None, :]).any(axis=2)
        return float(found[matters].mean()) if matters.any() else None


def choose_probes(cells: Cells, exact: Exact) -> int:
    """The number of cells to look into so that `BEGUN` of what matters is found there.

    But not so few that people of one or two photos meet hardly anybody but one large family
    nearby, and are taken for one of it.
    """
    choosing, _ = exact.halves
    own = cells.near[:, 0]
    looked = cells.near[exact.asked[choosing]][:, None, :]  # (q, 1, p)
    at = looked == own[exact.nearest[choosing]][:, :, None]  # (q, k, p)
    most = cells.near.shape[1]
    in_one = len(cells.members) / len(cells.centers)
    fewest = min(max(FEWEST, int(np.ceil(MET / in_one))), most)
    if not exact.matters[choosing].any():
        return fewest
    found = np.cumsum(at, axis=2)[exact.matters[choosing]].mean(axis=0)  # by cells looked into
    return min(max(int(np.searchsorted(found, BEGUN)) + 1, fewest), most)


def nearest(
    rows: UnitRows,
    k: int,
    *,
    run: Run,
    cells: Cells | None = None,
    n_threads: int | None = None,
    progress: Progress = silent,
) -> tuple[NDArray[np.int32], NDArray[np.float32], float | None]:
    """Find most of the k nearest of every item, itself excepted; all rows distinct, k < n.

    Returns (n, k) row numbers and similarities, nearest first, and the share of the neighbours
    more similar than strangers that were found, by the exact neighbours of a sample, if there
    are any.
    """
    n_items = len(rows)
    cells = cells or Cells.found_in(run, rows, n_threads=n_threads, progress=progress)
    progress("neighbours", 0, n_items)
    exact = Exact(**run.once("sample", lambda: vars(Exact.of(rows, k, n_threads))))
    probes = choose_probes(cells, exact)
    choosing, judging = exact.halves

    def arrays(stage: str) -> tuple[NDArray[np.int32], Floats]:
        similarities = run.array(f"{stage}, similarities", (n_items, k), np.float32)
        return run.array(stage, (n_items, k), np.int32), similarities

    def search(mine: NDArray[np.integer]) -> None:
        indices[mine], similarities[mine] = _search(rows, cells, mine, probes, k)

    working = partial(run.work, n_threads=n_threads, progress=progress)
    indices, similarities = arrays("neighbours")
    # The more items look into a cell at once, the less often its rows are fetched.
    size = min(max(n_items // PARTS, BLOCK), SEARCHED)
    working("neighbours", cells.members, search, size=size)
    for asking in range(ASKING):
        enough = exact.recall(indices, choosing)
        if asking and (enough is None or enough >= WANTED):
            break
        stage = "neighbours of neighbours" + (f", {asking + 1}" if asking else "")
        known = Acquaintance(indices, similarities, float(exact.level))
        indices, similarities = arrays(stage)
        improve = partial(known.improve, rows, indices, similarities)
        working(stage, known.order, improve, size=TOGETHER)
    return indices, similarities, exact.recall(indices, judging)


class Acquaintance:
    """A graph whose items ask their neighbours whom else they know.

    Parameters
    ----------
    indices, similarities : (n, k) arrays
        The graph.
    level : float
        Who is less similar is a stranger, and not asked.
    """

    def __init__(self, indices: NDArray[np.int32], similarities: Floats, level: float) -> None:
        self.indices, self.similarities = indices, similarities
        self.level = np.float32(level)
        self.order = near_one_another(indices)
        # Those who name an item among their first, for it to ask them as well.
        firsts = indices[:, :SOURCES]
        named = similarities[:, :SOURCES] > self.level
        counts = np.bincount(firsts[named], minlength=len(indices))
        self.starts = np.concatenate([[0], np.cumsum(counts)])
        self.naming = np.empty(self.starts[-1], np.int32)
        _list_naming(firsts, named, self.starts[:-1].copy(), self.naming)

    def improve(
        self,
        rows: UnitRows,
        indices: NDArray[np.int32],
        similarities: Floats,
        mine: NDArray[np.integer],
    ) -> None:
        """Write the neighbours of some items, with who is nearer among whom they hear of."""
        pool = np.unique(
            _hear_of(mine, self.indices, self.similarities, self.level, self.starts, self.naming)
        )
        known, how_near = self.indices[mine], self.similarities[mine]
        if len(pool):
            _put_in(rows[mine] @ rows[pool].T, mine, pool, known, how_near)
        indices[mine], similarities[mine] = known, how_near


def _search(
    rows: UnitRows,
    cells: Cells,
    mine: NDArray[np.integer],
    probes: int,
    k: int,
) -> tuple[NDArray[np.int64], Floats]:
    """The k nearest of some items in the cells that each looks into."""
    queries = rows[mine]
    into = cells.near[mine, :probes]
    # Whoever would not meet k others there, in cells of a few items, meets everybody.
    few = np.flatnonzero(np.diff(cells.starts)[into].sum(axis=1) <= k)
    into[few] = -1
    asker = np.repeat(np.arange(len(mine)), into.shape[1])
    order = np.argsort(into.ravel(), kind="stable")
    into, asker = into.ravel()[order], asker[order]
    firsts = np.flatnonzero(np.concatenate([[True], into[1:] != into[:-1]]))
    bounds = np.append(firsts, len(into))

    kept = Kept.room_for(len(mine), k)
    for first, stop in pairwise(bounds):
        cell, asking = into[first], asker[first:stop]
        if cell < 0:
            continue
        members = cells.members[cells.starts[cell] : cells.starts[cell + 1]]
        scores = queries[asking] @ rows[members].T
        kept.add(scores, asking, members, mine)
    for block in blocks(len(rows) if len(few) else 0, BLOCK):
        kept.add(queries[few] @ rows[block].T, few, np.arange(block.start, block.stop), mine)
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
def _add_rows(rows, cells, sums):
    for i in range(len(rows)):
        total = sums[cells[i]]
        for c in range(rows.shape[1]):
            total[c] += rows[i, c]


@compiled
def _list_naming(firsts, named, filled, naming):
    for i in range(len(firsts)):
        for place in range(firsts.shape[1]):
            if named[i, place]:
                other = firsts[i, place]
                naming[filled[other]] = i
                filled[other] += 1


@compiled
def _hear_of(mine, indices, similarities, level, starts, naming):
    """Whom the nearest of some items know, and those who name them; some more than once."""
    k = indices.shape[1]
    heard = np.empty(len(mine) * 2 * SOURCES * (KNOWN + 1), np.int32)
    count = 0
    for i in mine:
        first, stop = starts[i], min(starts[i + 1], starts[i] + SOURCES)
        for source in range(SOURCES + stop - first):
            if source < SOURCES:
                if source >= k or similarities[i, source] <= level:
                    continue
                other = indices[i, source]
            else:
                other = naming[first + source - SOURCES]
            heard[count] = other
            count += 1
            for place in range(min(KNOWN, k)):
                if similarities[other, place] <= level:
                    break
                heard[count] = indices[other, place]
                count += 1
    return heard[:count]


@compiled
def _put_in(scores, mine, pool, indices, similarities):
    """Put those of the pool who are nearer than the farthest into each item's list, sorted."""
    k = indices.shape[1]
    for q in range(len(mine)):
        for p in range(len(pool)):
            score = scores[q, p]
            if score <= similarities[q, k - 1] or pool[p] == mine[q] or pool[p] in indices[q]:
                continue
            at = k - 1
            while at > 0 and similarities[q, at - 1] < score:
                similarities[q, at] = similarities[q, at - 1]
                indices[q, at] = indices[q, at - 1]
                at -= 1
            similarities[q, at] = min(np.float32(1), score)
            indices[q, at] = pool[p]


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
                bar = np.partition(values[q], k)[k]  # the k-th nearest of them
                ties = k
                for c in range(count):
                    ties -= values[q, c] > bar
                count = 0
                for c in range(2 * k):
                    tie = values[q, c] == bar and ties > 0
                    if values[q, c] > bar or tie:
                        found[q, count], values[q, count] = found[q, c], values[q, c]
                        count += 1
                        ties -= tie
                floor = floors[q] = bar
                if score <= floor:
                    continue
            found[q, count], values[q, count] = members[m], score
            count += 1
        counts[q] = count


@compiled
def _sort_nearest(found, values, counts, nearest, similarities):
    """The k nearest of each item, nearest first."""
    k = nearest.shape[1]
    for q in range(len(nearest)):
        order = np.argsort(-values[q, : counts[q]], kind="mergesort")
        for slot in range(k):
            nearest[q, slot] = found[q, order[slot]]
            similarities[q, slot] = min(np.float32(1), max(np.float32(-1), values[q, order[slot]]))
