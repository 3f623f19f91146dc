"""Links between items that several embeddings show: faces and voices, say.

In joined embeddings, a view that has nothing to say of two items blurs what another
says clearly: somebody turned away from the camera, but heard well. And an item that
lacks a view is nowhere near those that have it. So links are scored in each view's own
graph, among the items that have it, and in the graph of the joined embeddings, among
those that have all. A link is as likely as the surest of these says. Only those of the joined
embeddings are reviewed by clusters: one view's may take two people for one, and the review
would be sure of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

from facelink.compiled import compiled
from facelink.embeddings import UnitRows
from facelink.links import Links, UniversalModel
from facelink.links.universal import look_at_all, score_universal
from facelink.neighbors import KnnGraph, knn_graph, similarities_to
from facelink.neighbors.copies import find_distinct
from facelink.progress import Progress, silent
from facelink.runs import Run
from facelink.subgraphs import Context
from facelink.views import View

COPIES, COPIED = 20, 0.02  # items that share a row, and their share: more are no copies


def score_views(
    views: Sequence[View],
    joined: UnitRows,
    model: UniversalModel,
    *,
    weights: Sequence[float] | None = None,
    context: Context | None = None,
    neighbors: str = "auto",
    run: Run | None = None,
    n_threads: int | None = None,
    progress: Progress = silent,
) -> Links:
    """Find the neighbours of every item and their links, seen from every view.

    Parameters
    ----------
    views : sequence of View
        Of the same items.
    joined : UnitRows
        The views beside each other (`facelink.views.join`).
    model : UniversalModel
    weights : sequence of float, optional
        Of the views; all alike by default. What a view says of a link is
        multiplied by its weight, as a share of the largest.
    context : Context, optional
        Its first hop is the neighbours per item; the model's own by default.
    neighbors : {"auto", "exact", "approximate"}
        As in `knn_graph`.
    run, n_threads, progress
        As in `score_links`.

    Returns
    -------
    Links
        The k likeliest of each item. Similarities are those of the joined
        embeddings. The graph's notes say what was left out.

    Notes
    -----
    Costs a search and a scoring per view and one more, and memory for as many
    graphs.
    """
    n_items = len(joined)
    context = context or model.context
    k = min(context.k, n_items - 1)
    shares = np.ones(len(views)) if weights is None else np.array(weights) / max(weights)
    notes: list[str] = []
    checked = [_without_placeholders(view, number, notes) for number, view in enumerate(views, 1)]
    complete = reduce(np.intersect1d, [view.present for view in checked])
    every = len(complete) == n_items
    rows = joined.taking(complete) if len(complete) and not every else joined
    whole = View(complete, rows, n_items)
    indices, likelihoods = [], []
    recalls = []
    for number, (view, share) in enumerate(zip((*checked, whole), (*shares, 1.0), strict=True)):
        if len(view.present) < 2:
            continue
        part = (run or Run()).part(f"view {number}")
        graph = knn_graph(
            view.rows, context.k, neighbors=neighbors, run=part, n_threads=n_threads,
            progress=progress,
        )  # fmt: skip
        graph = graph.narrowed(context.fitted_to(graph.k).hops[0])
        score = score_universal if view is whole else look_at_all
        links = score(view.rows, graph, model, run=part, n_threads=n_threads, progress=progress)
        recalls += [] if graph.recall is None else [graph.recall]
        found = np.full((n_items, links.likelihood.shape[1]), -1, np.int32)
        found[view.present] = view.present[links.neighbors]
        likelihood = np.zeros(found.shape, np.float32)
        likelihood[view.present] = np.float32(share) * links.likelihood
        indices.append(found)
        likelihoods.append(likelihood)
    if not indices:  # a single item, or no two of whom share a view
        nothing = np.empty((n_items, 0), np.float32)
        return Links(KnnGraph(nothing.astype(np.int32), nothing, tuple(notes)), nothing)
    likeliest = np.empty((n_items, k), np.int32)
    likelihood = np.empty((n_items, k), np.float32)
    _likeliest(np.hstack(indices), np.hstack(likelihoods), likeliest, likelihood)
    similarities = similarities_to(joined, likeliest)
    order = np.argsort(-similarities, axis=1, kind="stable")
    graph = KnnGraph(
        np.take_along_axis(likeliest, order, axis=1),
        np.take_along_axis(similarities, order, axis=1),
        tuple(notes),
        min(recalls, default=None),
    )
    return Links(graph, np.take_along_axis(likelihood, order, axis=1))


def _without_placeholders(view: View, number: int, notes: list[str]) -> View:
    """The view without rows that very many items share, though they differ in other views.

    The embedding of silence, say, or of a default picture. Copies are surely one
    person; these would join everybody.
    """
    if len(view.present) < 2:
        return view
    _, group = find_distinct(view.rows)
    copies = np.bincount(group)
    kept = copies[group] <= max(COPIES, COPIED * view.n_items)
    if kept.all():
        return view
    notes.append(
        f"{(~kept).sum():,} items share an embedding with many others in view {number}, which "
        "looks like a placeholder: it is taken as missing of them."
    )
    if not kept.any():
        return View(view.present[:0], view.rows, view.n_items)
    return View(view.present[kept], UnitRows(view.rows[np.flatnonzero(kept)]), view.n_items)


@compiled
def _likeliest(indices, likelihoods, neighbors, likelihood):
    """Each item's k likeliest of what the views list (-1: nobody), each neighbour once."""
    n_items, k = neighbors.shape
    seen = np.full(n_items, -1)
    for item in range(n_items):
        seen[item] = item
        count = 0
        for place in np.argsort(-likelihoods[item], kind="mergesort"):
            other = indices[item, place]
            if count == k:
                break
            if other >= 0 and seen[other] != item:
                seen[other] = item
                neighbors[item, count] = other
                likelihood[item, count] = likelihoods[item, place]
                count += 1
        other = 0
        while count < k:  # whoever lacks a view may have few: strangers fill up
            if seen[other] != item:
                neighbors[item, count] = other
                likelihood[item, count] = 0
                count += 1
            other += 1
