"""Reading embeddings and labels from files, whoever made them.

Nothing that is read here can run code: arrays of Python objects are refused.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from facelink.data.writing import is_there
from facelink.embeddings import Parts, as_embeddings
from facelink.errors import FileError, InputError, MissingExtraError
from facelink.labels import as_labels
from facelink.scratch import scratch_array

PARQUET_ROWS = 65_536  # read at once
OBJECTS = (
    "Python objects, which are not read: they could run code. Save it as numbers: "
    "numpy.save(path, array.astype('float32'))."
)


def read_embeddings(paths: Sequence[str | Path], *, dim: int | None = None) -> NDArray[Any]:
    """Read the embeddings of one collection from one or several files, one after the other.

    Parameters
    ----------
    paths : sequence of paths
        ``.npy``, ``.npz`` (array ``x``), ``.parquet`` (a column ``embedding``
        of lists, or all numeric columns) or ``.bin`` (raw float32).
    dim : int, optional
        The dimension, for ``.bin``, which does not say it.

    Returns
    -------
    (n, d) array
        A memory map for a single ``.npy`` or ``.bin``; several files are read as they
        are needed, like one array (`facelink.embeddings.Parts`).
    """
    parts: list[NDArray[Any]] = []
    for path in map(Path, paths):
        readers: dict[str, Callable[[Path], NDArray[Any]]] = {
            ".npy": _read_npy,
            ".npz": lambda path: _read_npz(path, "x"),
            ".parquet": _read_parquet,
            ".bin": lambda path: _read_bin(path, dim),
        }
        part = _read(path, readers, "embeddings")
        try:
            part = as_embeddings(part)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        if parts and part.shape[1] != parts[0].shape[1]:
            raise InputError(
                f"{path} holds embeddings of {part.shape[1]} dimensions, {paths[0]} of "
                f"{parts[0].shape[1]}. Parts of one collection have the same dimension."
            )
        parts.append(part)
    return parts[0] if len(parts) == 1 else cast(NDArray[Any], Parts(parts))


def read_labels(path: str | Path) -> NDArray[Any]:
    """Read one label per item: ``.npy``, ``.npz`` (array ``y``), ``.csv``, ``.txt`` or ``.meta``.

    A ``.csv`` has a header; its column ``cluster``, ``label`` or ``identity``
    is read, or the only one it has. A column ``item`` with the items' numbers says the order.
    ``.txt`` and ``.meta`` have one label per line.
    """
    path = Path(path)
    readers: dict[str, Callable[[Path], NDArray[Any]]] = {
        ".npy": _read_npy,
        ".npz": lambda path: _read_npz(path, "y"),
        ".csv": _read_csv_labels,
        ".txt": _read_lines,
        ".meta": _read_lines,
    }
    return as_labels(_read(path, readers, "labels"), f"The labels in {path}")


def read_array(path: str | Path, name: str) -> NDArray[Any]:
    """Read an array from ``.npy``, or the array of this name from ``.npz``."""
    readers: dict[str, Callable[[Path], NDArray[Any]]] = {
        ".npy": _read_npy,
        ".npz": lambda path: _read_npz(path, name),
    }
    return _read(Path(path), readers, "an array")


def _read(
    path: Path, readers: dict[str, Callable[[Path], NDArray[Any]]], what: str
) -> NDArray[Any]:
    """Read a file by its ending, turning whatever goes wrong into a plain message."""
    if is_there(path) and path.is_dir():
        raise FileError(f"{path} is a folder; expected a file of {what}.")
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise FileError(
            f"{path} has an ending that is not known for {what}: expected one of "
            f"{', '.join(readers)}."
        )
    if not is_there(path):
        raise FileError(f"There is no file {path}.")
    try:
        return reader(path)
    except OSError as error:
        if error.strerror is None:  # numpy's own, on a file that is no archive
            raise FileError(f"{path} is damaged or not what its name says ({error}).") from None
        raise FileError(f"Cannot read {path}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise FileError(f"{path} is not text in UTF-8.") from None
    except csv.Error as error:
        raise FileError(f"{path} is damaged or not what its name says ({error}).") from None


def _read_npy(path: Path) -> NDArray[Any]:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        if "Object arrays" in str(error) or "Python objects" in str(error):
            raise FileError(f"{path} holds {OBJECTS}") from None
        if "allow_pickle" in str(error):  # numpy takes whatever it does not know for that
            raise FileError(
                f"{path} is not a .npy file of numbers. Save it as one: "
                "numpy.save(path, array.astype('float32'))."
            ) from None
        raise FileError(f"{path} is truncated or not a .npy file ({error}).") from None
    if not isinstance(array, np.ndarray):
        array.close()
        raise FileError(f"{path} is an .npz archive under another name: rename it to .npz.")
    return array


def _read_npz(path: Path, name: str) -> NDArray[Any]:
    import zipfile
    import zlib

    try:
        with np.load(path, allow_pickle=False) as archive:
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise FileError(f"{path} is not an .npz archive.")
            if name not in archive.files:
                raise FileError(
                    f"{path} has no array {name!r}; it holds {', '.join(archive.files) or 'none'}."
                )
            return archive[name]
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error, TypeError) as error:
        if isinstance(error, FileError):
            raise
        if "Object arrays" in str(error):
            raise FileError(f"{path} holds {OBJECTS}") from None
        raise FileError(f"{path} is truncated or not an .npz file ({error}).") from None


def array_names(path: str | Path) -> set[str]:
    """The arrays of an ``.npz``; none if it cannot be read as one."""
    import zipfile

    try:
        with zipfile.ZipFile(path) as archive:
            return {name.removesuffix(".npy") for name in archive.namelist()}
    except (OSError, zipfile.BadZipFile):
        return set()


def _read_bin(path: Path, dim: int | None) -> NDArray[Any]:
    if dim is None:
        raise InputError(f"{path} does not say its dimension: give it with --dim (dim=).")
    if dim < 1:
        raise InputError(f"The dimension should be a whole number from 1, got {dim}.")
    size = path.stat().st_size
    if size == 0 or size % (4 * dim):
        raise FileError(
            f"{path} has {size:,} bytes, which is not a whole number of float32 rows of {dim} "
            "dimensions. The dimension is another, or the file is truncated."
        )
    return np.memmap(path, np.float32, mode="r", shape=(size // (4 * dim), dim))


def _read_parquet(path: Path) -> NDArray[Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtraError(
            f"Reading {path} needs pyarrow: pip install 'facelink[parquet]'"
        ) from None
    try:
        file = pyarrow.parquet.ParquetFile(path)
        n_rows, schema = file.metadata.num_rows, file.schema_arrow
        columns = ["embedding"] if "embedding" in schema.names else _numeric_columns(path, schema)
        rows: NDArray[Any] | None = None
        done = 0
        # A piece at a time: together the columns take several times what the rows do.
        for batch in file.iter_batches(PARQUET_ROWS, columns=columns):
            _refuse_empty(path, batch)
            some = (
                _rows_of(path, batch)
                if columns == ["embedding"]
                else np.column_stack(
                    [column.to_numpy(zero_copy_only=False) for column in batch.columns]
                )
            )
            if rows is None:
                rows = scratch_array((n_rows, some.shape[1]), some.dtype)
            if some.shape[1] != rows.shape[1]:
                raise InputError(
                    f"{path}: the column embedding holds lists of {rows.shape[1]} and of "
                    f"{some.shape[1]} numbers; expected one length."
                )
            rows[done : done + len(some)] = some
            done += len(some)
    except pyarrow.ArrowException as error:
        raise FileError(f"{path} is truncated or not a Parquet file ({error}).") from None
    return np.empty((0, 0), np.float32) if rows is None else rows


def _numeric_columns(path: Path, schema: Any) -> list[str]:
    import pyarrow.types

    numeric = [
        field.name
        for field in schema
        if (pyarrow.types.is_floating(field.type) or pyarrow.types.is_integer(field.type))
        and not field.name.startswith("__index_level_")  # of pandas
    ]
    if not numeric:
        raise InputError(
            f"{path} has neither a column 'embedding' nor numeric columns; it has "
            f"{', '.join(schema.names) or 'none'}."
        )
    return numeric


def _refuse_empty(path: Path, batch: Any) -> None:
    """Refuse cells without a value, which arrays of whole numbers have no place for."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        inside = column.flatten().null_count if hasattr(column, "flatten") else 0
        if column.null_count or inside:
            count = column.null_count or inside
            raise InputError(f"{path}: {count} rows of the column {name} are empty.")


