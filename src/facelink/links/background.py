"""What strangers look like: the scale on which similarities are read.

An item is compared with a sample of the collection, nearly all of whom are strangers to
it. Where their similarities lie says more than any fixed threshold: an embedder's strangers
may be similar on average, and a blurred face is similar to every other blurred face, which
only the upper side of its strangers shows. So does somebody with a tenth of all photos, but
in another way: nobody is half as similar as these are. Therefore the upper side is kept whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from facelink.compiled import blocks, compiled, in_threads
from facelink.embeddings import Rows

Floats = NDArray[np.float32]

REFERENCES = 1024  # items that every item is compared with
BLOCK_ROWS = 2048
# Quantiles, and how many deviations of a normal distribution they are from the middle. The
# highest tells most, but where one person has a seventh of all photos it is that person's own.
QUANTILES = {0.1: -1.2816, 0.7: 0.5244, 0.85: 1.0364}
LEAST_ROOM = 1e-6  # between a stranger and an identical item, for float32 to tell them apart
LEVELS = 32  # of similarity, from a stranger's to that of an identical item
NARROWEST = 0.3  # spreads are not taken to be less than this share of the typical one


@dataclass(frozen=True)
class Background:
    """How similar strangers are, to each item and in the whole collection.

    Attributes
    ----------
    center : (n,) array
        The median of the similarities to strangers.
    spreads : (n, 3) array
        Their standard deviation, as seen from below, from above and from far above.
    typical_center : float
    typical_spreads : tuple of float
        The medians of these.
    above : (n, LEVELS + 1) array, optional
        The log of the share of others that are at least as similar as each level says, from
        the median stranger to an identical item.
    """

    center: Floats
    spreads: Floats
    typical_center: float
    typical_spreads: tuple[float, ...]
    above: Floats | None = None

    @classmethod
    def of(cls, rows: Rows, *, seed: int = 0, n_threads: int | None = None) -> Background:
        """Of unit vectors; whoever differs from no stranger is given some room."""
        n_items = len(rows)
        chosen = np.random.default_rng(seed).permutation(n_items)[:REFERENCES]
        references = rows[np.sort(chosen)]
        center = np.empty(n_items, np.float32)
        spreads = np.empty((n_items, len(QUANTILES)), np.float32)
        above = np.empty((n_items, LEVELS + 1), np.float32)

        def compare(block: slice) -> None:
            similarities = rows[block] @ references.T
            center[block], spreads[block] = spread_of(similarities)
            _log_shares_above(similarities, center[block], above[block])

        for _ in in_threads(compare, blocks(n_items, BLOCK_ROWS), n_threads=n_threads):
            pass
        return cls._with_room(center, spreads, above)

    @classmethod
    def of_moments(cls, rows: Rows, sample: Floats, weights: Floats) -> Background:
        """Of unit vectors to which strangers are about normal: from their mean and covariance.

        ``sample`` (m, d) are those of some items, ``weights`` (m,) how much each counts.
        """
        weights = weights / weights.sum(dtype=np.float64)
        mean = (weights @ sample).astype(np.float32)
        scaled = np.sqrt(weights).astype(np.float32)[:, None] * (sample - mean)
        covariance = scaled.T @ scaled
        center, deviation = np.empty((2, len(rows)), np.float32)
        for block in blocks(len(rows), BLOCK_ROWS):
            center[block] = rows[block] @ mean
            squares = np.einsum("ij,ij->i", rows[block] @ covariance, rows[block])
            deviation[block] = np.sqrt(np.maximum(squares, 0))
        return cls._with_room(center, np.repeat(deviation[:, None], len(QUANTILES), axis=1))

    @classmethod
    def _with_room(cls, center: Floats, spreads: Floats, above: Floats | None = None) -> Background:
        # Embeddings may lie close together: what is small is small beside 1 - similarity.
        room = max(1 - float(np.median(center)), LEAST_ROOM)
        np.minimum(center, np.float32(1 - max(1e-3 * room, LEAST_ROOM)), out=center)
        typical = np.maximum(np.median(spreads, axis=0), np.float32(1e-3 * room))
        np.maximum(spreads, np.float32(NARROWEST) * typical, out=spreads)
        return cls(center, spreads, float(np.median(center)), tuple(typical.tolist()), above)

    @property
    def spread(self) -> float:
        """How far strangers differ in the collection, beside how far they are from identical."""
        return self.typical_spreads[0] / (1 - self.typical_center)


def spread_of(similarities: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The middle of each row (m,), and its spreads (m, 3). Sorts the rows."""
    similarities.sort(axis=1)  # sooner done than a selection at four places
    last = similarities.shape[1] - 1
    at = similarities[:, [int(q * last) for q in (0.5, *QUANTILES)]]
    return at[:, 0], (at[:, 1:] - at[:, :1]) / np.array([*QUANTILES.values()], at.dtype)


@compiled
def _log_shares_above(similarities, center, out):
    """Of sorted rows; as if half of another one were identical."""
    n_items, n_others = similarities.shape
    levels = out.shape[1] - 1
    for i in range(n_items):
        room = max(np.float32(1) - center[i], np.float32(LEAST_ROOM))
        below = n_others
        for level in range(levels, -1, -1):
            bar = center[i] + room * np.float32(level / levels)
            while below > 0 and similarities[i, below - 1] >= bar:
                below -= 1
            out[i, level] = np.log((n_others - below + 0.5) / (n_others + 1))
