"""Stage 1: the nearest neighbours of every item."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facelink.compiled import blocks
from facelink.embeddings import UnitRows
from facelink.errors import InputError
from facelink.neighbors.copies import find_distinct, list_copies
from facelink.neighbors.exact import nearest
from facelink.progress import Progress, silent

__all__ = ["KnnGraph", "knn_graph", "similarities_to"]

BLOCK_BYTES = 64 << 20


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
    """

    indices: NDArray[np.int32]
    similarities: NDArray[np.float32]
    notes: tuple[str, ...] = ()

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

    def narrowed(self, k: int) -> KnnGraph:
        """The graph of the k nearest neighbours; itself, if it has no more."""
        if k >= self.k:
            return self
        return KnnGraph(self.indices[:, :k], self.similarities[:, :k], self.notes)


def knn_graph(
    embeddings: ArrayLike | UnitRows,
    k: int,
    *,
    n_threads: int | None = None,
    progress: Progress = silent,
) -> KnnGraph:
    """Find the k nearest neighbours of every item by cosine similarity, exactly.

    Parameters
    ----------
    embeddings : (n, d) array or memory map
        Float16, float32, float64 or integers, of any length: rows are brought
        to unit length first.
    k : int
        Neighbours per item. More of them find more of a person's photos and
        cost proportionally more in the later stages. Where k exceeds n - 1 the
        graph is n - 1 wide and its ``notes`` say so.
    n_threads : int, optional
        All cores of the process by default. The result does not depend on it.
    progress : callable, optional
        Called with (stage, done, total) as the search goes on.

    Returns
    -------
    KnnGraph

    Notes
    -----
    Ties go to the lower index. Exact copies of an item count as one: each
    distinct item appears once (as the first of its copies) before any appears
    twice, so that an item stored 200 times has one copy of itself among its
    neighbours and k - 1 others.

    Costs n² d / 2 multiplications. Memory beyond the result is 16 k + 1024 bytes
    per item and a few dozen MB per thread and, up to 2 GiB of it, a float32 copy of the embeddings.

    Examples
    --------
    >>> import numpy as np, facelink
    >>> angles = np.radians([0, 10, 90, 95])
    >>> graph = facelink.knn_graph(np.c_[np.cos(angles), np.sin(angles)], k=1)
    >>> graph.indices.ravel()
    array([1, 0, 3, 2], dtype=int32)
    """
    if not isinstance(k, int | np.integer) or isinstance(k, bool) or k < 1:
        raise InputError(f"k, the neighbours per item, should be a whole number from 1, got {k!r}.")
    rows = UnitRows.of(embeddings)
    n_items = len(rows)
    notes: tuple[str, ...] = ()
    width = int(min(k, n_items - 1))
    if width < k:
        notes = (f"k = {k} neighbours were asked for, but {n_items} items have {width} each.",)

    first_copy, group = find_distinct(rows)
    n_copies = n_items - len(first_copy)
    report = partial(progress, "neighbours")
    indices, similarities = nearest(
        rows, first_copy, min(width, len(first_copy) - 1), n_threads=n_threads, report=report
    )
    if n_copies:
        indices, similarities = list_copies(indices, similarities, first_copy, group, width)
    return KnnGraph(indices, similarities, notes)


def similarities_to(rows: UnitRows, indices: NDArray[np.integer]) -> NDArray[np.float32]:
    """The cosine similarities of each item to those listed for it: (n, k) to (n, k)."""
    n_items, k = indices.shape
    similarities = np.empty((n_items, k), np.float32)
    for block in blocks(n_items, max(1, BLOCK_BYTES // (4 * max(k, 1) * rows.shape[1]))):
        listed = rows[indices[block].ravel()].reshape(*indices[block].shape, -1)  # (rows, k, d)
        similarities[block] = np.einsum("nd,nkd->nk", rows[block], listed)
    return similarities