def _rows_of(path: Path, batch: Any) -> NDArray[Any]:
    """The lists of a column as the rows of an array."""
    lists = batch.column(0)
    try:
        lengths = np.unique(lists.value_lengths() if hasattr(lists, "value_lengths") else [
            len(row) for row in lists])  # fmt: skip
    except (TypeError, AttributeError):
        raise InputError(f"{path}: the column embedding should hold lists of numbers.") from None
    if len(lengths) > 1:
        raise InputError(
            f"{path}: the column embedding holds lists of {lengths.min()} to {lengths.max()} "
            "numbers; expected one length."
        )
    width = int(lengths[0]) if len(lengths) else 0
    return lists.flatten().to_numpy(zero_copy_only=False).reshape(len(lists), width)


def _read_csv_labels(path: Path) -> NDArray[Any]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        header, *rows = list(csv.reader(file)) or [[]]
    known: list[str] = [name for name in ("cluster", "label", "identity") if name in header]
    if not known and len(header) == 1:
        known = header
        if header[0].strip().lstrip("-").isdigit():  # no header, but a label
            rows.insert(0, header)
            return _as_numbers(path, [row[0] if row else "" for row in rows], first_line=1)
    if not known:
        raise InputError(
            f"{path} should have a header with a column cluster, label or identity, or just one "
            f"column; its first line is {','.join(header)[:80]!r}."
        )
    column = header.index(known[0])
    labels = [row[column] if column < len(row) else "" for row in rows]
    read = _as_numbers(path, labels, first_line=2)
    if "item" not in header:
        return read
    place = header.index("item")
    return _in_order(path, read, [row[place] if place < len(row) else "" for row in rows])


