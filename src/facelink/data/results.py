"""Writing what `facelink cluster` found: labels, a table, a summary."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from facelink.data.writing import make_folder, write_aside
from facelink.errors import FileError, ResultExistsError
from facelink.pipeline import Clustering

LABELS, TABLE, SUMMARY = "labels.npy", "clusters.csv", "summary.json"
LARGEST = 10


def check_folder(folder: Path, *, force: bool = False) -> None:
    """Refuse a folder that already holds a result, before any work is done."""
    if folder.exists() and not folder.is_dir():
        raise FileError(f"{folder} is a file; expected a folder for the result.")
    found = [name for name in (LABELS, TABLE, SUMMARY) if (folder / name).exists()]
    if found and not force:
        raise ResultExistsError(
            f"{folder} already holds a result ({', '.join(found)}). Choose another folder with -o, "
            "or replace it with --force."
        )


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
    text = json.dumps(summary, indent=2, ensure_ascii=False) + "\n"
    contents = {LABELS: array.getvalue(), TABLE: table.getvalue().encode(), SUMMARY: text.encode()}
    for name, content in contents.items():
        write_aside(folder / name, content)
    return [folder / name for name in contents]
