"""Writing files so that nobody ever finds half of one."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

from facelink.errors import FileError

Content = bytes | Callable[[IO[bytes]], object]


def write_aside(path: Path, content: Content) -> None:
    """Write to a temporary file in the same folder, then rename it into place.

    ``content`` may also be what writes it, given the open file.
    """
    write_together({Path(path): content})


def write_together(contents: Mapping[Path, Content]) -> None:
    """Write several files that belong together: none is replaced before all are written."""
    written: dict[Path, Path] = {}
    path = Path()
    try:
        for path, content in contents.items():
            aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
            written[path] = aside
            with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
                if callable(content):
                    content(file)
                else:
                    file.write(content)
                file.flush()
                os.fsync(file.fileno())
        _into_place(written)
    except BaseException as error:
        for aside in written.values():
            aside.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise FileError(f"Cannot write {path}: {error.strerror}.") from None
        raise


def _into_place(written: Mapping[Path, Path]) -> None:
    """Rename files that were written aside; Ctrl-C waits for the last (`facelink.cli`)."""
    for path, aside in written.items():
        try:
            os.replace(aside, path)
        except OSError as error:
            raise FileError(f"Cannot write {path}: {error.strerror}.") from None


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, unless they are there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"Cannot make the folder {folder}: {error.strerror}.") from None


def check_place(folder: Path) -> None:
    """Refuse, before any work is done, a folder that could not be made or written to."""
    above = next((place for place in (folder, *folder.parents) if is_there(place)), Path())
    if not above.is_dir():
        raise FileError(f"{above} is a file; expected a folder for the result.")
    if not os.access(above, os.W_OK | os.X_OK):
        raise FileError(f"Cannot write to the folder {above}: permission denied.")


def is_there(path: Path) -> bool:
    """Whether a path exists, saying plainly why that cannot be known."""
    try:
        return path.exists()
    except OSError as error:  # a name too long, a folder that may not be entered
        raise FileError(f"Cannot look for {str(path)[:80]}: {error.strerror}.") from None
