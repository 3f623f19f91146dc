"""Small networks of fully connected layers, read from a model's arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from facelink.compiled import compiled
from facelink.errors import ModelError

Floats = NDArray[np.float32]

FARTHEST = 6.0  # standard deviations from the mean: what is farther counts as this far
SETTLED = 5.5  # log-odds, for or against: one in two hundred and fifty is otherwise


@dataclass(frozen=True)
class Perceptron:
    """Features of a pair to the probability that it is one person.

    Several networks side by side, whose log-odds are averaged: where a collection is unlike
    those trained on, each errs in its own way. What the first is sure of is settled.

    Attributes
    ----------
    mean, scale : (features,) arrays
        A feature f enters as (f - mean) scale, not beyond `FARTHEST`.
    layers : tuple of (matrices, biases)
        (members, d_in, d_out) and (members, d_out). ReLU after each but the last, which has
        one output: the log-odds.
    """

    mean: Floats
    scale: Floats
    layers: tuple[tuple[Floats, Floats], ...]

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, NDArray[np.float32]], prefix: str, n_features: int
    ) -> Perceptron:
        """Take the arrays ``prefix.mean``, ``prefix.scale``, ``prefix.0.matrix``, …"""
        depth = sum(name.startswith(f"{prefix}.") and name.endswith(".matrix") for name in arrays)
        try:
            mean, scale = arrays[f"{prefix}.mean"], arrays[f"{prefix}.scale"]
            layers = tuple(
                (arrays[f"{prefix}.{layer}.matrix"], arrays[f"{prefix}.{layer}.bias"])
                for layer in range(depth)
            )
        except KeyError as error:
            raise ModelError(f"the array {error.args[0]} is missing") from None
        width = n_features
        if mean.shape != (width,) or scale.shape != (width,):
            raise ModelError(f"{prefix} should take {width} features, got {mean.shape}")
        members = len(layers[0][1]) if layers and layers[0][1].ndim == 2 else 0
        if not members:
            raise ModelError(f"{prefix} has no network")
        for matrix, bias in layers:
            wanted = (members, width, *bias.shape[1:])
            if bias.ndim != 2 or len(bias) != members or matrix.shape != wanted:
                raise ModelError(f"a layer of {prefix} has the shape {matrix.shape}")
            width = bias.shape[1]
        if width != 1:
            raise ModelError(f"{prefix} should end in one output, got {width}")
        return cls(mean, scale, layers)

    @cached_property
    def _folded(self) -> tuple[Floats, Floats, tuple[tuple[Floats, Floats], ...]]:
        """The range of features, and the layers that take them as they are."""
        farthest = np.float32(FARTHEST) / self.scale
        matrix, bias = self.layers[0]
        matrix = self.scale[:, None] * matrix
        first = matrix, bias - self.mean @ matrix
        return self.mean - farthest, self.mean + farthest, (first, *self.layers[1:])

    def log_odds(self, features: Floats) -> Floats:  # (m, features) -> (m,)
        lowest, highest, layers = self._folded
        features = _between(features, lowest, highest)
        out = self._of_member(0, features)
        others = range(1, len(layers[0][0]))
        if not others:
            return out
        # Most pairs are plain to any member: the others are not asked about those.
        left = np.flatnonzero(np.abs(out) < SETTLED)
        features, total = features[left], out[left]
        for member in others:  # one by one: what one needs stays in the cache
            total += self._of_member(member, features)
        out[left] = total / np.float32(len(others) + 1)
        return out

    def _of_member(self, member: int, features: Floats) -> Floats:  # (m, features) -> (m,)
        _, _, layers = self._folded
        x = features
        for depth, (matrices, biases) in enumerate(layers):
            x = x @ matrices[member]
            if depth + 1 < len(layers):
                _add_and_rectify(x, biases[member])
        return x[:, 0] + biases[member]

    def probabilities(self, features: Floats) -> Floats:  # (m, features) -> (m,)
        out = np.exp(-np.clip(self.log_odds(features), -30, 30))
        out += 1
        return np.reciprocal(out, out=out)


# One pass over the numbers each, where NumPy takes two: there are more of them than products.
@compiled
def _between(features, lowest, highest):
    out = np.empty_like(features)
    for i in range(len(features)):
        row, bounded = features[i], out[i]
        for c in range(len(row)):
            bounded[c] = min(max(row[c], lowest[c]), highest[c])
    return out


@compiled
def _add_and_rectify(x, bias):
    zero = x.dtype.type(0)
    for i in range(len(x)):
        row = x[i]
        for c in range(len(row)):
            row[c] = max(row[c] + bias[c], zero)
