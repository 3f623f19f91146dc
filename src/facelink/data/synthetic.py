"""People who do not exist, as similar to each other as those of a real collection.

A person is a mean embedding and photos around it. Means are drawn from the normal
distribution that the real people's means have, directions and all; photos deviate in the
directions in which real photos deviate, some people's more than others'. Numbers of
photos are those of real people, or as large collections have them: many people of one or
two photos, few of hundreds, families that look alike, and faces that are nobody's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facelink.embeddings import UnitRows
from facelink.errors import InputError

Floats = NDArray[np.float32]

JUNK_PERSON, JUNK_LOOK = 0.5, 0.5  # how much of a junk face is a person, and how much junk's
OCCASION = 8  # photos
MANY = 8  # photos, to tell one that is unlike the others from a restless person's


@dataclass(frozen=True)
class Crowd:
    """What a large collection consists of.

    Attributes
    ----------
    largest : int
        People have 1 to so many photos, s of them with a frequency of s to the power of -1.5.
    families : float
        The share of people who look like two others.
    alike : float
        The correlation of two people of a family.
    junk : float
        The share of faces that are nobody's.
    sessions : float
        The correlation of photos of one person from one occasion, of which there are
        `OCCASION` or fewer.
    """

    largest: int = 500
    families: float = 0.1
    alike: float = 0.5
    junk: float = 0.05
    sessions: float = 0.3

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Numbers of photos to choose from, as often as they are frequent."""
        every = np.arange(1, self.largest + 1)
        quantiles = np.linspace(0, 1, 100_000, endpoint=False)
        shares = np.cumsum(every**-1.5)
        return every[np.searchsorted(shares / shares[-1], quantiles, side="right")]

    def make_families(self, people: Floats, rng: np.random.Generator) -> None:
        """Give some people, three at a time, a part of what they are in common; in place."""
        n_families = int(self.families * len(people) / 3)
        chosen = rng.permutation(len(people))[: 3 * n_families].reshape(n_families, 3)
        shared = rng.standard_normal((n_families, 1, people.shape[1]), np.float32)
        own, common = np.sqrt(1 - self.alike), np.sqrt(self.alike)
        people[chosen] = np.float32(own) * people[chosen] + np.float32(common) * shared


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
    unlike : (m,) array
        How far single photos are from their person, beside that person's others: a bad
        photo is far, a portrait near. The mean of the squares is 1.
    sizes : (p,) array
        How many photos each has.
    """

    center: Floats
    between: Floats
    within: Floats
    restless: Floats
    unlike: Floats
    sizes: NDArray[np.int64]

    @classmethod
    def of(cls, embeddings: ArrayLike, labels: ArrayLike) -> Population:
        """Fit to a labelled collection, of which some people have two photos or more."""
        rows = UnitRows(embeddings)[:]
        _, labels, sizes = np.unique(labels, return_inverse=True, return_counts=True)
        several = np.flatnonzero(sizes > 1)
        if len(several) < 2:
            raise InputError(
                "The collection shows at most one person twice: what people look like cannot be "
                "learned from it."
            )
        means = np.zeros((len(sizes), rows.shape[1]), np.float32)
        np.add.at(means, labels, rows)
        means /= sizes[:, None]
        residuals = rows - means[labels]
        # A mean of n photos lies too close to each of them, and too far from the others' mean.
        known = sizes[labels] > 1
        residuals = residuals[known]
        owners = labels[known]
        residuals *= np.sqrt(sizes / np.maximum(sizes - 1, 1))[owners, None]
        within = _covariance(residuals)
        center = means[several].mean(axis=0)
        noise = within * np.mean(1 / sizes[several])
        between = _covariance(means[several] - center) - noise
        squares = (residuals**2).sum(axis=1)
        scatter = np.bincount(owners, squares, len(sizes)) / sizes  # 0 for who is seen once
        many = sizes[owners] >= MANY if (sizes >= MANY).any() else np.ones(len(owners), bool)
        unlike = squares[many] / np.maximum(scatter[owners[many]], 1e-12)
        return cls(
            center,
            _factor(between),
            _factor(within),
            _with_unit_squares(scatter[several]),
            _with_unit_squares(unlike),
            sizes,
        )

    def in_dimensions(self, dimension: int) -> Population:
        """The same people in fewer dimensions, those in which they differ most, or in more."""
        between, within = (f.T.astype(np.float64) @ f for f in (self.between, self.within))
        between += np.outer(self.center, self.center)
        axes = np.linalg.eigh(between + within)[1][:, ::-1][:, :dimension]  # the largest first
        axes = np.hstack([axes, np.zeros((len(axes), max(dimension - axes.shape[1], 0)))])
        fewer, narrower = axes.T @ between @ axes, axes.T @ within @ axes
        # Photos lose more by it than people do: they shall be as different as before.
        narrower *= (within.trace() / between.trace()) / (narrower.trace() / fewer.trace())
        center = self.center @ axes
        return replace(
            self,
            center=center.astype(np.float32),
            between=_factor(fewer - np.outer(center, center)),
            within=_factor(narrower),
        )

    def draw(
        self, n_items: int, seed: int, *, crowd: Crowd | None = None, out: Floats | None = None
    ) -> tuple[Floats, NDArray[np.int64]]:
        """Embeddings of so many photos, and whose they are.

        Parameters
        ----------
        n_items : int
        seed : int
        crowd : Crowd, optional
            What the collection consists of. By default people as they are in the
            collection that this was fitted to, and nothing else.
        out : (n_items, d) float array, optional
            Where to write the embeddings; may be a memory map.
        """
        rng = np.random.default_rng(seed)
        sizes = self.sizes if crowd is None else crowd.sizes
        n_junk = 0 if crowd is None else int(crowd.junk * n_items)
        owners = np.empty(0, np.int64)
        while len(owners) < n_items - n_junk:
            some = rng.choice(sizes, size=max(16, n_items // 8))
            first = owners[-1] + 1 if len(owners) else 0
            owners = np.concatenate([owners, first + np.repeat(np.arange(len(some)), some)])
        owners = owners[: n_items - n_junk]
        n_people, dimension = int(owners[-1]) + 1, len(self.center)
        normal = rng.standard_normal((n_people, dimension), np.float32)
        if crowd is not None:
            crowd.make_families(normal, rng)
        means = self.center + normal @ self.between
        restless = rng.choice(self.restless, size=n_people)
        if crowd is not None:
            # Junk is nobody in particular, seen badly: it resembles other junk.
            owners = np.concatenate([owners, n_people + np.arange(n_junk)])
            normal = rng.standard_normal((n_junk + 1, dimension), np.float32)
            vague = normal[1:] * np.float32(JUNK_PERSON) + normal[0] * np.float32(JUNK_LOOK)
            means = np.concatenate([means, self.center + vague @ self.between])
            restless = np.concatenate([restless, np.ones(n_junk, np.float32)])
            owners = owners[rng.permutation(n_items)]
        rows = np.empty((n_items, dimension), np.float32) if out is None else out
        share = 0.0 if crowd is None else np.sqrt(crowd.sessions)
        if share:
            occasions = _occasions(owners, rng)
            shared = rng.standard_normal((int(occasions.max()) + 1, dimension), np.float32)
        for start in range(0, n_items, 8192):
            mine = owners[start : start + 8192]
            normal = rng.standard_normal((len(mine), dimension), np.float32)
            if share:
                normal *= np.float32(np.sqrt(1 - share**2))
                normal += np.float32(share) * shared[occasions[start : start + 8192]]
            scatter = restless[mine] * rng.choice(self.unlike, size=len(mine))
            photos = means[mine] + scatter[:, None] * (normal @ self.within)
            rows[start : start + 8192] = photos / np.linalg.norm(photos, axis=1, keepdims=True)
        return rows, owners


def _occasions(owners: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """The occasion of each photo: a person has one for each `OCCASION` photos or fewer."""
    each = -(-np.bincount(owners) // OCCASION)
    firsts = np.cumsum(each) - each
    return firsts[owners] + (rng.random(len(owners)) * each[owners]).astype(np.int64)


def _with_unit_squares(squares: NDArray[np.floating]) -> Floats:
    """The roots of some squares, scaled so that the mean of the squares is 1."""
    return np.sqrt(squares / max(float(squares.mean()), 1e-12)).astype(np.float32)


def _covariance(rows: Floats) -> NDArray[np.float64]:
    return rows.T.astype(np.float64) @ rows / len(rows)


def _factor(covariance: NDArray[np.float64]) -> Floats:
    """F with FᵀF the covariance, or what is nearest to it: differences may be negative."""
    scales, axes = np.linalg.eigh(covariance)
    return (np.sqrt(np.maximum(scales, 0))[:, None] * axes.T).astype(np.float32)