def _in_order(path: Path, labels: NDArray[Any], items: list[str]) -> NDArray[Any]:
    """The labels by the numbers of their items; as they are where items have names."""
    if not all(item.strip().isdecimal() for item in items):
        return labels
    numbers = np.array([int(item) for item in items])
    order = np.argsort(numbers, kind="stable")
    wrong = np.flatnonzero(numbers[order] != np.arange(len(numbers)))
    if len(wrong):
        raise InputError(
            f"{path}: the column item should number the {len(numbers):,} items from 0 to "
            f"{len(numbers) - 1:,}, each once; {wrong[0]:,} is missing or comes twice."
        )
    return labels[order]


def _read_lines(path: Path) -> NDArray[Any]:
    lines = path.read_text(encoding="utf-8-sig").split("\n")
    return _as_numbers(path, lines[:-1] if lines[-1].strip() == "" else lines, first_line=1)


def _as_numbers(path: Path, texts: list[str], first_line: int) -> NDArray[Any]:
    """Whole numbers where all of them are written as such, else text: 007 is not 7."""
    texts = [text.strip() for text in texts]
    if "" in texts:
        raise InputError(f"{path} has no label in line {texts.index('') + first_line}.")
    try:
        numbers = [int(text) for text in texts]
    except ValueError:
        return np.array(texts, dtype=str)
    if all(str(number) == text for number, text in zip(numbers, texts, strict=True)):
        with suppress(OverflowError):
            return np.array(numbers, dtype=np.int64)
    return np.array(texts, dtype=str)
