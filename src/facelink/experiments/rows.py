"""Rows that were measured, on disk, so that an interrupted run goes on."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from facelink.data.writing import make_folder
from facelink.errors import FileError

Row = dict[str, Any]


class Rows:
    """Rows by name in a file of JSON lines, to which each is added when it is finished."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.rows: dict[str, Row] = {}
        content = file.read_text(encoding="utf-8") if file.exists() else ""
        self.whole = content == "" or content.endswith("\n")
        for line in content.splitlines():
            try:
                entry = json.loads(line)
                self.rows[entry["cell"]] = dict(entry["row"])
            except (ValueError, KeyError, TypeError):  # cut off when somebody pulled the plug
                continue

    def __contains__(self, name: str) -> bool:
        return name in self.rows

    def __getitem__(self, name: str) -> Row:
        return self.rows[name]

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, name: str, row: Row) -> None:
        """Keep a row; it is on disk when this returns."""
        make_folder(self.file.parent)
        try:
            with self.file.open("a", encoding="utf-8") as file:
                line = json.dumps({"cell": name, "row": row}) + "\n"
                file.write(line if self.whole else "\n" + line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise FileError(f"Cannot write {self.file}: {error.strerror}.") from None
        self.whole = True
        self.rows[name] = row
