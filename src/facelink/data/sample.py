"""The collection that comes with facelink."""

from __future__ import annotations

from importlib.resources import files
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Sample(NamedTuple):
    """Embeddings of faces, and who each one is."""

    embeddings: NDArray[np.float16]  # (n, 128)
    labels: NDArray[np.int32]  # (n,) anonymous


def load_sample() -> Sample:
    """Load the faces that come with facelink, to try things on.

    About 4,000 press photos of some 1,700 people, most of them with one photo,
    as embeddings of 128 dimensions. No pictures, no names. The folder's
    ``SAMPLE.md`` says where they are from and under which terms.

    Examples
    --------
    >>> import facelink
    >>> facelink.load_sample().embeddings.shape[1]
    128
    """
    with files("facelink.data").joinpath("sample.npz").open("rb") as file:
        arrays = np.load(file, allow_pickle=False)
        return Sample(arrays["x"], arrays["y"])
