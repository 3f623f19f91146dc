"""Figures as PNG and SVG, with matplotlib."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from facelink.data.writing import write_aside
from facelink.errors import MissingExtraError
from facelink.experiments.bench import Row

# Colours that people who see red and green alike can tell apart.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555")
STYLE = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "font.size": 9,
    "legend.frameon": False,
    "svg.hashsalt": "facelink",  # the same figure gives the same file
}


def check_matplotlib() -> None:
    """Say before the work is done that figures could not be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingExtraError(
            "Drawing figures needs matplotlib: pip install 'facelink[bench]'"
        ) from None


def draw_to(
    path: Path, drawing: Callable[[Sequence[Row], Any], None], rows: Sequence[Row]
) -> list[Path]:
    """Draw rows with ``drawing(rows, figure)`` to PATH.png and PATH.svg."""
    import matplotlib as mpl
    from cycler import cycler
    from matplotlib.figure import Figure

    written = []
    style: dict[Any, Any] = {**STYLE, "axes.prop_cycle": cycler(color=COLORS)}
    with mpl.rc_context(style):
        figure = Figure(figsize=(8, 3.4), layout="constrained")
        drawing(rows, figure)
        for suffix, options in ((".png", {"dpi": 150}), (".svg", {"metadata": {"Date": None}})):
            content = io.BytesIO()
            figure.savefig(content, format=suffix[1:], **options)
            file = path.with_suffix(suffix)
            write_aside(file, content.getvalue())
            written.append(file)
    return written
