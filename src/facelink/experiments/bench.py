"""What experiments have in common: collections, splits, graphs, models."""

from __future__ import annotations

import hashlib
import json
import platform
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import facelink
from facelink.compiled import available_threads
from facelink.data.layouts import LabelledCollection
from facelink.data.writing import make_folder
from facelink.errors import FileError, InputError
from facelink.experiments.rows import Row, Rows
from facelink.links import GcnModel, Model, load_model
from facelink.metrics import bcubed, nmi, pairwise
from facelink.neighbors import KnnGraph
from facelink.progress import Progress, silent

# A narrower network in smaller subgraphs than the paper's: as accurate on half of
# lfw-degraded, and trained in minutes rather than hours (docs/accuracy.md).
RECIPE = {"widths": (256, 256, 128, 128), "hops": (80, 5), "u": 5, "epochs": 3, "batch_size": 32}
# A sixteenth to an eighth of the paper's widths, trained for longer: no less accurate there, and
# much faster to score with (docs/scoring.md).
NARROW = {**RECIPE, "widths": (64, 32, 32, 32), "epochs": 15, "learning_rate": 2e-3}
AS_IN_PAPER = {
    "widths": (512, 512, 256, 256), "hops": (200, 10), "u": 10, "epochs": 4, "batch_size": 16,
    "similarity": False, "balanced": False,
}  # fmt: skip
QUICK = {"widths": (32, 32, 16, 16), "hops": (40, 5), "u": 5, "epochs": 8, "batch_size": 16}
QUICK_ITEMS, QUICK_COLLECTIONS = 1000, 2
WIDEST = 200  # neighbours that any method reads
AGGREGATORS = {"GCN-M": "mean", "GCN-W": "weighted", "GCN-A": "attention"}


@dataclass(frozen=True)
class Cell:
    """One row to be.

    Attributes
    ----------
    key : dict
        The columns that say what is measured.
    compute : callable
        Measures it: the other columns.
    data : tuple of str
        Digests of the collections it is measured on.
    kind : str
        Cells of one kind, key and data are the same, whichever experiment asks.
    learned : bool
        Whether a network is trained for it.
    """

    key: Row
    compute: Callable[[], Row]
    data: tuple[str, ...]
    kind: str
    learned: bool = False

    @property
    def title(self) -> str:
        return ", ".join(str(value) for value in self.key.values())


