"""Labelled collections in folders laid out as other projects lay them out.

- ``NAME.npz`` with the arrays ``x`` and ``y``;
- the paper's code: ``NAME.fea.npy`` or ``NAME.feas.npy``, ``NAME.labels.npy`` and, if
  there is one, ``knn.graph.NAME.*.npy``, (n, k + 1) with the item itself first;
- learn-to-cluster: ``features/NAME.bin``, ``labels/NAME.meta`` and, if there is one,
  ``knns/NAME/*.npz``, whose array ``data`` is (n, 2, k): neighbours, and 1 - similarity.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from facelink.compiled import blocks
from facelink.data.reading import array_names, read_array, read_embeddings, read_labels
from facelink.data.writing import is_there
from facelink.embeddings import UnitRows
from facelink.errors import FileError, InputError
from facelink.neighbors import KnnGraph, knn_graph, similarities_to

FEATURES, LABELS = (".fea.npy", ".feas.npy"), ".labels.npy"


@dataclass(frozen=True)
class LabelledCollection:
    """Embeddings, and who each one is.

    Attributes
    ----------
    name : str
    embeddings : (n, d) array
    labels : (n,) int array
    graph_file : Path, optional
        A kNN graph that somebody made of them.
    """

    name: str
    embeddings: NDArray[Any]
    labels: NDArray[np.int64]
    graph_file: Path | None = None

    def __post_init__(self) -> None:
        if len(self.embeddings) != len(self.labels):
            raise InputError(
                f"{self.name} has {len(self.embeddings):,} embeddings and {len(self.labels):,} "
                "labels. Expected one label for each."
            )
        _, people = np.unique(self.labels, return_inverse=True)
        object.__setattr__(self, "labels", people.astype(np.int64))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def n_people(self) -> int:
        return int(self.labels.max()) + 1

    @cached_property
    def digest(self) -> str:
        """A few letters that change with the content."""
        digest = hashlib.sha256(self.labels.tobytes())
        for block in blocks(len(self), 8192):
            digest.update(np.ascontiguousarray(self.embeddings[block]).tobytes())
        if self.graph_file is not None:
            digest.update(hashlib.sha256(self.graph_file.read_bytes()).digest())
        return digest.hexdigest()[:12]

    def graph(self, k: int, **options: Any) -> KnnGraph:
        """The kNN graph: the one on file, if it is wide enough, else our own."""
        if self.graph_file is not None:
            found = read_graph(self.graph_file, self.embeddings)
            if found.k >= min(k, len(self) - 1):
                return found.narrowed(k)
        return knn_graph(self.embeddings, k, **options)

    def of(self, chosen: NDArray[Any], name: str) -> LabelledCollection:
        """Some of the items as a collection of their own."""
        return LabelledCollection(name, self.embeddings[chosen], self.labels[chosen])


def read_collections(path: str | Path, names: Sequence[str] = ()) -> list[LabelledCollection]:
    """Read the labelled collections of a folder, or of one file.

    All of them in the order of their names, or those named, in that order.
    """
    path = Path(path)
    if not is_there(path):
        raise FileError(f"There is no file or folder {path}.")
    files = [path] if path.is_file() else _find(path)
    by_name: dict[str, Path] = {}
    for file in sorted(files, key=_name):
        if _name(file) in by_name:
            raise FileError(
                f"{by_name[_name(file)]} and {file} are both called {_name(file)!r}. Give one of "
                "them by its own path, or rename it."
            )
        by_name[_name(file)] = file
    if not by_name:
        raise FileError(
            f"{path} holds no labelled collections. Expected NAME.npz with x and y, NAME.fea.npy "
            "and NAME.labels.npy, or features/NAME.bin and labels/NAME.meta."
        )
    for name in names:
        if name not in by_name:
            raise InputError(f"{path} holds no collection {name!r}; it holds {', '.join(by_name)}.")
    return [_read_one(by_name[name]) for name in names or by_name]


def _find(folder: Path) -> list[Path]:
    """What looks like labelled collections; other .npz files may lie about."""
    archives = [file for file in folder.glob("*.npz") if {"x", "y"} <= array_names(file)]
    features = [file for ending in FEATURES for file in folder.glob(f"*{ending}")]
    return [*archives, *features, *folder.glob("features/*.bin")]


def _name(file: Path) -> str:
    for ending in FEATURES:
        if file.name.endswith(ending):
            return file.name.removesuffix(ending)
    return file.stem


def _read_one(file: Path) -> LabelledCollection:
    name = _name(file)
    if file.name.endswith(FEATURES):
        labels = read_labels(_beside(file.with_name(name + LABELS), file))
        graphs = sorted(file.parent.glob(f"knn.graph.{name}.*npy"))
        embeddings = read_embeddings([file])
    elif file.suffix == ".bin":
        root = file.parent.parent
        labels = read_labels(_beside(root / "labels" / f"{name}.meta", file))
        graphs = sorted((root / "knns" / name).glob("*.npz"))
        # The file does not say its dimension, but the labels say how many rows it has.
        dimension, rest = divmod(file.stat().st_size, 4 * len(labels))
        if rest or not dimension:
            raise FileError(
                f"{file} has {file.stat().st_size:,} bytes, which is not a whole number of float32 "
                f"for each of the {len(labels):,} labels beside it."
            )
        embeddings = read_embeddings([file], dim=dimension)
    elif file.suffix == ".npz":
        labels, graphs, embeddings = read_labels(file), [], read_embeddings([file])
    else:
        raise FileError(
            f"{file} is no labelled collection: expected NAME.npz with x and y, NAME.fea.npy with "
            "NAME.labels.npy beside it, or features/NAME.bin with labels/NAME.meta."
        )
    return LabelledCollection(name, embeddings, labels, graphs[0] if graphs else None)


def _beside(labels: Path, features: Path) -> Path:
    if not labels.exists():
        raise FileError(f"{features} has no labels: expected them in {labels}.")
    return labels


def read_graph(file: str | Path, embeddings: NDArray[Any]) -> KnnGraph:
    """Read a kNN graph of the paper's code or of learn-to-cluster.

    The item itself is dropped from its list wherever it stands; similarities
    are computed from the embeddings, and the nearest come first.
    """
    file = Path(file)
    lists = read_array(file, "data")
    if lists.ndim == 3 and lists.shape[1] == 2:
        lists = lists[:, 0]
    if lists.ndim != 2 or len(lists) != len(embeddings) or lists.shape[1] < 2:
        raise FileError(
            f"{file} should hold the neighbours of {len(embeddings):,} items, (n, k + 1) or "
            f"(n, 2, k + 1), got {lists.shape}."
        )
    indices = lists.astype(np.int64)
    n_items = len(indices)
    if (indices != lists).any() or indices.min() < 0 or indices.max() >= n_items:
        raise FileError(f"{file} names neighbours that are not among the {n_items:,} items.")
    others = indices != np.arange(n_items)[:, None]
    # Where the item itself is missing (copies of it came first), the last one goes instead.
    others[others.all(axis=1), -1] = False
    if (others.sum(axis=1) != indices.shape[1] - 1).any():
        raise FileError(f"{file} names an item several times among its own neighbours.")
    indices = indices[others].reshape(n_items, -1)
    ordered = np.sort(indices, axis=1)
    if (ordered[:, 1:] == ordered[:, :-1]).any():
        raise FileError(f"{file} names a neighbour of an item twice.")
    similarities = similarities_to(UnitRows(embeddings), indices)
    order = np.argsort(-similarities, axis=1, kind="stable")
    return KnnGraph(
        np.take_along_axis(indices, order, axis=1), np.take_along_axis(similarities, order, axis=1)
    )
