"""Stage 1: the nearest neighbours of every item."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facelink.compiled import blocks, compiled, over_rows
from facelink.embeddings import UnitRows
from facelink.errors import InputError
from facelink.neighbors import approximate, exact
from facelink.neighbors.approximate import Cells
from facelink.neighbors.copies import find_distinct, list_copies
from facelink.neighbors.order import near_one_another
from facelink.progress import Progress, silent
from facelink.runs import Run
from facelink.scratch import scratch_array

__all__ = ["KnnGraph", "knn_graph", "similarities_to"]

BLOCK_BYTES = 64 << 20
SEARCH = "neighbours"  # the name of the stage
SEARCHES = ("auto", "exact", "approximate")
EXACT_UP_TO = 50_000  # items
SATISFYING = 0.98  # recall


@dataclass(frozen=True)
class KnnGraph:
    """The k nearest neighbours of every item.

    Attributes
    ----------
    indices : (n, k) int32 array
        The neighbours of item i in row i, nearest first; never i itself.
    similarities : (n, k) float32 array
        Their cosine similarities to item i.
    notes : tuple of str
        What the user should know, such as a k larger than the collection.
    recall : float, optional
        The share of the neighbours that are more similar than strangers that an
        approximate search found, estimated on a sample.
    """

    indices: NDArray[np.int32]
    similarities: NDArray[np.float32]
    notes: tuple[str, ...] = ()
    recall: float | None = None

    def __post_init__(self) -> None:
        if self.indices.ndim != 2 or self.indices.shape != self.similarities.shape:
            raise InputError(
                "A kNN graph needs indices and similarities of one shape (n, k), got "
                f"{self.indices.shape} and {self.similarities.shape}."
            )
        # The compiled loops trust these: a neighbour that does not exist would crash them.
        if self.indices.dtype.kind not in "iu":
            raise InputError(f"The indices should be whole numbers, got {self.indices.dtype}.")
        lowest, highest = self.indices.min(initial=0), self.indices.max(initial=-1)
        if lowest < 0 or highest >= len(self.indices):
            raise InputError(
                f"The indices should be from 0 to {len(self.indices) - 1}, the items of the graph, "
                f"got {lowest} to {highest}. Fill up rows with fewer neighbours, or drop them."
            )
        indices = np.ascontiguousarray(self.indices, np.int32)
        object.__setattr__(self, "indices", indices)
        similarities = np.ascontiguousarray(self.similarities, np.float32)
        object.__setattr__(self, "similarities", similarities)

    @property
    def n_items(self) -> int:
        return self.indices.shape[0]

    @property
    def k(self) -> int:
        return self.indices.shape[1]

    @cached_property
    def back(self) -> NDArray[np.int16]:
        """(n, k) the place of item i among its neighbour's neighbours; k if it is not there."""
        back = scratch_array(self.indices.shape, np.int16)
        over_rows(partial(_find_back, self.indices, self.order, back), self.n_items)
        return back

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """(n,) all items, each after a neighbour: what one needs is in the cache for the next."""
        return near_one_another(self.indices)

    def narrowed(self, k: int) -> KnnGraph:
        """The graph of the k nearest neighbours; itself, if it has no more."""
        if k >= self.k:
            return self
        return replace(self, indices=self.indices[:, :k], similarities=self.similarities[:, :k])


