"""Figure 4: how much the result depends on k1, k2 and u, the size of the subgraphs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from facelink.data.layouts import LabelledCollection
from facelink.experiments.bench import Bench, Cell, Row, scores
from facelink.links import score_links
from facelink.merging import merge_links
from facelink.subgraphs import Context

K1, K2, U = (10, 20, 40, 80, 160), (5, 10, 20), (3, 5, 10, 15, 20)
PAIRS = ((40, 5), (80, 5), (80, 10))  # of k1 and k2, over u
FIXED_U = 10


def cells(bench: Bench) -> list[Cell]:
    """A row for each setting, on the first collection."""
    collection = bench.tested[0]
    settings = [(k1, k2, FIXED_U) for k2 in K2 for k1 in K1]
    settings += [(k1, k2, u) for k1, k2 in PAIRS for u in U]
    return [
        Cell(
            {"collection": collection.name, "k1": k1, "k2": k2, "u": u},
            partial(measure, bench, collection, Context((k1, k2), u)),
            (collection.digest,),
            "sensitivity",
            learned=True,
        )
        for k1, k2, u in dict.fromkeys(settings)  # some are in both panels
    ]


def measure(bench: Bench, collection: LabelledCollection, context: Context) -> Row:
    """Scores of GCN-M with subgraphs of this size."""
    learned, tested = bench.split(collection)
    model = bench.network("GCN-M", learned)
    graph, _ = bench.graph(tested)
    links = score_links(tested.embeddings, graph, model, context=context.fitted_to(graph.k))
    threshold = model.preset("balanced").threshold
    return scores(tested.labels, merge_links(links, bench.merging, threshold=threshold))


def draw(rows: Sequence[Row], figure: Any) -> None:
    """Two panels: F over k1, and F over u."""
    left, right = figure.subplots(1, 2, sharey=True)
    for k2 in K2:
        line = [row for row in rows if row["u"] == FIXED_U and row["k2"] == k2]
        left.plot([row["k1"] for row in line], [row["F"] for row in line], "o-", label=f"k2 = {k2}")
    for k1, k2 in PAIRS:
        line = [row for row in rows if (row["k1"], row["k2"]) == (k1, k2)]
        line.sort(key=lambda row: row["u"])
        right.plot([row["u"] for row in line], [row["F"] for row in line], "o-",
                   label=f"k1 = {k1}, k2 = {k2}")  # fmt: skip
    left.set(xlabel="k1", ylabel="BCubed F", xscale="log", title=f"(a) u = {FIXED_U}")
    left.set_xticks(K1, [str(k) for k in K1])
    left.minorticks_off()
    right.set(xlabel="u", title="(b)", xticks=U)
    left.legend()
    right.legend()
