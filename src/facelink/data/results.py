"""Writing what `facelink cluster` found: labels, a table, a summary."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from facelink.data.writing import check_place, make_folder, write_aside
from facelink.errors import ResultExistsError
from facelink.pipeline import Clustering

LABELS, TABLE, SUMMARY = "labels.npy", "clusters.csv", "summary.json"
LARGEST = 10


def check_folder(
    folder: Path, *, force: bool = False, names: Sequence[str] = (LABELS, TABLE, SUMMARY)
) -> None:
    """Refuse a folder that already holds files of these names, before any work is done."""
    check_place(folder)
    found = ", ".join(name for name in names if (folder / name).exists())
    if not found or force:
        return
    if "facelink" in read_summary(folder):
        raise ResultExistsError(
            f"{folder} already holds a result ({found}). Choose another folder with -o, or replace "
            "it with --force."
        )
    raise ResultExistsError(
        f"{folder} holds {found}, which facelink did not write and would overwrite. Choose another "
        "folder with -o."
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
        "notes": list(clustering.notes),
    }


def write_result(folder: Path, clustering: Clustering, summary: dict[str, Any]) -> list[Path]:
    """Write a result; each file appears whole or not at all, the summary last."""
    make_folder(folder)
    array = io.BytesIO()
    np.save(array, clustering.labels)
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["item", "cluster", "confidence"])
    rows = zip(clustering.labels.tolist(), clustering.confidence.tolist(), strict=True)
    writer.writerows((item, label, f"{sure:.4f}") for item, (label, sure) in enumerate(rows))
    text = json.dumps(summary, indent=2) + "\n"
    contents = {LABELS: array.getvalue(), TABLE: table.getvalue().encode(), SUMMARY: text.encode()}
    for name, content in contents.items():
        write_aside(folder / name, content)
    return [folder / name for name in contents]
