"""Tables 5 and 6: faces, voices, and both.

Nobody's face and voice come together here, so people are paired with speakers by the
seed, and photos with clips. The voices as they are would be too easy: noise is added,
just so much that average-linkage clustering, tuned by oracle, does as well on the voices as
on the faces.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from facelink.data.layouts import LabelledCollection
from facelink.experiments.bench import Bench, Cell, NotForTheseError, Row, need, scores
from facelink.experiments.oracle import best_of, title_of
from facelink.links import Model
from facelink.metrics import bcubed
from facelink.pipeline import cluster
from facelink.views import join_views

METHODS = ("kmeans", "spectral", "ahc", "aro", "GCN-M", "facelink, joined", "facelink")
LOUDEST = 4.0
STEPS = 7  # of the search for how much noise
FEWEST = 6  # people
QUICK_PHOTOS = 12  # of one person


@dataclass(frozen=True)
class People:
    """Faces and voices of the same people."""

    faces: NDArray[np.float32]
    voices: NDArray[np.float32]
    labels: NDArray[np.int64]
    noise: float


def cells(bench: Bench, share: float) -> list[Cell]:
    """A row for each method and view, with this share of the people to be tested on."""
    voices = need(
        [c for c in bench.collections if "voice" in c.name.lower()],
        "Faces and voices: expected a collection whose name says that it holds voices, got "
        + ", ".join(c.name for c in bench.collections) + ".",
    )  # fmt: skip
    faces = need(
        [c for c in bench.collections if "voice" not in c.name.lower()],
        f"Faces and voices: expected a collection of faces beside {voices.name}.",
    )
    for collection in (faces, voices):
        if collection.n_people < FEWEST:
            raise NotForTheseError(
                f"Faces and voices: {collection.name} has {collection.n_people} people, expected "
                f"{FEWEST} or more, some to learn from and some to test on."
            )
    return [
        Cell(
            {
                "faces": faces.name,
                "share of people": share,
                "method": title_of(method),
                "view": view,
            },
            partial(measure, bench, faces, voices, share, method, view),
            (faces.digest, voices.digest, bench.universal_digest if "facelink" in method else ""),
            "two views",
            learned=method == "GCN-M",
        )
        for method in METHODS
        for view in ("face", "voice", "both")
        if method != "facelink, joined" or view == "both"
    ]


def measure(
    bench: Bench,
    faces: LabelledCollection,
    voices: LabelledCollection,
    share: float,
    method: str,
    view: str,
) -> Row:
    """Scores of a method that sees or hears people, or both."""
    most = QUICK_PHOTOS if bench.quick else None
    learned, tested = bench.once(
        ("people", faces.digest, voices.digest, share),
        lambda: pair_people(faces, voices, bench.seed, share, most),
    )
    x, v, labels = tested.faces, tested.voices, tested.labels
    rows = {"face": x, "voice": v, "both": join_views([x, v])}[view]
    model: Model
    if method == "GCN-M":
        seen = {"face": learned.faces, "voice": learned.voices, "both": learned.faces}[view]
        further = [learned.voices] if view == "both" else []
        known = LabelledCollection(f"{faces.name}, to learn from", seen, learned.labels)
        model = bench.network(method, known, further)
        found = cluster(
            x if further else rows,
            views=[v] if further else [],
            model=model,
            method=bench.merging,
        )
        result = scores(labels, found.labels)
    elif method.startswith("facelink"):
        model = bench.universal_model()
        apart = view == "both" and method == "facelink"
        found = cluster(x if apart else rows, views=[v] if apart else [], model=model)
        result = scores(labels, found.labels)
    else:
        result = scores(labels, best_of(method, rows, labels).labels)
    return {
        "people": int(labels.max()) + 1,
        "items": len(labels),
        "noise": round(tested.noise, 3),
        **result,
    }


def pair_people(
    faces: LabelledCollection,
    voices: LabelledCollection,
    seed: int,
    share: float = 1.0,
    most: int | None = None,
) -> tuple[People, People]:
    """People to learn from (a third) and people to test on, each with a speaker's voice.

    Of each person as many photos as there are clips, or at most ``most``; of the others a
    ``share`` is tested on.
    """
    rng = np.random.default_rng([seed, 0xF0CE])
    photos, clips = np.bincount(faces.labels), np.bincount(voices.labels)
    speakers = rng.permutation(len(clips))
    # People of many photos are few: among twice as many as there are speakers, some are chosen.
    often = np.argsort(-photos, kind="stable")[: 2 * len(speakers)]
    people = rng.permutation(often)[: len(speakers)]
    chosen: list[tuple[NDArray, NDArray]] = []
    for person, speaker in zip(people, speakers, strict=False):
        count = min(photos[person], clips[speaker], most or clips[speaker])
        mine = rng.permutation(np.flatnonzero(faces.labels == person))[:count]
        heard = rng.permutation(np.flatnonzero(voices.labels == speaker))[:count]
        chosen.append((mine, heard))
    n_learned = max(2, len(chosen) // 3)

    def gather(pairs: list[tuple[NDArray, NDArray]]) -> tuple[NDArray, NDArray, NDArray]:
        x = np.concatenate([faces.embeddings[mine] for mine, _ in pairs]).astype(np.float32)
        v = np.concatenate([voices.embeddings[heard] for _, heard in pairs]).astype(np.float32)
        labels = np.repeat(np.arange(len(pairs)), [len(mine) for mine, _ in pairs])
        return x, v, labels

    n_tested = max(2, round(share * (len(chosen) - n_learned)))
    x, v, labels = gather(chosen[n_learned:][:n_tested])
    noise = as_hard_as(x, v, labels, int(rng.integers(1 << 30)))
    known_x, known_v, known_labels = gather(chosen[:n_learned])
    return (
        People(known_x, with_noise(known_v, noise, seed + 1), known_labels, noise),
        People(x, with_noise(v, noise, seed + 2), labels, noise),
    )


def as_hard_as(
    x: NDArray[np.float32], v: NDArray[np.float32], labels: NDArray[np.int64], seed: int
) -> float:
    """How much noise makes v as hard as x, for average linkage tuned by oracle."""
    wanted = bcubed(labels, best_of("ahc", x, labels).labels).f
    low, high = 0.0, LOUDEST
    for _ in range(STEPS):
        middle = (low + high) / 2
        reached = bcubed(labels, best_of("ahc", with_noise(v, middle, seed), labels).labels).f
        low, high = (middle, high) if reached > wanted else (low, middle)
    return (low + high) / 2


def with_noise(v: NDArray[np.float32], noise: float, seed: int) -> NDArray[np.float32]:
    """Unit vectors, plus random directions of this length."""
    rng = np.random.default_rng([seed, 0x015E])
    unit = v / np.linalg.norm(v, axis=1, keepdims=True)
    directions = rng.standard_normal(v.shape, np.float32) / np.sqrt(v.shape[1])
    return (unit + noise * directions).astype(np.float32)