@dataclass(frozen=True)
class Bench:
    """Collections to measure on, and a folder for what was measured.

    Attributes
    ----------
    collections : sequence of LabelledCollection
    folder : Path
        For tables, figures, trained models and finished rows.
    quick : bool
        Small parts of the collections and small networks: to see it run.
    as_in_paper : bool
        Train with the paper's widths, subgraphs and loss.
    narrow : bool
        Train networks of an eighth of the paper's widths: for large collections.
    universal : str
        The model for any embedding to compare with.
    distractors : int
        How many to add.
    seed : int
    progress : callable
    """

    collections: Sequence[LabelledCollection]
    folder: Path
    quick: bool = False
    as_in_paper: bool = False
    narrow: bool = False
    universal: str = "universal"
    distractors: int = 100_000
    seed: int = 0
    progress: Progress = silent
    _kept: dict[Any, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.quick + self.as_in_paper + self.narrow > 1:
            raise InputError(
                "quick, as_in_paper and narrow are three ways to train networks: choose one."
            )

    @property
    def recipe(self) -> dict[str, Any]:
        """How networks are trained."""
        if self.narrow:
            return NARROW
        return QUICK if self.quick else AS_IN_PAPER if self.as_in_paper else RECIPE

    def about(self) -> Row:
        """What is needed to judge the figures."""
        return {
            "facelink": facelink.__version__,
            "machine": f"{platform.machine()}, {available_threads()} threads",
            "collections": {c.name: len(c) for c in self.tested},
            "graphs on file": [c.name for c in self.tested if c.graph_file is not None],
            "trained on": [c.name for c in self.trained_on] or "half of the people of each",
            "quick": self.quick,
            "as in the paper": self.as_in_paper,
            "narrow": self.narrow,
            "recipe": {name: str(value) for name, value in self.recipe.items()},
            "links of networks merged by": self.merging,
            "universal model": Path(self.universal).name,
            "distractors": self.distractors,
            "seed": self.seed,
        }

    @property
    def merging(self) -> str:
        """How links of the networks are merged."""
        return "propagation" if self.as_in_paper else "map-equation"

    @cached_property
    def trained_on(self) -> list[LabelledCollection]:
        """Collections that are there to train on: CASIA of the paper, part0_train of MS1M."""
        return [self.reduced(c) for c in self.collections if _is_for_training(c)]

    @cached_property
    def tested(self) -> list[LabelledCollection]:
        """The collections to measure on, whole."""
        found = [self.reduced(c) for c in self.collections if not _is_for_training(c)]
        need(
            found,
            "There is nothing to test on: of "
            f"{', '.join(c.name for c in self.collections)}, all are there to train on.",
        )
        return found

    def reduced(self, collection: LabelledCollection) -> LabelledCollection:
        """Some of the people, if it is to be quick."""
        if not self.quick or len(collection) <= QUICK_ITEMS:
            return collection
        order = np.random.default_rng(self.seed).permutation(collection.n_people)
        sizes = np.bincount(collection.labels)[order]
        people = order[: max(2, int(np.searchsorted(np.cumsum(sizes), QUICK_ITEMS)))]
        return collection.of(np.isin(collection.labels, people), collection.name)

    def split(
        self, collection: LabelledCollection
    ) -> tuple[LabelledCollection, LabelledCollection]:
        """What to train on and what to test on, with no people in common."""
        dimension = collection.embeddings.shape[1]
        for training in self.trained_on:
            if training.embeddings.shape[1] == dimension:
                return training, collection
        return self.once(("split", collection.digest), lambda: self._halves(collection))

    def _halves(
        self, collection: LabelledCollection
    ) -> tuple[LabelledCollection, LabelledCollection]:
        first = half_of_people(collection.labels, self.seed)
        return (
            collection.of(first, f"{collection.name}, one half"),
            collection.of(~first, collection.name),
        )

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """What was made for this key, or make it."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def graph(self, collection: LabelledCollection, k: int = WIDEST) -> tuple[KnnGraph, float]:
        """The kNN graph of a collection, k wide or wider, and the seconds it took.

        One of our own serves everybody; one on file, those who read no more than it has.
        """
        width = WIDEST if collection.graph_file is None else k

        def search() -> tuple[KnnGraph, float]:
            began = time.monotonic()
            return collection.graph(width, progress=self.progress), time.monotonic() - began

        return self.once(("graph", collection.digest, width), search)

    def network(
        self, method: str, collection: LabelledCollection, views: Sequence[NDArray[Any]] = ()
    ) -> GcnModel:
        """GCN-M, GCN-W or GCN-A trained on a collection; kept in a file."""
        recipe = {"aggregator": AGGREGATORS[method], **self.recipe, "seed": self.seed}
        extra = [hashlib.sha256(np.ascontiguousarray(v).tobytes()).hexdigest() for v in views]
        content = [facelink.__version__, collection.digest, recipe, extra]
        name = f"{method}-{_fingerprint(content)}"
        path = self.folder / "models" / f"{name}.safetensors"
        if not path.exists():
            make_folder(path.parent)
            checkpoint = path.with_suffix(".checkpoint")
            trained = facelink.train(
                collection.embeddings,
                collection.labels,
                views=views,
                name=name,
                checkpoint=checkpoint,
                progress=self.progress,
                **recipe,
            )
            trained.save(path)
            checkpoint.unlink(missing_ok=True)
        model = load_model(path)
        if not isinstance(model, GcnModel):
            raise FileError(f"{path} is another kind of model. Remove it.")
        return model

    def universal_model(self) -> Model:
        """The model for any embedding."""
        return self.once("universal", lambda: load_model(self.universal))

    @cached_property
    def universal_digest(self) -> str:
        """A few letters that change with the model."""
        return self.universal_model().fingerprint

    def row_of(self, cell: Cell) -> Row:
        """The cell's row, computed now or before."""
        setting = [cell.kind, cell.key, cell.data, self.quick, self.seed]
        setting.append([c.digest for c in self.trained_on])
        setting.append([self.recipe, self.merging] if cell.learned else None)
        name = _fingerprint([facelink.__version__, *setting])
        if name not in self._rows:
            try:
                measured = cell.compute()
            except FileError:
                raise
            except InputError as error:
                raise InputError(f"{cell.title}: {error}") from None
            self._rows.add(name, measured)
        return {**cell.key, **self._rows[name]}

    @cached_property
    def _rows(self) -> Rows:
        return Rows(self.folder / "cells.jsonl")


def half_of_people(labels: NDArray[np.integer], seed: int) -> NDArray[np.bool_]:
    """A mask of the items of one half of the people."""
    people = np.unique(labels)
    chosen = np.random.default_rng(seed).permutation(people)[: len(people) // 2]
    return np.isin(labels, chosen)


def scores(truth: NDArray[Any], labels: NDArray[Any], **options: Any) -> Row:
    """The columns by which a clustering is judged."""
    return {
        "F": round(bcubed(truth, labels, **options).f, 4),
        "pairwise F": round(pairwise(truth, labels, **options).f, 4),
        "NMI": round(nmi(truth, labels, **options), 4),
    }


class NotForTheseError(InputError):
    """The experiment needs collections of another kind."""


def need(collections: Sequence[LabelledCollection], what: str) -> LabelledCollection:
    """The first of some collections, or an error that says what is missing."""
    if not collections:
        raise NotForTheseError(what)
    return collections[0]


def _is_for_training(collection: LabelledCollection) -> bool:
    return bool({"casia", "train"} & set(re.split(r"[\W_]+", collection.name.lower())))


def _fingerprint(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
