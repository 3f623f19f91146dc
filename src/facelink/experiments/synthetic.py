"""People who do not exist, as similar to each other as those of a real collection.

A person is a mean embedding and photos around it. Means are drawn from the normal
distribution that the real people's means have, directions and all; photos deviate in the
directions in which real photos deviate, some people's more than others'. Numbers of
photos are those of real people.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from facelink.data.layouts import LabelledCollection
from facelink.embeddings import UnitRows
from facelink.errors import InputError

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Population:
    """What people of a collection are like.

    Attributes
    ----------
    center : (d,) array
        The mean of the people's means.
    between, within : (d, d) arrays
        Factors of the covariance of people's means, and of photos around them.
    restless : (p,) array
        How far photos of each person scatter; the mean of the squares is 1.
    sizes : (p,) array
        How many photos each has.
    """

    center: Floats
    between: Floats
    within: Floats
    restless: Floats
    sizes: NDArray[np.int64]

    @classmethod
    def of(cls, collection: LabelledCollection) -> Population:
        """Fit to a labelled collection, of which some people have two photos or more."""
        rows = UnitRows(collection.embeddings)[:]
        sizes = np.bincount(collection.labels)
        several = np.flatnonzero(sizes > 1)
        if len(several) < 2:
            raise InputError(
                f"{collection.name} shows at most one person twice: what people look like cannot "
                "be learned from it."
            )
        means = np.zeros((len(sizes), rows.shape[1]), np.float32)
        np.add.at(means, collection.labels, rows)
        means /= sizes[:, None]
        residuals = rows - means[collection.labels]
        # A mean of n photos lies too close to each of them, and too far from the others' mean.
        known = sizes[collection.labels] > 1
        residuals = residuals[known]
        owners = collection.labels[known]
        residuals *= np.sqrt(sizes / np.maximum(sizes - 1, 1))[owners, None]
        within = _covariance(residuals)
        center = means[several].mean(axis=0)
        noise = within * np.mean(1 / sizes[several])
        between = _covariance(means[several] - center) - noise
        scatter = np.zeros(len(sizes))
        np.add.at(scatter, owners, (residuals**2).sum(axis=1))
        scatter = np.sqrt(scatter[several] / sizes[several])
        return cls(
            center,
            _factor(between),
            _factor(within),
            (scatter / np.sqrt(np.mean(scatter**2))).astype(np.float32),
            sizes,
        )

    def draw(self, n_items: int, seed: int) -> tuple[Floats, NDArray[np.int64]]:
        """Embeddings of so many photos, and whose they are."""
        rng = np.random.default_rng(seed)
        owners = np.empty(0, np.int64)
        while len(owners) < n_items:
            sizes = rng.choice(self.sizes, size=max(16, n_items // 8))
            first = owners[-1] + 1 if len(owners) else 0
            owners = np.concatenate([owners, first + np.repeat(np.arange(len(sizes)), sizes)])
        owners = owners[:n_items]
        n_people, dimension = int(owners[-1]) + 1, len(self.center)
        normal = rng.standard_normal((n_people, dimension), np.float32)
        means = self.center + normal @ self.between
        restless = rng.choice(self.restless, size=n_people)
        rows = np.empty((n_items, dimension), np.float32)
        for start in range(0, n_items, 8192):
            mine = owners[start : start + 8192]
            normal = rng.standard_normal((len(mine), dimension), np.float32)
            some = means[mine] + restless[mine, None] * (normal @ self.within)
            rows[start : start + 8192] = some / np.linalg.norm(some, axis=1, keepdims=True)
        return rows, owners


def _covariance(rows: Floats) -> NDArray[np.float64]:
    return rows.T.astype(np.float64) @ rows / len(rows)


def _factor(covariance: NDArray[np.float64]) -> Floats:
    """F with FᵀF the covariance, or what is nearest to it: differences may be negative."""
    scales, axes = np.linalg.eigh(covariance)
    return (np.sqrt(np.maximum(scales, 0))[:, None] * axes.T).astype(np.float32)
