"""Arrays that a stage needs while it works, in memory or, if they are large, on disk."""

from __future__ import annotations

import os
import tempfile
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from facelink.errors import FileError

IN_MEMORY_BYTES = 2 << 30


def scratch_array(shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> NDArray[Any]:
    """An array to be filled. A large one lies in a file that vanishes with it.

    The file is in the folder for temporary files (``TMPDIR``). The system keeps as much
    of it in memory as there is room for.
    """
    n_bytes = np.dtype(dtype).itemsize * int(np.prod(shape))
    if n_bytes <= IN_MEMORY_BYTES:
        return np.empty(shape, dtype)
    try:
        with tempfile.TemporaryFile() as file:  # it has no name, and the map holds it open
            reserve(file, n_bytes)
            return np.memmap(file, dtype, "r+", shape=shape)
    except OSError as error:
        raise FileError(
            f"Cannot make a temporary file of {n_bytes / 2**30:.1f} GiB in "
            f"{tempfile.gettempdir()!r}: {error.strerror}. Make room there, or name another "
            "folder in TMPDIR."
        ) from None


def reserve(file: IO[bytes], n_bytes: int) -> None:
    """Make a file this long, and its space certain: a disk that is full later would kill us."""
    if hasattr(os, "posix_fallocate"):  # not on macOS and Windows
        os.posix_fallocate(file.fileno(), 0, n_bytes)
    else:
        file.truncate(n_bytes)
