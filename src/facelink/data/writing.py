"""Writing files so that nobody ever finds half of one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from facelink.errors import FileError


def write_aside(path: Path, content: bytes) -> None:
    """Write to a temporary file in the same folder, then rename it into place."""
    path = Path(path)
    try:
        handle, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    except OSError as error:
        raise FileError(f"Cannot write {str(path)!r}: {error.strerror}.") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(aside, 0o666 & ~_umask())
        os.replace(aside, path)
    except BaseException as error:
        os.unlink(aside)
        if isinstance(error, OSError):
            raise FileError(f"Cannot write {str(path)!r}: {error.strerror}.") from None
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
