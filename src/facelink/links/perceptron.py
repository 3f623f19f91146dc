"""A small network of fully connected layers, read from a model's arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from facelink.errors import ModelError

Floats = NDArray[np.float32]

FARTHEST = 6.0  # standard deviations from the mean: what is farther counts as this far


@dataclass(frozen=True)
class Perceptron:
    """Features of a pair to the probability that it is one person.

    Attributes
    ----------
    mean, scale : (features,) arrays
        A feature f enters as (f - mean) scale, not beyond `FARTHEST`.
    layers : tuple of (matrix, bias)
        ReLU after each but the last, which has one output: the log-odds.
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
        for matrix, bias in layers:
            if matrix.ndim != 2 or len(matrix) != width or bias.shape != matrix.shape[1:]:
                raise ModelError(f"a layer of {prefix} has the shape {matrix.shape}")
            width = matrix.shape[1]
        if width != 1 or not layers:
            raise ModelError(f"{prefix} should end in one output, got {width}")
        return cls(mean, scale, layers)

    def log_odds(self, features: Floats) -> Floats:  # (m, features) -> (m,)
        x: Floats = (features - self.mean) * self.scale
        np.clip(x, -FARTHEST, FARTHEST, out=x)
        for matrix, bias in self.layers[:-1]:
            x = x @ matrix
            x += bias
            np.maximum(x, 0, out=x)
        matrix, bias = self.layers[-1]
        x = x @ matrix
        x += bias
        return x[:, 0]

    def probabilities(self, features: Floats) -> Floats:  # (m, features) -> (m,)
        out = np.exp(-np.clip(self.log_odds(features), -30, 30))
        out += 1
        return np.reciprocal(out, out=out)
