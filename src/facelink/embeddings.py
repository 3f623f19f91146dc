"""What every stage asks of embeddings: a checked (n, d) array, rows of unit length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from facelink.compiled import blocks, compiled
from facelink.errors import InputError
from facelink.scratch import IN_MEMORY_BYTES

BLOCK_BYTES = 64 << 20


class Parts:
    """Several arrays of rows as one collection, without joining them in memory.

    ``parts[index]`` takes a slice or an array of indices, like an array.
    """

    ndim = 2

    def __init__(self, arrays: Sequence[NDArray[Any]]) -> None:
        self.arrays = arrays
        self.starts = np.cumsum([0, *(len(array) for array in arrays)])
        self.shape = (int(self.starts[-1]), int(arrays[0].shape[1]))
        self.dtype = np.result_type(*(array.dtype for array in arrays))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: slice | NDArray[np.integer]) -> NDArray[Any]:
        items = np.arange(*index.indices(len(self))) if isinstance(index, slice) else index
        out = np.empty((len(items), self.shape[1]), self.dtype)
        part_of = np.searchsorted(self.starts, items, side="right") - 1
        for part in np.unique(part_of):
            here = part_of == part
            out[here] = self.arrays[part][items[here] - self.starts[part]]
        return out

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self[:], dtype)


def as_embeddings(embeddings: ArrayLike | Parts) -> NDArray[Any]:
    """Return ``embeddings`` as a 2-d array of numbers, or say what is wrong with its form.

    Only the form is checked here, without reading the values (it may be a
    memory map); `UnitRows` checks those as it reads them.
    """
    if isinstance(embeddings, Parts):
        return cast(NDArray[Any], embeddings)  # an array as far as we are concerned
    try:
        array = np.asanyarray(embeddings)
    except ValueError as error:  # rows of different lengths
        raise InputError(
            "Expected embeddings as a 2-d array, one row per item, but the rows have "
            f"different lengths ({error})."
        ) from None
    if array.dtype.kind not in "fiub":
        raise InputError(
            f"Expected embeddings of numbers, got an array of {_kind_name(array.dtype)}. "
            "Convert it with numpy: array.astype('float32')."
        )
    if array.ndim != 2:
        shape = " x ".join(map(str, array.shape)) or "a single number"
        raise InputError(
            f"Expected embeddings as a 2-d array, one row per item, got {array.ndim}-d ({shape}). "
            "Reshape your data: array.reshape(1, -1) if it is one item, "
            "array.reshape(len(array), -1) if each item has several axes."
        )
    if array.shape[0] == 0 or array.shape[1] == 0:
        raise InputError(
            f"The collection is empty: {array.shape[0]} items of {array.shape[1]} dimensions. "
            "Expected at least one of each."
        )
    return array


def _kind_name(dtype: np.dtype) -> str:
    names = {"O": "Python objects", "U": "text", "S": "bytes", "c": "complex numbers"}
    return names.get(dtype.kind, f"type {dtype}")


class Rows(Protocol):
    """Unit vectors to be compared, given by a slice or an array of indices."""

    shape: tuple[int, int]

    def __len__(self) -> int: ...

    def __getitem__(self, index: slice | NDArray[np.integer]) -> NDArray[np.float32]: ...


class UnitRows:
    """The rows of a collection, brought to unit length as float32 when asked for.

    ``rows[index]`` takes a slice or an array of indices. A collection that is
    small enough is converted once; a larger one (a memory map, say) is read and
    converted piece by piece. Either way a row comes out the same to the bit.
    """

    def __init__(self, embeddings: ArrayLike) -> None:
        self.raw: NDArray[Any] | _Taken = as_embeddings(embeddings)
        self.shape: tuple[int, int] = self.raw.shape
        n_items, dimension = self.shape
        small = 4 * n_items * dimension <= IN_MEMORY_BYTES
        converted = np.empty(self.shape, np.float32) if small else None
        faults = np.empty(n_items, np.uint8)
        for block in blocks(n_items, max(1, BLOCK_BYTES // (8 * dimension))):
            rows, faults[block] = self._convert(block)
            if converted is not None:
                converted[block] = rows
        refuse_rows(faults == NOT_FINITE, faults == ZERO)
        self.array = converted

    @classmethod
    def of(cls, embeddings: ArrayLike | UnitRows) -> UnitRows:
        """The rows of a collection, which may be `UnitRows` already."""
        return embeddings if isinstance(embeddings, UnitRows) else cls(embeddings)

    def taking(self, items: NDArray[np.integer]) -> UnitRows:
        """The rows of some items, in their order."""
        taken = UnitRows.__new__(UnitRows)
        taken.shape = (len(items), self.shape[1])
        taken.raw = _Taken(self.raw, items)
        taken.array = None if self.array is None else self.array[items]
        return taken

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: slice | NDArray[np.integer]) -> NDArray[np.float32]:
        return self._convert(index)[0] if self.array is None else self.array[index]

    def _convert(
        self, index: slice | NDArray[np.integer]
    ) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        rows = np.ascontiguousarray(self.raw[index], dtype=np.float64)
        out = np.empty(rows.shape, np.float32)
        faults = np.empty(len(rows), np.uint8)
        _to_unit_length(rows, out, faults)
        return out, faults


@dataclass(frozen=True)
class _Taken:
    """Some rows of an array, read when asked for."""

    raw: NDArray[Any] | _Taken
    items: NDArray[np.integer]

    def __getitem__(self, index: slice | NDArray[np.integer]) -> NDArray[Any]:
        return self.raw[self.items[index]]


NOT_FINITE, ZERO = 1, 2


def refuse_rows(spoilt: NDArray[np.bool_], zero: NDArray[np.bool_]) -> None:
    """Refuse rows with NaN or infinity, and rows of zeros, by their numbers."""
    _refuse("NaN or infinity", np.flatnonzero(spoilt))
    _refuse("Zero vectors, which point nowhere,", np.flatnonzero(zero))


def name_rows(rows: NDArray[np.integer]) -> str:
    """The first few rows, for a message."""
    return ", ".join(map(str, rows[:5])) + (", …" if len(rows) > 5 else "") + " (counted from 0)"


def _refuse(fault: str, rows: NDArray[np.integer]) -> None:
    if len(rows):
        count = "1 row" if len(rows) == 1 else f"{len(rows):,} rows"
        raise InputError(
            f"{fault} in {count} of the embeddings: {name_rows(rows)}. "
            "Remove them, or look at how they were computed."
        )


@compiled
def _to_unit_length(rows, out, faults):  # (n, d) float64, (n, d) float32, (n,) uint8
    for i in range(rows.shape[0]):
        # Scaling by the largest entry keeps the squares of 1e300 and 1e-300 in range.
        largest = 0.0
        faults[i] = 0
        for j in range(rows.shape[1]):
            size = abs(rows[i, j])
            if not np.isfinite(size):
                faults[i] = NOT_FINITE
            largest = max(largest, size)
        if faults[i] == 0 and largest == 0.0:
            faults[i] = ZERO
        if faults[i] != 0:
            continue
        total = 0.0
        for j in range(rows.shape[1]):
            total += (rows[i, j] / largest) ** 2
        scale = 1.0 / np.sqrt(total)
        for j in range(rows.shape[1]):
            out[i, j] = rows[i, j] / largest * scale + 0.0  # + 0.0 turns -0.0 into 0.0
