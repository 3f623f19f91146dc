"""Links between items that several embeddings show: faces and voices, say.

In joined embeddings, a view that has nothing to say of two items blurs what another
says clearly: somebody turned away from the camera, but heard well. And an item that
lacks a view is nowhere near those that have it. So links are scored in each view's own
graph, among the items that have it, and in the graph of the joined embeddings, among
those that have all. A link is as likely as the surest of these says.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

from facelink.compiled import compiled
from facelink.embeddings import UnitRows
from facelink.links import Links, UniversalModel, score_links
from facelink.neighbors import KnnGraph, knn_graph, similarities_to
from facelink.progress import Progress, silent
from facelink.views import View


def score_views(
    views: Sequence[View],
    joined: UnitRows,
    model: UniversalModel,
    *,
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
    n_threads, progress
        As in `score_links`.

    Returns
    -------
    Links
        The k likeliest of each item. Similarities are those of the joined
        embeddings.

    Notes
    -----
    Costs a search and a scoring per view and one more, and memory for as many
    graphs.
    """
    n_items = len(joined)
    k = min(model.context.k, n_items - 1)
    complete = reduce(np.intersect1d, [view.present for view in views])
    whole = View(complete, UnitRows(joined[complete]), n_items) if len(complete) else None
    indices, likelihoods = [], []
    for view in (*views, whole):
        if view is None or len(view.present) < 2:
            continue
        graph = knn_graph(view.rows, model.context.k, n_threads=n_threads, progress=progress)
        links = score_links(view.rows, graph, model, n_threads=n_threads, progress=progress)
        found = np.full((n_items, graph.k), -1, np.int32)
        found[view.present] = view.present[graph.indices]
        likelihood = np.zeros(found.shape, np.float32)
        likelihood[view.present] = links.likelihood
        indices.append(found)
        likelihoods.append(likelihood)
    if not indices:  # a single item, or no two of whom share a view
        nothing = np.empty((n_items, 0), np.float32)
        return Links(KnnGraph(nothing.astype(np.int32), nothing), nothing)
    neighbors = np.empty((n_items, k), np.int32)
    likelihood = np.empty((n_items, k), np.float32)
    _likeliest(np.hstack(indices), np.hstack(likelihoods), neighbors, likelihood)
    similarities = similarities_to(joined, neighbors)
    order = np.argsort(-similarities, axis=1, kind="stable")
    graph = KnnGraph(
        np.take_along_axis(neighbors, order, axis=1),
        np.take_along_axis(similarities, order, axis=1),
    )
    return Links(graph, np.take_along_axis(likelihood, order, axis=1))


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
