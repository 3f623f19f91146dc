"""The method from end to end: neighbours, subgraphs and links, merging."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facelink.embeddings import UnitRows, as_embeddings
from facelink.links import GcnModel, Links, load_model, score_links
from facelink.links.model import DEFAULT_MODEL
from facelink.merging import by_size, check_merging, merge_links
from facelink.merging.pairs import Pairs, join_directions
from facelink.neighbors import knn_graph
from facelink.neighbors.copies import find_distinct
from facelink.progress import Progress, silent
from facelink.subgraphs import Context

LITTLE = 20  # items; below it there is hardly any context to read


@dataclass(frozen=True)
class Clustering:
    """The people found in a collection.

    Attributes
    ----------
    labels : (n,) int array
        The cluster of each item: 0 for the largest and so on. An item that is
        alone has a label of its own; there is no label for noise.
    confidence : (n,) float32 array
        How sure each item is of its place, from 0 to 1: half of it for the
        best link into its cluster, half for having no link out of it; alone,
        all of it for the latter.
    notes : tuple of str
        What the user should know about this result.
    """

    labels: NDArray[np.int64]
    confidence: NDArray[np.float32]
    notes: tuple[str, ...] = ()


def cluster(
    embeddings: ArrayLike,
    *,
    model: GcnModel | str = DEFAULT_MODEL,
    context: Context | None = None,
    method: str = "map-equation",
    options: Mapping[str, Any] | None = None,
    n_threads: int | None = None,
    progress: Progress = silent,
) -> Clustering:
    """Group items by identity.

    Parameters
    ----------
    embeddings : (n, d) array or memory map
        One row per item, from the embedder that the model was trained for.
    model : GcnModel or str
        A trained network, or the name or path of one.
    context : Context, optional
        The subgraphs to read links from; the model's own by default.
    method : {"map-equation", "propagation", "components"}
        How links are merged; see `merge_links`.
    options : mapping, optional
        Options of the method, such as ``{"threshold": 0.6}``.
    n_threads : int, optional
        All cores of the process by default.
    progress : callable, optional
        Called with (stage, done, total) as each stage goes on.

    Returns
    -------
    Clustering

    Examples
    --------
    >>> import facelink
    >>> faces = facelink.load_sample()
    >>> people = facelink.cluster(faces.embeddings)
    >>> facelink.metrics.bcubed(faces.labels, people.labels).f > 0.9
    True
    """
    embeddings = as_embeddings(embeddings)
    model = load_model(model) if not isinstance(model, GcnModel) else model
    model.check_dimension(embeddings.shape[1])
    context = context or model.context
    options = options or {}
    check_merging(method, options)

    # An exact copy is the same person: only the first of its kind is clustered.
    first_copy, group = find_distinct(UnitRows(embeddings))
    items = embeddings if len(first_copy) == len(group) else embeddings[first_copy]

    # 1. Find the neighbours of every item.
    graph = knn_graph(items, context.k, n_threads=n_threads, progress=progress)
    # 2. and 3. Build the subgraph around every item and read from it which neighbours are
    # the same person.
    links = score_links(
        items, graph, model, context=context, n_threads=n_threads, progress=progress
    )
    # 4. Merge the links into clusters.
    labels = merge_links(links, method, **options)

    confidence = confidence_of(links, labels)
    notes = graph.notes + notes_on(len(group), len(first_copy))
    return Clustering(by_size(labels[group]), confidence[group], notes)


def notes_on(n_items: int, n_distinct: int) -> tuple[str, ...]:
    """What to say of copies, and of a collection that is hardly one."""
    notes = []
    n_copies = n_items - n_distinct
    if n_copies:
        copies = "1 item is an exact copy" if n_copies == 1 else f"{n_copies:,} items are copies"
        notes.append(f"{copies} of another, and in the same cluster with it.")
    if n_distinct < LITTLE:
        items = "1 distinct item is" if n_distinct == 1 else f"{n_distinct} distinct items are"
        notes.append(f"{items} little to go on: links are read from the items around them.")
    return tuple(notes)


def confidence_of(links: Links, labels: NDArray[np.int64]) -> NDArray[np.float32]:
    """How sure each item is of its place, from its strongest links inside and outside."""
    pairs: Pairs = join_directions(links)
    inside = np.zeros(len(labels), np.float32)
    outside = np.zeros(len(labels), np.float32)
    together = labels[pairs.first] == labels[pairs.second]
    for strongest, chosen in ((inside, together), (outside, ~together)):
        for ends in (pairs.first, pairs.second):
            np.maximum.at(strongest, ends[chosen], pairs.likelihood[chosen])
    alone = np.bincount(labels)[labels] == 1
    return np.where(alone, 1 - outside, (1 + inside - outside) / 2)
