"""Collections to learn from, made of labelled ones by re-sampling them.

A model for any collection must not learn what its training collections happen to be
like: how many people they have, how many photos each, how clean they are. So every
episode is another collection: other people, other numbers of photos (1 to 1,000),
other shares of singletons and junk, now and then another embedder.

Where a person should have more photos than there are, they are grown: the person's
mean embedding plus the residuals of other people's photos, in several modes (a person
looks different in other years and poses), or burst into frames like those of a video.

A few episodes are crowds of people who do not exist (`facelink.data.synthetic`), as large
as no labelled collection here: there strangers come close, and someone of 500 photos is
one of thousands who have one or two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from facelink.data.synthetic import Crowd, Population
from facelink.errors import InputError

Rng = np.random.Generator
Floats = NDArray[np.floating]
Labels = NDArray[np.int64]

LARGEST = 9000  # items of an episode, about
SMALLER, SELDOM = 3000, 0.15  # how large most are, and the share of larger ones
MOST_PHOTOS = 1000  # of one person
CROWD_OF, CROWDS_OF = 60, (10_000, 40_000)  # episodes, one of which is a crowd; its items
AS_IT_IS, AS_CROWD = 16, 2  # how many times an episode counts that is real, or so large
ELSEWHERE = 0.4  # episodes seen by a made-up embedder
STEEPEST = 2.3  # the power to which a spectrum is taken there
OWNED = 0.25  # episodes in which one person has a tenth to a half of all photos
CHANGED = 0.2  # people who look hardly like themselves
FITTED = 20  # people with several photos, to know what people look like
ENOUGH = 60  # items of an episode at least
TRIES = 200  # to make one


@dataclass(frozen=True)
class Collection:
    """Labelled embeddings to make episodes of.

    Attributes
    ----------
    name : str
    embeddings : (n, d) array
    labels : (n,) int array
    embedder : str
        Collections of one embedder can be mixed.
    people : str
        Collections of one value may share people and are never mixed.
    """

    name: str
    embeddings: Floats
    labels: Labels
    embedder: str
    people: str


@dataclass(frozen=True)
class Episode:
    """A collection made of others, or one of them as it is.

    It counts like ``times`` others: in a large one there is more to learn.
    """

    embeddings: NDArray[np.float16]
    labels: Labels
    times: int = 1


def make_episodes(collections: Sequence[Collection], count: int, seed: int) -> list[Episode]:
    """Every collection as it is, and others made of them: ``count`` in all, or as many as given."""
    nothing = InputError(
        f"No collections of {ENOUGH} items or more, some of them of one person, can be made of "
        "these. Give larger ones."
    )
    if all(len(np.unique(c.labels)) == len(c.labels) for c in collections):
        raise nothing
    rng = np.random.default_rng([seed, 0xE915])
    episodes = [replace(_episode(c.embeddings, c.labels, rng), times=AS_IT_IS) for c in collections]
    episodes += _crowds(collections, count // CROWD_OF, rng)
    in_vain = 0
    while len(episodes) < count:
        if in_vain > TRIES:
            raise nothing
        in_vain += 1
        x, labels = _mixture(collections, rng)
        x, labels = _resample(x, labels, rng) if rng.random() < 0.3 else _grow(x, labels, rng)
        if len(x) < ENOUGH:
            continue
        if rng.random() < ELSEWHERE:
            x = _another_embedder(x, rng)
        if rng.random() < 0.25:
            x = _with_noise(_unit(x), rng)
        there = x.any(axis=1)  # one-sided features may leave nothing of an item
        episodes.append(_episode(x[there], labels[there], rng))
        in_vain = 0
    return episodes


def _crowds(collections: Sequence[Collection], count: int, rng: Rng) -> list[Episode]:
    """Large collections of people as those of the given ones might be."""
    known = [c for c in collections if (np.bincount(c.labels) > 1).sum() >= FITTED]
    populations = [Population.of(c.embeddings, c.labels) for c in known]
    crowds = []
    for _ in range(count if known else 0):
        people = populations[int(rng.integers(len(populations)))]
        dimension = len(people.center)
        people = people.in_dimensions(_between(rng, min(96, dimension), min(256, dimension)))
        people = replace(people, within=people.within * np.float32(rng.uniform(0.8, 1.2)))
        crowd = Crowd(
            largest=_between(rng, 50, MOST_PHOTOS),
            families=rng.uniform(0, 0.3),
            alike=rng.uniform(0.3, 0.7),
            junk=rng.choice([0, 0.02, 0.05, 0.1]),
            sessions=rng.choice([0, rng.uniform(0, 0.6)]),
        )
        x, labels = people.draw(_between(rng, *CROWDS_OF), int(rng.integers(1 << 31)), crowd=crowd)
        crowds.append(replace(_episode(x, labels, rng), times=AS_CROWD))
    return crowds


def _episode(x: Floats, labels: Labels, rng: Rng) -> Episode:
    order = rng.permutation(len(x))
    return Episode(_unit(x)[order].astype(np.float16), labels[order])


def _mixture(collections: Sequence[Collection], rng: Rng) -> tuple[Floats, Labels]:
    """One collection, or two of one embedder."""
    one = collections[int(rng.integers(len(collections)))]
    others = [c for c in collections if c.embedder == one.embedder and c.people != one.people]
    if not others or rng.random() < 0.6:
        return one.embeddings, one.labels
    two = others[int(rng.integers(len(others)))]
    labels = np.concatenate([one.labels, two.labels + one.labels.max() + 1])
    return np.concatenate([one.embeddings, two.embeddings]), labels


def _between(rng: Rng, low: float, high: float) -> int:
    """A whole number, every order of magnitude as likely."""
    return int(np.exp(rng.uniform(np.log(low), np.log(high + 1))))


def _limit(rng: Rng) -> int:
    """How many items an episode may have. Many small ones teach more than a few large ones."""
    return _between(rng, 200, LARGEST if rng.random() < SELDOM else SMALLER)


def _resample(x: Floats, labels: Labels, rng: Rng) -> tuple[Floats, Labels]:
    """Some of the people, with some of their photos."""
    people = rng.permutation(np.unique(labels))
    people = people[: _between(rng, min(12, len(people)), len(people))]
    cap = _between(rng, 2, 500)
    single = rng.choice([0, 0, 0.3, 0.6, 0.9, 1])
    most = np.where(rng.random(len(people)) < 0.7, cap * rng.random(len(people)) ** 0.5, cap)
    most = np.where(rng.random(len(people)) < single, 1, np.ceil(most))
    order = rng.permutation(len(x))
    order = order[np.argsort(labels[order], kind="stable")]  # by person, at random within
    mine = labels[order]
    starts = np.searchsorted(mine, people)
    counts = np.minimum(np.searchsorted(mine, people, side="right") - starts, most)
    kept = np.concatenate(
        [order[start : start + int(n)] for start, n in zip(starts, counts, strict=True)]
    )
    kept = rng.permutation(kept)[: _limit(rng)]
    return x[kept], labels[kept]


def _grow(x: Floats, labels: Labels, rng: Rng) -> tuple[Floats, Labels]:
    """People with as many photos as one likes."""
    _, labels, counts = np.unique(labels, return_inverse=True, return_counts=True)
    order = np.argsort(labels, kind="stable")
    starts = np.concatenate([[0], np.cumsum(counts)])
    means = np.add.reduceat(x[order], starts[:-1], axis=0) / counts[:, None]
    many = counts[labels] >= 4
    residuals = x[many] - means[labels[many]]
    # A mean of n photos lies too close to each of them.
    residuals *= np.sqrt(counts / np.maximum(counts - 1, 1))[labels[many], None]
    if not len(residuals):
        return _resample(x, labels, rng)
    known = np.flatnonzero(counts >= 3)
    sizes = _sizes(rng)
    people = rng.permutation(len(counts))
    in_modes = rng.random() < 0.7
    parts, owners = [], []
    for person, size in enumerate(sizes):
        if person < len(people):
            own = people[person]
            real = rng.permutation(order[starts[own] : starts[own + 1]])[:size]
            parts.append(x[real])
            missing = size - len(real) if counts[own] >= 3 else 0
            mean = means[own]
        else:  # someone who looks like two others
            one, two = rng.choice(known, 2)
            share = rng.uniform(0.3, 0.7)
            mean = share * means[one] + (1 - share) * means[two]
            mean *= np.linalg.norm(means[one]) / np.linalg.norm(mean)
            missing, real = size, np.empty(0, int)
        if missing:
            drawn: Floats = residuals[rng.integers(len(residuals), size=missing)]
            if in_modes and missing > 3:
                drawn = _in_modes(drawn, residuals, rng)
            parts.append(_unit(mean + drawn * rng.uniform(0.9, 1.15)))
        owners.append(np.full(len(real) + missing, person))
    grown, owner = np.concatenate(parts), np.concatenate(owners)
    if rng.random() < 0.25:
        frames = np.repeat(np.arange(len(grown)), rng.integers(1, 5, len(grown)))
        frames = rng.permutation(frames)[: int(1.5 * LARGEST)]
        blur = rng.uniform(0.1, 0.8, (len(frames), 1))
        grown, owner = _unit(grown[frames] + blur * _noise(len(frames), x, rng)), owner[frames]
    return _with_junk(grown, rng), owner


def _sizes(rng: Rng) -> NDArray[np.int64]:
    """How many photos each person has, in one of five manners."""
    people = _between(rng, 15, 8000)
    manner = rng.integers(5)
    if manner == 0:  # all alike
        sizes = np.full(people, float(_between(rng, 2, 600)))
    elif manner == 1:
        sizes = np.exp(rng.normal(rng.uniform(0.5, 4.5), rng.uniform(0.3, 1.5), people))
    elif manner == 2:  # long-tailed
        sizes = 1 + rng.pareto(rng.uniform(0.6, 2), people) * rng.uniform(0.5, 5)
    elif manner == 3:  # mostly one each
        single = rng.random(people) < rng.uniform(0.4, 0.95)
        sizes = np.where(single, 1, 1 + 2 * rng.pareto(1.0, people))
    else:  # a few with very many
        few = rng.random(people) < 0.1
        sizes = np.where(few, rng.uniform(50, 800, people), rng.integers(1, 6, people))
    whole = np.clip(sizes, 1, MOST_PHOTOS).astype(np.int64)
    whole = whole[: max(2, int(np.searchsorted(np.cumsum(whole), _limit(rng))))]
    if rng.random() < OWNED:  # someone's own collection
        share = rng.uniform(0.1, 0.5)
        whole[0] = np.clip(share / (1 - share) * whole[1:].sum(), 1, LARGEST)
    return whole


def _in_modes(drawn: Floats, residuals: Floats, rng: Rng) -> Floats:
    """The residuals of one person's photos, gathered around several of them."""
    n_modes = int(rng.integers(1, 1 + min(8, len(drawn) // 2)))
    share = rng.uniform(0, 0.85, (n_modes, 1))
    modes = residuals[rng.integers(len(residuals), size=n_modes)]
    if rng.random() < CHANGED:  # as a child and grown up, say
        modes = modes * rng.uniform(1, 2, (n_modes, 1))
    which = rng.choice(n_modes, size=len(drawn), p=rng.dirichlet(np.ones(n_modes)))
    return share[which] * modes[which] + np.sqrt(1 - share[which] ** 2) * drawn


def _with_junk(x: Floats, rng: Rng) -> Floats:
    """Some items drawn towards a few places where bad photos look alike."""
    share = rng.choice([0, 0, 0, 0.05, 0.2, 0.5])
    junk = np.flatnonzero(rng.random(len(x)) < share)
    n_places = int(rng.integers(1, 6))
    near = x[rng.integers(len(x), size=n_places)] * rng.uniform(0, 0.7)
    places = _unit(0.5 * _noise(n_places, x, rng) + near) * rng.uniform(0.3, 1)
    how_far = 0.9 * rng.random((len(junk), 1)) ** rng.uniform(0.7, 2)
    there = places[rng.integers(n_places, size=len(junk))]
    there = there + rng.uniform(0.3, 0.9) * _noise(len(junk), x, rng)
    x = x.copy()
    x[junk] = _unit((1 - how_far) * x[junk] + how_far * there)
    return x


def _another_embedder(x: Floats, rng: Rng) -> Floats:
    """As another embedder might see them: off centre, one-sided, in fewer dimensions that count."""
    dimension = x.shape[1]
    manner = rng.integers(5)
    if manner == 0:
        x = x + rng.uniform(0.3, 2) * _unit(_noise(1, x, rng))
    elif manner == 1:
        narrower = max(8, int(dimension * rng.uniform(0.2, 0.8)))
        x = x @ rng.normal(size=(dimension, narrower))
    elif manner == 2:
        x = np.maximum(x @ rng.normal(size=(dimension, dimension)) + rng.uniform(-0.5, 0.5), 0)
    else:
        mean = x.mean(axis=0)
        some = x[rng.integers(len(x), size=min(len(x), 2000))]
        _, scales, axes = np.linalg.svd(some - mean, full_matrices=False)
        steeper = np.maximum(scales / scales[0], 1e-3) ** rng.uniform(-0.2, STEEPEST)
        x = ((x - mean) @ axes.T) * steeper
        if rng.random() < 0.5:
            x = x @ axes + mean * rng.uniform(0, 2)
    return _unit(x)


def _with_noise(x: Floats, rng: Rng) -> Floats:
    """As a weaker embedder might see them, or worse photos: all alike, or each its own way."""
    level = rng.uniform(0, 0.9) * (rng.random((len(x), 1)) if rng.random() < 0.5 else 1)
    return _unit(x + level * _noise(len(x), x, rng))


def _noise(count: int, like: Floats, rng: Rng) -> Floats:
    """Random directions of about unit length."""
    dimension = like.shape[1]
    return (rng.normal(size=(count, dimension)) / np.sqrt(dimension)).astype(np.float32)


def _unit(x: NDArray[np.floating]) -> Floats:
    lengths = np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-6)
    return (x / lengths).astype(np.float32)
