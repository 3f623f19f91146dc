"""Writing what `facelink cluster` found: labels, a table, a summary."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from facelink.compiled import blocks
from facelink.data.writing import Content, check_place, make_folder, write_together
from facelink.errors import MissingExtraError, ResultExistsError
from facelink.pipeline import Clustering

LABELS, TABLE, SUMMARY = "labels.npy", "clusters.csv", "summary.json"
PARQUET = "clusters.parquet"  # the table again, if asked for
LARGEST = 10


def check_folder(
    folder: Path,
    *,
    force: bool | None = False,
    names: Sequence[str] = (LABELS, TABLE, PARQUET, SUMMARY),
) -> None:
    """Refuse a folder that already holds files of these names, before any work is done.

    With ``force`` a result of facelink's may be replaced, but nothing else. None: there is no
    such option.
    """
    check_place(folder)
    found = ", ".join(name for name in names if (folder / name).exists())
    if not found:
        return
    if "facelink" not in read_summary(folder):
        raise ResultExistsError(
            f"{folder} holds {found}, which facelink did not write and would overwrite. Choose "
            "another folder with -o."
        )
    if not force:
        raise ResultExistsError(
            f"{folder} already holds a result ({found}). Choose another folder with -o"
            + ("." if force is None else ", or replace it with --force.")
        )


def read_summary(folder: Path) -> dict[str, Any]:
    """The summary of the result in a folder; empty if there is none."""
    try:
        found = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def summarize(clustering: Clustering) -> dict[str, Any]:
    """The figures that people look at first."""
    sizes = np.sort(np.bincount(clustering.labels))[::-1]
    singletons = int((sizes == 1).sum())
    return {
        "items": len(clustering.labels),
        "clusters": int((sizes > 1).sum()),
        "items in clusters": len(clustering.labels) - singletons,
        "singletons": singletons,
        "largest clusters": [int(size) for size in sizes[:LARGEST] if size > 1],
        "mean confidence": round(float(clustering.confidence.mean()), 4),
        **({} if clustering.recall is None else {"recall": round(clustering.recall, 4)}),
        "notes": list(clustering.notes),
    }


def write_result(
    folder: Path, clustering: Clustering, summary: dict[str, Any], *, parquet: bool = False
) -> list[Path]:
    """Write a result: all of its files, or none where that is interrupted."""
    make_folder(folder)
    for name in (LABELS, TABLE, PARQUET, SUMMARY):  # left by a process that was killed
        for half_written in folder.glob(f".{name}.*.part"):
            half_written.unlink(missing_ok=True)
    array = io.BytesIO()
    np.save(array, clustering.labels)
    text = json.dumps(summary, indent=2) + "\n"
    contents: dict[str, Content] = {
        LABELS: array.getvalue(),
        TABLE: partial(_write_csv, clustering=clustering),
        PARQUET: partial(_write_parquet, clustering=clustering),
        SUMMARY: text.encode(),
    }
    if not parquet:
        del contents[PARQUET]
    files = {folder / name: content for name, content in contents.items()}
    write_together(files)
    if not parquet:
        (folder / PARQUET).unlink(missing_ok=True)  # of a result that this one replaces
    return list(files)


def _write_csv(file: IO[bytes], clustering: Clustering) -> None:
    file.write(b"item,cluster,confidence\n")
    for block in blocks(len(clustering.labels), 65_536):
        labels, sure = clustering.labels[block].tolist(), clustering.confidence[block].tolist()
        rows = zip(range(block.start, block.stop), labels, sure, strict=True)
        file.write("".join(f"{item},{label},{p:.4f}\n" for item, label, p in rows).encode())


def _write_parquet(file: IO[bytes], clustering: Clustering) -> None:
    import pyarrow
    import pyarrow.parquet

    columns = {
        "item": np.arange(len(clustering.labels)),
        "cluster": clustering.labels,
        "confidence": clustering.confidence,
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), file)


def check_parquet() -> None:
    """Refuse to write Parquet, before any work is done, where that cannot be."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise MissingExtraError(
            "Writing Parquet needs pyarrow: pip install 'facelink[parquet]'"
        ) from None
