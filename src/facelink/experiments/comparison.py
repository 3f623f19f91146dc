"""Tables 2 and 3: all methods side by side, with their knobs set by oracle.

As in the paper, the knob of every method that has one is the best on the very collection
that is reported. The networks are trained on other people and have nothing tuned.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from facelink.baselines import BASELINES
from facelink.data.layouts import LabelledCollection
from facelink.errors import InputError
from facelink.experiments.bench import (
    AGGREGATORS,
    QUICK_COLLECTIONS,
    Bench,
    Cell,
    Row,
    scores,
)
from facelink.links import Model
from facelink.metrics import bcubed
from facelink.neighbors import KnnGraph
from facelink.pipeline import cluster

UNIVERSAL = "facelink"
WIDEST = 200  # neighbours that any method reads


def cells(
    bench: Bench,
    methods: Sequence[str] = (*BASELINES, *AGGREGATORS, UNIVERSAL),
    embedders: bool = False,
) -> list[Cell]:
    """A row for each collection and method.

    With ``embedders``, only for collections NAME-EMBEDDER of which there are several
    of one NAME.
    """
    collections = bench.tested[:QUICK_COLLECTIONS] if bench.quick else bench.tested
    if embedders:
        names = [c.name.rpartition("-")[0] for c in collections]
        collections = [c for c, name in zip(collections, names, strict=True)
                       if name and names.count(name) > 1]  # fmt: skip
        if not collections:
            raise InputError(
                "The same people under another embedding: expected two collections named "
                f"NAME-EMBEDDER of one NAME, got {', '.join(c.name for c in bench.tested)}."
            )
    return [
        Cell(
            {
                "collection": collection.name,
                "method": BASELINES[name].name if name in BASELINES else name,
            },
            partial(measure, bench, collection, name),
            (collection.digest, bench.universal if name == UNIVERSAL else ""),
            "comparison",
        )
        for collection in collections
        for name in methods
    ]


def measure(bench: Bench, collection: LabelledCollection, method: str) -> Row:
    """A method's scores on the people that the networks were not trained on."""
    learned, tested = bench.split(collection)
    if method in AGGREGATORS:
        model: Model = bench.network(method, learned)
    elif method == UNIVERSAL:
        model = bench.universal_model()
    else:
        return tuned(bench, tested, method)
    began = time.monotonic()
    labels = cluster(tested.embeddings, model=model).labels
    taken = time.monotonic() - began
    return {**scores(tested.labels, labels), "seconds": round(taken, 1), "tuned": "nothing"}


def tuned(bench: Bench, tested: LabelledCollection, method: str) -> Row:
    """The best of a baseline over its grid; the time of the best setting alone."""
    baseline = BASELINES[method]
    graph: KnnGraph | None = None
    searched = 0.0
    if baseline.n_neighbors:
        graph, searched = bench.once(("wide", tested.digest), lambda: _search(tested))
    best: Row = {"F": -1.0}
    for variant in baseline.variants:
        began = time.monotonic()
        try:
            labels_at = baseline.prepare(tested.embeddings, graph=graph, **variant)
        except InputError as error:  # too large for it
            nothing = dict.fromkeys(("F", "pairwise F", "NMI", "seconds"))
            return {**nothing, "tuned": str(error).split(".")[0]}
        prepared = searched + time.monotonic() - began
        for knob in baseline.grid(tested.n_people):
            began = time.monotonic()
            labels = labels_at(knob)
            taken = time.monotonic() - began
            if bcubed(tested.labels, labels).f > best["F"]:
                chosen = {**variant, baseline.knob: knob}
                best = {
                    **scores(tested.labels, labels),
                    "seconds": round(prepared + taken, 1),
                    "tuned": ", ".join(f"{name} {value:.4g}" for name, value in chosen.items()),
                }
    return best


def _search(tested: LabelledCollection) -> tuple[KnnGraph, float]:
    """A graph wide enough for all, and how long it took to find."""
    began = time.monotonic()
    return tested.graph(WIDEST), time.monotonic() - began
