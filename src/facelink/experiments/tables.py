"""Tables as text, Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from facelink.data.writing import make_folder, write_aside

RESULTS = ("F", "pairwise F", "NMI", "singletons", "seconds")  # stay in the table, even if equal


def columns_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Every column that any row has, in the order of their first appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))


def texts_of(values: Sequence[Any]) -> list[str]:
    """The values of a column, all with as many decimals as any of them has, four at most."""
    floats = [f"{value:.4f}".rstrip("0") for value in values if isinstance(value, float)]
    decimals = max((len(text.partition(".")[2]) for text in floats), default=1) or 1

    def text(value: Any) -> str:
        if value is None:
            return ""
        if isinstance(value, float):
            return f"{value:,.{decimals}f}"
        whole = isinstance(value, int) and not isinstance(value, bool)
        return f"{value:,}" if whole else str(value)

    return [text(value) for value in values]


def _as_texts(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> list[list[str]]:
    by_column = [texts_of([row.get(name) for row in rows]) for name in columns]
    return [list(line) for line in zip(*by_column, strict=True)]


def markdown(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> str:
    """A table in Markdown."""
    columns = columns or columns_of(rows)
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for line in _as_texts(rows, columns):
        lines.append("| " + " | ".join(text.replace("|", "\\|") for text in line) + " |")
    return "\n".join(lines)


def plain(rows: Sequence[Mapping[str, Any]], width: int = 80) -> str:
    """A table for the terminal. What is the same in every row is said once, above it.

    Where the first column repeats itself, each of its values has a table of its own.
    """
    columns = columns_of(rows)
    groups: dict[Any, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row.get(columns[0]), []).append(row)
    if len(groups) > 1 and all(len(group) > 1 for group in groups.values()):
        return "\n\n".join(plain(group, width) for group in groups.values())
    common = {
        name: rows[0].get(name)
        for name in columns
        if len(rows) > 1
        and name not in RESULTS
        and all(row.get(name) == rows[0].get(name) for row in rows)
    }
    lines = [f"{name}: {texts_of([value])[0]}" for name, value in common.items()]
    shown = [name for name in columns if name not in common]
    cells = [shown, *_as_texts(rows, shown)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(shown))]
    numeric = [all(isinstance(row.get(name), int | float | None) for row in rows) for name in shown]
    for line in cells:
        parts = (
            cell.rjust(size) if right else cell.ljust(size)
            for cell, size, right in zip(line, widths, numeric, strict=True)
        )
        text = "  ".join(parts).rstrip()
        lines.append(text if len(text) <= width else text[: width - 1] + "…")
    return "\n".join(lines)


def write_table(
    folder: Path, name: str, title: str, rows: Sequence[Mapping[str, Any]], about: Mapping[str, Any]
) -> list[Path]:
    """Write NAME.csv, NAME.json and NAME.md."""
    make_folder(folder)
    columns = columns_of(rows)
    table = io.StringIO()
    writer = csv.DictWriter(table, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    content = {"title": title, "about": about, "rows": list(rows)}
    notes = "".join(f"- {key}: {value}\n" for key, value in about.items())
    texts = {
        "csv": table.getvalue(),
        "json": json.dumps(content, indent=1) + "\n",
        "md": f"# {title}\n\n{markdown(rows)}\n\n{notes}",
    }
    for suffix, text in texts.items():
        write_aside(folder / f"{name}.{suffix}", text.encode())
    return [folder / f"{name}.{suffix}" for suffix in texts]
