"""The method from end to end: neighbours, links from their context, merging."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facelink import __version__
from facelink.compiled import compiled
from facelink.embeddings import UnitRows, as_embeddings
from facelink.links import (
    GcnModel,
    Links,
    Model,
    UniversalModel,
    check_device,
    load_model,
    score_links,
)
from facelink.links.model import DEFAULT_MODEL, DEFAULT_PRESET
from facelink.links.pairs import joined_value
from facelink.links.views import score_views
from facelink.memory import check_memory, estimate_memory
from facelink.merging import by_size, check_merging, join_fragments, merge_links
from facelink.neighbors import check_search, graph_of_distinct, notes_on_width, searches_exactly
from facelink.neighbors.approximate import Cells
from facelink.neighbors.copies import find_distinct, hash_rows
from facelink.progress import Progress, silent
from facelink.runs import open_run
from facelink.subgraphs import Context
from facelink.views import View, as_views, check_weights, even_weights, join

Labels = NDArray[np.int64]

LITTLE = 60  # items; below it there is hardly any context to read
NEAR_COPY = 0.95  # how far the nearest is on the way from the last neighbour to a copy
UNSURE = 0.4  # share of items
ALIKE = 0.35  # similarity of strangers; most embedders have theirs at 0, photos of one above 0.4


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
    recall : float, optional
        The share of the neighbours that matter that an approximate search found,
        estimated on a sample.
    """

    labels: NDArray[np.int64]
    confidence: NDArray[np.float32]
    notes: tuple[str, ...] = ()
    recall: float | None = None


def cluster(
    embeddings: ArrayLike,
    *,
    views: Sequence[ArrayLike] = (),
    weights: Sequence[float] | None = None,
    model: Model | str = DEFAULT_MODEL,
    preset: str = DEFAULT_PRESET,
    context: Context | None = None,
    method: str = "map-equation",
    options: Mapping[str, Any] | None = None,
    neighbors: str = "auto",
    device: str | None = None,
    run: str | Path | None = None,
    n_threads: int | None = None,
    progress: Progress = silent,
) -> Clustering:
    """Group items by identity.

    Parameters
    ----------
    embeddings : (n, d) array or memory map
        One row per item.
    views : sequence of (n, d) arrays
        Further embeddings of the same items, such as voices beside faces. A row
        of NaN is an item that lacks the view.
    weights : sequence of float, optional
        How much each view counts, ``embeddings`` first. By default what the
        model was trained with; with ``"universal"``, all alike. A view of half
        the weight is half as sure of a link that no other shows.
    model : Model or str
        The name or path of a model, or one from `train` or `load_model`. The
        default, ``"universal"``, takes embeddings of any kind and dimension; a
        model of the paper's kind takes those of the embedder it was trained on.
    preset : {"balanced", "purity"}
        ``"purity"`` makes fewer wrong merges and splits more people.
    context : Context, optional
        What to read links from; the model's own by default.
    method : {"map-equation", "propagation", "components"}
        How links are merged; see `merge_links`.
    options : mapping, optional
        Options of the method, for experts: ``{"threshold": 0.6}`` instead of
        the preset's likelihood; where it is higher, clusters are not joined
        from a lower one either.
    neighbors : {"auto", "exact", "approximate"}
        How neighbours are searched; by size by default, see `knn_graph`.
    device : str, optional
        A device of torch's for a model of the paper's kind, like ``"cuda"``. By
        default the CPU, without torch.
    run : path, optional
        A folder to keep finished work in. If the process is killed, the same call
        goes on from there and ends with the same labels. Remove the folder when you
        have the result.
    n_threads : int, optional
        All cores of the process by default.
    progress : callable, optional
        Called with (stage, done, total) as each stage goes on.

    Returns
    -------
    Clustering

    Notes
    -----
    Memory is about ``8 n d + 34 n k + 1300 n`` bytes with ``"universal"`` (k = 80), or
    ``4 n d + 46 n k + 1300 n`` if that is more: 6 GiB for a million items of 256 dimensions.
    What does not fit is refused before the work begins.

    Examples
    --------
    >>> import facelink
    >>> faces = facelink.load_sample()
    >>> people = facelink.cluster(faces.embeddings)
    >>> facelink.metrics.bcubed(faces.labels, people.labels).f > 0.9
    True
    """
    model = load_model(model) if not isinstance(model, Model) else model
    parts = as_views([embeddings, *views]) if len(views) else []
    if weights is not None:
        check_weights(weights, len(parts))
    embeddings = join_parts(parts, weights, model) if parts else as_embeddings(embeddings)
    model.check_dimension(embeddings.shape[1])
    check_device(model, device)
    check_search(neighbors)
    sure = model.preset(preset)
    context = context or model.context
    options = {"threshold": sure.threshold, **(options or {})}
    check_merging(method, options)
    # Whoever asks for surer links does not want clusters joined on less.
    stricter = options["threshold"] > sure.threshold
    joining = max(sure.joining, options["threshold"]) if stricter else sure.joining
    n_items, dimension = embeddings.shape
    n_views = max(len(parts), 1)
    needed = estimate_memory(n_items, dimension, model, context, neighbors, n_views)
    check_memory(needed, n_items)

    # An exact copy is the same person: only the first of its kind is clustered.
    rows = UnitRows(embeddings)
    hashes = hash_rows(rows)
    first_copy, group = find_distinct(rows, hashes)
    items = rows if len(first_copy) == len(group) else rows.taking(first_copy)
    n_items = len(items)
    about = {  # all that the result depends on
        "facelink": __version__,
        "items": len(rows),
        "dimension": dimension,
        "data": sha256(hashes.tobytes()).hexdigest()[:16],
        "views": [part.dimension for part in parts],
        "weights": None if weights is None else check_weights(weights, len(parts)),
        "model": f"{model.name} ({model.fingerprint})",
        "preset": preset,
        "context": asdict(context),
        "method": method,
        "options": options,
        "neighbors": neighbors,
        "device": device,
    }

    with open_run(run, about) as kept:
        # In a large collection items of one cell lie together, in files and in the cache.
        cells = None
        if not parts and not searches_exactly(neighbors, n_items):
            cells = Cells.found_in(kept, items, n_threads=n_threads, progress=progress)
            first_copy, group = first_copy[cells.members], np.argsort(cells.members)[group]
            items, cells = rows.taking(first_copy), cells.in_order()
        del rows

        if parts and isinstance(model, UniversalModel):
            # 1. to 3. in each view's own graph, where no view blurs what another shows.
            links = score_views(
                [part.of(first_copy) for part in parts],
                items,
                model,
                weights=weights,
                context=context,
                neighbors=neighbors,
                run=kept,
                n_threads=n_threads,
                progress=progress,
            )
        else:
            # 1. Find the neighbours of every item.
            graph = graph_of_distinct(
                items,
                context.k,
                neighbors=neighbors,
                cells=cells,
                run=kept,
                n_threads=n_threads,
                progress=progress,
            )
            # 2. and 3. Read from the context of every item which neighbours are the same person.
            links = score_links(
                items,
                graph,
                model,
                context=context,
                device=device,
                run=kept,
                n_threads=n_threads,
                progress=progress,
            )

        # 4. Merge the links into clusters, and clusters that are fragments of one person, where
        # the model can judge clusters.
        judge = None
        if isinstance(model, UniversalModel) and not parts and method == "map-equation":
            judge = model

        def merge() -> dict[str, Labels]:
            labels = merge_links(links, method, **options)
            progress("merging", 1, 2)
            if judge is not None:
                labels = join_fragments(
                    labels, links, items, judge, threshold=joining, n_threads=n_threads
                )
            return {"labels": labels}

        progress("merging", 0, 2)
        labels = kept.once("merging", merge)["labels"]
        progress("merging", 2, 2)

        confidence = confidence_of(links, labels)
        graph = links.graph
        notes = notes_on_width(context.k, n_items) + graph.notes
        notes += notes_on(len(group), n_items) + notes_on_links(links)
        return Clustering(by_size(labels[group]), confidence[group], notes, graph.recall)


