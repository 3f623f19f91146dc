"""Several embeddings of the same items, such as faces and voices, joined into one.

The paper's way (section 4.6): every view is brought to unit length, multiplied by a
weight and written beside the others. The similarity of two items is then the mean of
the views' similarities, weighted by the squares of the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facelink.compiled import blocks
from facelink.embeddings import BLOCK_BYTES, UnitRows, as_embeddings, name_rows, refuse_rows
from facelink.errors import InputError
from facelink.links.background import Background
from facelink.scratch import scratch_array

SAMPLE = 4000  # items from which the spread of a view is read


@dataclass(frozen=True)
class View:
    """One of several embeddings of the same items; some of them may lack it.

    Attributes
    ----------
    present : (m,) int array
        The items that have it, ascending.
    rows : UnitRows
        Their embeddings: (m, d).
    n_items : int
        Of the collection.
    """

    present: NDArray[np.int64]
    rows: UnitRows
    n_items: int

    @property
    def dimension(self) -> int:
        return self.rows.shape[1]

    def of(self, items: NDArray[np.integer]) -> View:
        """The view of some items, ascending, numbered anew."""
        if len(items) == self.n_items:
            return self
        place = np.full(self.n_items, -1)
        place[self.present] = np.arange(len(self.present))
        there = np.flatnonzero(place[items] >= 0)
        rows = self.rows[place[items[there]]]
        return View(there, UnitRows(rows), len(items))


def as_views(views: Sequence[ArrayLike]) -> list[View]:
    """Check several embeddings of the same items; a row of NaN means that the item lacks one.

    Each is an (n, d) array; d may differ between them.
    """
    arrays = [as_embeddings(view) for view in views]
    n_items = len(arrays[0])
    for number, array in enumerate(arrays[1:], 2):
        if len(array) != n_items:
            raise InputError(
                f"Views are embeddings of the same items: expected {n_items:,} rows in view "
                f"{number}, as in the first, got {len(array):,}. An item that lacks a view has a "
                "row of NaN in it."
            )
    found = []
    nowhere = np.ones(n_items, bool)
    for number, array in enumerate(arrays, 1):
        try:
            lacking = _lacking(array)
        except InputError as error:
            raise InputError(
                f"View {number}: {error} A row that is NaN throughout is an item without this view."
            ) from None
        nowhere &= lacking
        present = np.flatnonzero(~lacking)
        if not len(present):
            raise InputError(f"View {number} is missing of every item: all of its rows are NaN.")
        found.append(View(present, UnitRows(array[present] if lacking.any() else array), n_items))
    if nowhere.any():
        items = np.flatnonzero(nowhere)
        raise InputError(
            f"Every view is missing of {len(items):,} of the items: {name_rows(items)}. Leave them "
            "out of all views."
        )
    return found


def join_views(
    views: Sequence[ArrayLike], *, weights: Sequence[float] | None = None
) -> NDArray[np.float32]:
    """Join several embeddings of the same items into one, as the paper does.

    Parameters
    ----------
    views : sequence of (n, d) arrays
        Rows of NaN are items that lack the view.
    weights : sequence of float, optional
        One for each view; 1 each by default. A view counts with the square of
        its weight.

    Returns
    -------
    (n, sum of d) float32 array
        Zero where an item lacks a view.

    Examples
    --------
    >>> import numpy as np, facelink
    >>> faces, voices = [[3, 4], [0, 2]], [[5.0], [np.nan]]
    >>> facelink.join_views([faces, voices], weights=[1, 0.5])
    array([[0.6, 0.8, 0.5], [0. , 1. , 0. ]], dtype=float32)
    """
    checked = as_views(views)
    return join(checked, check_weights(weights, len(checked)))


def join(views: Sequence[View], weights: Sequence[float]) -> NDArray[np.float32]:
    """The same of views that were checked."""
    n_items = views[0].n_items
    joined = scratch_array((n_items, sum(view.dimension for view in views)))
    joined[:] = 0
    left = 0
    for view, weight in zip(views, weights, strict=True):
        columns = slice(left, left + view.dimension)
        for block in blocks(len(view.present), max(1, BLOCK_BYTES // (4 * view.dimension))):
            joined[view.present[block], columns] = np.float32(weight) * view.rows[block]
        left = columns.stop
    return joined


def check_weights(weights: Sequence[float] | None, n_views: int) -> list[float]:
    """One positive weight for each view; 1 each if none are given."""
    if weights is None:
        return [1.0] * n_views
    if n_views < 2:
        raise InputError("weights are those of several views; there is but one. Pass views=[…].")
    checked = np.asarray(weights, dtype=object)
    if checked.shape != (n_views,) or not all(
        isinstance(w, int | float | np.number) and 1e-9 < w < 1e9 for w in checked
    ):
        raise InputError(
            f"Expected {n_views} weights above 0 and below 1e9, one for each view, got "
            f"{weights!r}. To leave a view out, do not pass it."
        )
    return [float(weight) for weight in checked]


def even_weights(views: Sequence[View], *, seed: int = 0) -> list[float]:
    """Weights that let strangers' similarities spread as widely in one view as in another.

    Cosines of voices may lie between 0.5 and 0.7 where those of faces lie between -0.2 and 0.2.
    """
    spreads = []
    for view in views:
        some = np.random.default_rng(seed).permutation(len(view.present))[:SAMPLE]
        spreads.append(Background.of(UnitRows(view.rows[np.sort(some)])).typical_spreads[0])
    largest = max(spreads)
    return [float(np.sqrt(largest / max(spread, 1e-6))) for spread in spreads]


def _lacking(array: NDArray[Any]) -> NDArray[np.bool_]:
    """Which rows are NaN throughout; the others have to be vectors."""
    lacking = np.zeros(len(array), bool)
    spoilt, zero = lacking.copy(), lacking.copy()
    for block in blocks(len(array), max(1, BLOCK_BYTES // (8 * array.shape[1]))):
        rows = array[block]
        if array.dtype.kind == "f":
            lacking[block] = np.isnan(rows).all(axis=1)
            spoilt[block] = ~np.isfinite(rows).all(axis=1) & ~lacking[block]
        zero[block] = ~rows.any(axis=1)
    refuse_rows(spoilt, zero)
    return lacking
