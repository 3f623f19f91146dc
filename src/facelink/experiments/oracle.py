"""Methods with their knobs set by oracle, as the paper does: the best on what is reported."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facelink.baselines import BASELINES
from facelink.metrics import bcubed
from facelink.neighbors import KnnGraph


@dataclass(frozen=True)
class Best:
    """The clustering of highest BCubed F, how it was set, and how long that setting takes."""

    labels: NDArray[np.int64]
    setting: dict[str, float]
    seconds: float


def best_of(
    method: str, rows: ArrayLike, truth: NDArray[np.int64], graph: KnnGraph | None = None
) -> Best:
    """Try every variant and knob of a baseline."""
    baseline = BASELINES[method]
    highest, best = -1.0, None
    for variant in baseline.variants:
        began = time.monotonic()
        labels_at = baseline.prepare(rows, graph=graph, **variant)
        prepared = time.monotonic() - began
        least = 0.0
        for knob in baseline.grid(len(np.unique(truth))):
            began = time.monotonic()
            labels = labels_at(knob)
            taken = time.monotonic() - began
            # The most clusters come first, and what is computed for them serves the others.
            least = max(least, taken) if baseline.knob == "n_clusters" else 0.0
            f = bcubed(truth, labels).f
            if f > highest:
                highest = f
                setting = {**variant, baseline.knob: knob}
                best = Best(labels, setting, prepared + max(least, taken))
    assert best is not None  # there is at least one of each
    return best


def title_of(method: str) -> str:
    """A method's name as in the tables."""
    return BASELINES[method].name if method in BASELINES else method
