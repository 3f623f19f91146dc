"""Stages 2 and 3: how likely each item and each of its neighbours are one person."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facelink.embeddings import UnitRows
from facelink.errors import InputError, MissingExtraError
from facelink.links.gcn import GcnScorer
from facelink.links.model import GcnModel, Model, UniversalModel, load_model
from facelink.links.pairs import Links, Pairs
from facelink.links.universal import score_universal
from facelink.neighbors import KnnGraph
from facelink.progress import Progress, silent
from facelink.runs import Run
from facelink.subgraphs import Context

__all__ = ["GcnModel", "Links", "Model", "Pairs", "UniversalModel", "load_model", "score_links"]


class Scorer(Protocol):
    """A model of the paper's kind made ready for one collection."""

    def score_all(
        self, run: Run, out: NDArray[np.float32] | None, *, progress: Progress
    ) -> NDArray[np.float32]:
        """The likelihoods of every item's links (n, k₁), in ``out`` if it is given."""


def score_links(
    embeddings: ArrayLike | UnitRows,
    graph: KnnGraph,
    model: Model | str,
    *,
    context: Context | None = None,
    device: str | None = None,
    out: NDArray[np.float32] | None = None,
    run: Run | None = None,
    n_threads: int | None = None,
    progress: Progress = silent,
) -> Links:
    """Predict the links of every item from what is around it.

    Parameters
    ----------
    embeddings : (n, d) array
        The collection that the graph was made of.
    graph : KnnGraph
        At least as wide as the context, or as the collection allows.
    model : Model or str
        The model, or the name or path of one.
    context : Context, optional
        How far to look; the model's own by default.
    device : str, optional
        A device of torch's for a `GcnModel`, like ``"cuda"``; needs the extra
        [train]. By default the CPU, without torch.
    out : (n, k₁) float32 array, optional
        Where to write the likelihoods; may be a memory map.
    run : Run, optional
        Where to keep what is finished, to go on after an interruption, instead of ``out``.
    n_threads : int, optional
        All cores of the process by default.
    progress : callable, optional
        Called with (stage, done, total) as the scoring goes on.

    Returns
    -------
    Links

    Notes
    -----
    Two items of similarity 1 are linked with likelihood 1, whatever the model
    says: a stored copy is no other person.

    A `GcnModel` costs about the multiplications of its layers after the first,
    per node of each subgraph; memory beyond the result is the first layer's
    output for every item, twice. A `UniversalModel` drafts clusters and looks at
    the links once more, knowing these. It costs k² steps per item and some ten
    thousand multiplications per link; memory beyond the result is some ten times
    that of the result, and a row of the embeddings for each cluster of the draft.
    """
    model = load_model(model) if not isinstance(model, Model) else model
    rows = UnitRows.of(embeddings)
    n_items, dimension = rows.shape
    model.check_dimension(dimension)
    check_device(model, device)
    if graph.n_items != n_items:
        raise InputError(
            f"The kNN graph is of {graph.n_items:,} items, the embeddings are of {n_items:,}. "
            "Make the graph from these embeddings: facelink.knn_graph(embeddings, k)."
        )
    if graph.k == 0:  # a single item
        return Links(graph, np.empty((n_items, 0), np.float32))
    context = (context or model.context).fitted_to(graph.k)
    wanted = (n_items, context.hops[0])
    if out is not None and (out.shape != wanted or out.dtype != np.float32):
        raise InputError(
            f"out should be a float32 array of shape {wanted}, got {out.dtype} of shape "
            f"{out.shape}."
        )
    if out is not None and run is not None:
        raise InputError("Give out or run, not both: a run keeps the likelihoods in its own array.")
    if isinstance(model, UniversalModel):
        return score_universal(
            rows, graph.narrowed(context.hops[0]), model, out=out, run=run, n_threads=n_threads,
            progress=progress,
        )  # fmt: skip
    scorer: Scorer
    if isinstance(model, GcnModel) and device is not None:
        from facelink.links.gcn_torch import TorchScorer

        scorer = TorchScorer(rows, graph.indices, model, context, device)
    elif isinstance(model, GcnModel):
        scorer = GcnScorer(rows, graph, model, context, n_threads=n_threads)
    else:
        raise InputError(f"No way to score links with a {type(model).__name__} is known.")
    return Links(graph, scorer.score_all(run or Run(), out, progress=progress)).with_copies()


def check_device(model: Model, device: str | None) -> None:
    """Refuse a device that `score_links` would refuse, before the work is done."""
    if device is None:
        return
    if not isinstance(model, GcnModel):
        raise InputError(
            f"Model {model.name!r} runs on the CPU alone, got device={device!r}. device is for "
            "models of the paper's kind."
        )
    try:
        from facelink.links.gcn_torch import check
    except ImportError:
        raise MissingExtraError(
            f"device={device!r} needs torch: pip install 'facelink[train]'. Without device= the "
            "scorer for the CPU is used."
        ) from None
    check(device)
