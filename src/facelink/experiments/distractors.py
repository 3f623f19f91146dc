"""Table 4: a collection among many irrelevant faces: time and quality over k1.

Scores ignore the distractors, as in the paper. They are people who do not exist
(`facelink.data.synthetic`), as similar to each other as those of the collection.
"""

from __future__ import annotations

import time
from functools import partial

import numpy as np

from facelink.baselines import check_size
from facelink.data.layouts import LabelledCollection
from facelink.data.synthetic import Population
from facelink.experiments.bench import Bench, Cell, Row, scores
from facelink.links import score_links
from facelink.merging import merge_links
from facelink.neighbors import KnnGraph, knn_graph
from facelink.subgraphs import Context

K1, K2 = (10, 40, 160), 5
QUICK_DISTRACTORS = 2000


def cells(bench: Bench) -> list[Cell]:
    """A row for each k1, on the first collection."""
    collection = bench.tested[0]
    count = min(QUICK_DISTRACTORS, bench.distractors) if bench.quick else bench.distractors
    return [
        Cell(
            {"collection": collection.name, "distractors": count, "k1": k1, "k2": K2},
            partial(measure, bench, collection, count, k1),
            (collection.digest,),
            "distractors",
            learned=True,
        )
        for k1 in K1
    ]


def measure(bench: Bench, collection: LabelledCollection, count: int, k1: int) -> Row:
    """Scores without the distractors, and the time of each stage."""
    learned, tested = bench.split(collection)
    model = bench.network("GCN-M", learned)
    embeddings, graph, seconds = bench.once(
        ("among", tested.digest, count), lambda: _among_distractors(bench, tested, count)
    )
    began = time.monotonic()
    context = Context((k1, K2), 5).fitted_to(graph.k)
    links = score_links(embeddings, graph, model, context=context, progress=bench.progress)
    scored = time.monotonic()
    labels = merge_links(links, bench.merging, threshold=model.preset("balanced").threshold)
    return {
        "items": len(embeddings),
        **scores(tested.labels, labels[: len(tested)]),
        "neighbours s": round(seconds, 1),
        "links s": round(scored - began, 1),
        "merging s": round(time.monotonic() - scored, 1),
    }


def _among_distractors(
    bench: Bench, tested: LabelledCollection, count: int
) -> tuple[np.ndarray, KnnGraph, float]:
    n_items, dimension = len(tested) + count, tested.embeddings.shape[1]
    # The rows three times over, the graph, candidates of the search, and the links.
    check_size("Table 4", n_items, n_items * (12 * dimension + (24 + 16) * max(K1) + 1024))
    others, _ = Population.of(tested.embeddings, tested.labels).draw(count, bench.seed)
    embeddings = np.concatenate([np.asarray(tested.embeddings, np.float32), others])
    began = time.monotonic()
    graph = knn_graph(embeddings, max(K1), progress=bench.progress)
    return embeddings, graph, time.monotonic() - began