def join_parts(
    parts: Sequence[View], weights: Sequence[float] | None, model: Model
) -> NDArray[np.float32]:
    """The views beside each other, weighted as asked or as the model would have it."""
    if isinstance(model, GcnModel):
        model.check_views([part.dimension for part in parts])
        trained_with = [weight for _, weight in model.views]
        return join(parts, trained_with if weights is None else weights)
    wanted = check_weights(weights, len(parts))
    return join(parts, [a * b for a, b in zip(even_weights(parts), wanted, strict=True)])


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


def notes_on_links(links: Links) -> tuple[str, ...]:
    """What to say of a collection unlike those that models are trained on."""
    n_items, k = links.likelihood.shape
    notes = []
    strangers = 0.0 if links.background is None else links.background.typical_center
    if strangers > ALIKE:
        notes.append(
            f"Any two items are alike (similarity {strangers:.2f} on the median). If all are of "
            "one person, that is not seen, and they may fall into many clusters: what strangers "
            "look like is read from the collection."
        )
    if n_items < LITTLE or k == 0:
        return tuple(notes)
    first, last = links.similarities[:, 0], links.similarities[:, -1]
    nearness = (first - last) / np.maximum(1 - last, 1e-6)
    if np.median(nearness) > NEAR_COPY:
        notes.append(
            "Half of the items or more have a near-copy, like the next frame of a video: clusters "
            "may be scenes rather than people."
        )
    best = links.likelihood.max(axis=1)
    unsure = np.mean((best > 0.2) & (best < 0.8))
    if unsure > UNSURE:
        notes.append(
            f"{unsure:.0%} of the items have no link that is surely right or wrong: similarities "
            "hardly separate people here. Look at the clusters before you rely on them."
        )
    elif best.max() < 0.5:
        notes.append("No two items look like one person.")
    return tuple(notes)


def confidence_of(links: Links, labels: NDArray[np.int64]) -> NDArray[np.float32]:
    """How sure each item is of its place, from its strongest links inside and outside."""
    inside, outside = _strongest(links.graph.indices, links.graph.back, links.likelihood, labels)
    alone = np.bincount(labels)[labels] == 1
    return np.where(alone, 1 - outside, (1 + inside - outside) / 2)


@compiled
def _strongest(neighbors, back, likelihood, labels):
    """The likelihood of each item's strongest link inside its cluster, and of that outside."""
    strongest = np.zeros((2, len(labels)), np.float32)
    n_items, k = likelihood.shape
    for i in range(n_items):
        for place in range(k):
            value, mine = joined_value(neighbors, back, likelihood, i, place)
            if mine:
                j = np.int64(neighbors[i, place])
                outside = int(labels[i] != labels[j])
                for item in (i, j):
                    strongest[outside, item] = max(strongest[outside, item], value)
    return strongest[0], strongest[1]
