"""What is asked of labels, wherever they come from: one per item, numbers or text."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facelink.errors import InputError


def as_labels(labels: ArrayLike, name: str = "labels") -> NDArray[Any]:
    """Return labels as a 1-d array of whole numbers or text, or say what is wrong with them."""
    array = np.asarray(labels)
    if array.ndim != 1:
        raise InputError(f"{name} should be one label per item, got an array of {array.ndim} axes.")
    if array.dtype.kind == "O" and all(isinstance(label, str) for label in array):
        array = array.astype(str)  # as pandas keeps text
    if array.dtype.kind not in "iubfUS":
        raise InputError(
            f"{name} should be whole numbers or text, got an array of type {array.dtype}. "
            "If some are missing, give these items labels of their own or leave them out."
        )
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise InputError(f"{name} contain NaN or infinity. Give every item a label.")
        if (array == np.round(array)).all() and np.abs(array).max(initial=0) < 2**53:
            array = array.astype(np.int64)
    return array