def knn_graph(
    embeddings: ArrayLike | UnitRows,
    k: int,
    *,
    neighbors: str = "auto",
    run: Run | None = None,
    n_threads: int | None = None,
    progress: Progress = silent,
) -> KnnGraph:
    """Find the k nearest neighbours of every item by cosine similarity.

    Parameters
    ----------
    embeddings : (n, d) array or memory map
        Float16, float32, float64 or integers, of any length: rows are brought
        to unit length first.
    k : int
        Neighbours per item. More of them find more of a person's photos and
        cost proportionally more in the later stages. Where k exceeds n - 1 the
        graph is n - 1 wide and its ``notes`` say so.
    neighbors : {"auto", "exact", "approximate"}
        ``"exact"`` compares everything with everything. ``"approximate"`` compares
        each item with those in cells near it, and estimates the share of the
        neighbours that it finds (``recall``). ``"auto"`` is exact up to 50,000 items.
    run : Run, optional
        Where to keep what is finished, to go on after an interruption.
    n_threads : int, optional
        All cores of the process by default. The result does not depend on it.
    progress : callable, optional
        Called with (stage, done, total) as the search goes on.

    Returns
    -------
    KnnGraph

    Notes
    -----
    Ties go to the lower index, if the search is exact. Exact copies of an item count as one: each
    distinct item appears once (as the first of its copies) before any appears
    twice, so that an item stored 200 times has one copy of itself among its
    neighbours and k - 1 others.

    An exact search costs n² d / 2 multiplications; memory beyond the result is 16 k + 1024
    bytes per item and a few dozen MB per thread. An approximate one compares each item with
    about 10 √n others and with those whom its neighbours know; memory beyond the result is a
    second graph and some 100 MB per thread. Both keep, up to 2 GiB of it, a float32 copy of
    the embeddings.

    Examples
    --------
    >>> import numpy as np, facelink
    >>> angles = np.radians([0, 10, 90, 95])
    >>> graph = facelink.knn_graph(np.c_[np.cos(angles), np.sin(angles)], k=1)
    >>> graph.indices.ravel()
    array([1, 0, 3, 2], dtype=int32)
    """
    check_search(neighbors)
    if not isinstance(k, int | np.integer) or isinstance(k, bool) or k < 1:
        raise InputError(f"k, the neighbours per item, should be a whole number from 1, got {k!r}.")
    rows = UnitRows.of(embeddings)
    first_copy, group = find_distinct(rows)
    items = rows if len(first_copy) == len(group) else rows.taking(first_copy)
    graph = graph_of_distinct(
        items, k, neighbors=neighbors, run=run, n_threads=n_threads, progress=progress
    )
    notes = (*notes_on_width(k, len(rows)), *graph.notes)
    if items is rows:
        return replace(graph, notes=notes)
    width = int(min(k, len(rows) - 1))
    copied = list_copies(
        first_copy.astype(np.int32)[graph.indices], graph.similarities, first_copy, group, width
    )
    return KnnGraph(*copied, notes, graph.recall)


def graph_of_distinct(
    rows: UnitRows,
    k: int,
    *,
    neighbors: str = "auto",
    cells: Cells | None = None,
    run: Run | None = None,
    n_threads: int | None = None,
    progress: Progress = silent,
) -> KnnGraph:
    """The same of items none of which is a copy of another, without a note on its width."""
    n_items = len(rows)
    width = int(min(k, n_items - 1))
    run = run or Run()
    if not searches_exactly(neighbors, n_items):
        indices, similarities, recall = approximate.nearest(
            rows, width, run=run, cells=cells, n_threads=n_threads, progress=progress
        )
        notes: tuple[str, ...] = ()
        if recall is not None and recall < SATISFYING:
            notes = (
                f"The approximate search finds about {recall:.1%} of the neighbours that are more "
                f"similar than strangers, less than {SATISFYING:.0%}: clusters may be split. An "
                'exact one, neighbors="exact", takes longer.',
            )
        return KnnGraph(indices, similarities, notes, recall)

    def search() -> dict[str, NDArray]:
        indices, similarities = exact.nearest(
            rows, width, n_threads=n_threads, report=partial(progress, SEARCH)
        )
        return {"indices": indices, "similarities": similarities}

    found = run.once(SEARCH, search)
    return KnnGraph(found["indices"], found["similarities"])


def notes_on_width(k: int, n_items: int) -> tuple[str, ...]:
    """What to say of a k that is larger than the collection."""
    if k < n_items:
        return ()
    there = f"{n_items} items have {n_items - 1} each" if n_items > 1 else "a single item has none"
    return (f"k = {k} neighbours were asked for, but {there}.",)


def searches_exactly(neighbors: str, n_items: int) -> bool:
    """Whether every item is compared with every other."""
    if n_items < 2:  # there is nobody to find
        return True
    return neighbors == "exact" or (neighbors == "auto" and n_items <= EXACT_UP_TO)


def check_search(neighbors: str) -> None:
    """Refuse a way to search that `knn_graph` does not know."""
    if neighbors not in SEARCHES:
        raise InputError(f"neighbors should be one of {', '.join(SEARCHES)}, got {neighbors!r}.")


@compiled
def _find_back(indices, order, back, start, stop):
    k = indices.shape[1]
    for i in order[start:stop]:
        for place in range(k):
            others = indices[indices[i, place]]
            back[i, place] = k
            for s in range(k):
                if others[s] == i:
                    back[i, place] = s
                    break


def similarities_to(rows: UnitRows, indices: NDArray[np.integer]) -> NDArray[np.float32]:
    """The cosine similarities of each item to those listed for it: (n, k) to (n, k)."""
    n_items, k = indices.shape
    similarities = np.empty((n_items, k), np.float32)
    for block in blocks(n_items, max(1, BLOCK_BYTES // (4 * max(k, 1) * rows.shape[1]))):
        listed = rows[indices[block].ravel()].reshape(*indices[block].shape, -1)  # (rows, k, d)
        similarities[block] = np.einsum("nd,nkd->nk", rows[block], listed)
    return similarities
