"""Figure 5: what is left when the items that are alone are taken away.

With a stricter threshold more items stay alone; a method that leaves the bad photos alone
gets better clusters of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from facelink.baselines import BASELINES
from facelink.data.layouts import LabelledCollection
from facelink.experiments.bench import Bench, Cell, Row, scores
from facelink.experiments.oracle import title_of
from facelink.links import Links, score_links
from facelink.merging import merge_links

METHODS = ("GCN-M", "aro", "dbscan", "ahc")
MOST = 16  # values of a knob
THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99)


def cells(bench: Bench) -> list[Cell]:
    """A row for each method and threshold, on the first collection."""
    collection = bench.tested[0]
    _, tested = bench.split(collection)
    return [
        Cell(
            {"collection": collection.name, "method": title_of(method), "threshold": float(knob)},
            partial(measure, bench, collection, method, knob),
            (collection.digest,),
            "singletons",
            learned=method not in BASELINES,
        )
        for method in METHODS
        for knob in _knobs(method, tested.n_people)
    ]


def _knobs(method: str, n_people: int) -> Sequence[float]:
    if method not in BASELINES:
        return THRESHOLDS
    grid = BASELINES[method].grid(n_people)
    return grid[:: -(-len(grid) // MOST)]


def measure(bench: Bench, collection: LabelledCollection, method: str, knob: float) -> Row:
    """The share of items that a method leaves alone, and its scores on the others."""
    learned, tested = bench.split(collection)
    labels: NDArray[np.int64]
    if method in BASELINES:
        graph, _ = bench.graph(tested)
        labels_at = bench.once(
            ("prepared", method, tested.digest),
            lambda: BASELINES[method].prepare(
                tested.embeddings, graph=graph, **BASELINES[method].variants[0]
            ),
        )
        labels = labels_at(knob)
    else:
        links: Links = bench.once(
            ("links", method, tested.digest), lambda: _links(bench, method, learned, tested)
        )
        labels = merge_links(links, bench.merging, threshold=knob)
    sizes = np.bincount(labels)
    alone = float((sizes[labels] == 1).mean())
    if alone == 1:
        return {"singletons": 1.0, "F": None, "pairwise F": None, "NMI": None}
    return {
        "singletons": round(alone, 4),
        **scores(tested.labels, labels, without_singletons=True),
    }


def _links(
    bench: Bench, method: str, learned: LabelledCollection, tested: LabelledCollection
) -> Links:
    graph, _ = bench.graph(tested)
    return score_links(tested.embeddings, graph, bench.network(method, learned))


def draw(rows: Sequence[Row], figure: Any) -> None:
    """F and NMI of the others, over the share of items that are alone."""
    panels = figure.subplots(1, 2)
    for method in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in rows if row["method"] == method and row["F"] is not None]
        mine.sort(key=lambda row: row["singletons"])
        share = [100 * row["singletons"] for row in mine]
        for panel, name in zip(panels, ("F", "NMI"), strict=True):
            panel.plot(share, [row[name] for row in mine], "o-", markersize=3, label=method)
    # Below, everybody is in one cluster.
    panels[0].set(ylabel="BCubed F of the others", ylim=(0.7, 1.005))
    panels[1].set(ylabel="NMI of the others", ylim=(0.85, 1.0025))
    for panel in panels:
        panel.set(xlabel="items left alone, %", xlim=(0, 60))
    panels[0].legend()
