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
from facelink.errors import TooLargeError
from facelink.experiments.bench import (
    AGGREGATORS,
    QUICK_COLLECTIONS,
    Bench,
    Cell,
    Row,
    need,
    scores,
)
from facelink.experiments.oracle import best_of, title_of
from facelink.links import Model
from facelink.pipeline import cluster

UNIVERSAL = "facelink"


def cells(
    bench: Bench,
    methods: Sequence[str] = (*BASELINES, *AGGREGATORS, UNIVERSAL),
    embedders: bool = False,
) -> list[Cell]:
    """A row for each collection and method.

    With ``embedders``, only for collections NAME-EMBEDDER of which there are several
    of one NAME.
    """
    collections = bench.tested
    if embedders:
        names = [c.name.rpartition("-")[0] for c in collections]
        collections = [
            c for c, name in zip(collections, names, strict=True) if name and names.count(name) > 1
        ]
        need(
            collections,
            "The same people under another embedding: expected two collections named "
            f"NAME-EMBEDDER of one NAME, got {', '.join(c.name for c in bench.tested)}.",
        )
    if bench.quick:
        collections = collections[:QUICK_COLLECTIONS]
    return [
        Cell(
            {"collection": collection.name, "method": title_of(name)},
            partial(measure, bench, collection, name),
            (collection.digest, bench.universal_digest if name == UNIVERSAL else ""),
            "comparison",
            learned=name in AGGREGATORS,
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
    method = bench.merging if method in AGGREGATORS else "map-equation"
    labels = cluster(tested.embeddings, model=model, method=method).labels
    taken = time.monotonic() - began
    return {**scores(tested.labels, labels), "seconds": round(taken, 1), "tuned": "nothing"}


def tuned(bench: Bench, tested: LabelledCollection, method: str) -> Row:
    """The best of a baseline; the time is that of the best setting, and of the search."""
    graph, searched = None, 0.0
    try:
        if BASELINES[method].n_neighbors:
            graph, searched = bench.graph(tested, BASELINES[method].n_neighbors)
        best = best_of(method, tested.embeddings, tested.labels, graph)
    except TooLargeError as error:
        nothing = dict.fromkeys(("F", "pairwise F", "NMI", "seconds"))
        return {**nothing, "tuned": str(error).split(". ")[0]}
    return {
        **scores(tested.labels, best.labels),
        "seconds": round(searched + best.seconds, 1),
        "tuned": ", ".join(f"{name} {value:g}" for name, value in best.setting.items()),
    }
