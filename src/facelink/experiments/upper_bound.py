"""Table 1: how good clusters could be if every link among k nearest neighbours were known.

Each item is linked to those of its k nearest neighbours that are the same person.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from facelink.data.layouts import LabelledCollection
from facelink.experiments.bench import Bench, Cell, Row, scores
from facelink.links import Links
from facelink.merging import merge_links

WIDTHS = (5, 10, 20, 40, 80, 160)


def cells(bench: Bench) -> list[Cell]:
    """A row for each collection and k."""
    return [
        Cell(
            {"collection": collection.name, "k": k},
            partial(measure, bench, collection, k),
            (collection.digest,),
            "upper bound",
        )
        for collection in bench.tested
        for k in WIDTHS
    ]


def measure(bench: Bench, collection: LabelledCollection, k: int) -> Row:
    """Scores of the true links among k nearest neighbours."""
    graph = bench.graph(collection)[0].narrowed(k)
    true = collection.labels[graph.indices] == collection.labels[:, None]
    labels = merge_links(Links(graph, true.astype(np.float32)), "components", threshold=0.5)
    return scores(collection.labels, labels)
