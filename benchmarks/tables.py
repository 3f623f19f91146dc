"""Saving and printing what a benchmark measured, with what is needed to judge it."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import facelink
from facelink.experiments.tables import markdown

__all__ = ["RESULTS", "machine", "markdown", "save"]

RESULTS = Path(__file__).resolve().parent / "results"


def machine() -> dict[str, Any]:
    """The machine and the versions that a figure was measured with."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = lines[0].partition(":")[2].strip() if lines else model
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "facelink": facelink.__version__,
    }


def save(name: str, rows: Sequence[dict[str, Any]], columns: Sequence[str], **about: Any) -> None:
    """Write results/NAME.json and results/NAME.md."""
    RESULTS.mkdir(exist_ok=True)
    content = {"about": about, "machine": machine(), "rows": list(rows)}
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1, default=float) + "\n")
    notes = "".join(f"- {key}: {value}\n" for key, value in {**about, **machine()}.items())
    (RESULTS / f"{name}.md").write_text(f"{markdown(rows, columns)}\n\n{notes}")
