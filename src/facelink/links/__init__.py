"""Stages 2 and 3: how likely each item and each of its neighbours are one person."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facelink.embeddings import UnitRows
from facelink.errors import InputError, MissingExtraError
from facelink.links.background import Background
from facelink.links.features import LinkFeatures
from facelink.links.gcn import GcnScorer
from facelink.links.model import GcnModel, Model, UniversalModel, load_model
from facelink.links.pairs import Pairs, join_directions
from facelink.links.review import Memberships
from facelink.links.universal import UniversalScorer, look
from facelink.links.variation import Whitened
from facelink.neighbors import KnnGraph
from facelink.progress import Progress, silent
from facelink.runs import Run
from facelink.subgraphs import Context

__all__ = [
    "GcnModel", "Links", "Model", "Pairs", "UniversalModel", "load_model", "review_links",
    "score_links",
]  # fmt: skip


REVIEW = "links, reviewed"  # the name of its stage


@dataclass(frozen=True)
class Links:
    """The likelihood that an item and each of its neighbours are one person.

    Attributes
    ----------
    graph : KnnGraph
        Its first k₁ columns are the neighbours that were scored.
    likelihood : (n, k₁) float32 array
        Between 0 and 1; as seen from item i in row i.
    background : Background, optional
        What strangers look like in the collection, where the scorer had to know.
    whitened : Whitened, optional
        The embeddings by what photos of one person differ in, where clusters have shown it.
    """

    graph: KnnGraph
    likelihood: NDArray[np.float32]
    background: Background | None = None
    whitened: Whitened | None = None

    def __post_init__(self) -> None:
        n_items, k = self.likelihood.shape
        if n_items != self.graph.n_items or k > self.graph.k:
            raise InputError(
                f"Likelihoods of shape {self.likelihood.shape} do not fit a kNN graph of shape "
                f"{self.graph.indices.shape}."
            )

    @property
    def neighbors(self) -> NDArray[np.int32]:
        """(n, k₁) the neighbours that were scored."""
        return self.graph.indices[:, : self.likelihood.shape[1]]

    @property
    def similarities(self) -> NDArray[np.float32]:
        """(n, k₁) how similar they are."""
        return self.graph.similarities[:, : self.likelihood.shape[1]]

    def pairs(self, threshold: float = 0.0) -> Pairs:
        """Each pair of items once, the mean of its two likelihoods where it is seen from both.

        Those from a threshold on; few are, and all would take more memory than the links.
        """
        return join_directions(self.graph, self.likelihood, threshold)


class Scorer(Protocol):
    """A model made ready for one collection."""

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
        Where to keep what is finished, to go on after an interruption.
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
    output for every item, twice. A `UniversalModel` costs k² steps per item and
    some ten thousand multiplications per link; memory beyond the result is six
    times that of the result.
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
    scorer: Scorer
    background = None
    if isinstance(model, UniversalModel):
        graph = graph.narrowed(context.hops[0])
        scorer = UniversalScorer(rows, graph, model.links, n_threads=n_threads)
        background = scorer.background
    elif isinstance(model, GcnModel) and device is not None:
        from facelink.links.gcn_torch import TorchScorer

        scorer = TorchScorer(rows, graph.indices, model, context, device)
    elif isinstance(model, GcnModel):
        scorer = GcnScorer(rows, graph, model, context, n_threads=n_threads)
    else:
        raise InputError(f"No way to score links with a {type(model).__name__} is known.")
    likelihood = scorer.score_all(run or Run(), out, progress=progress)
    return _with_copies(Links(graph, likelihood, background))


def review_links(
    links: Links,
    labels: NDArray[np.int64],
    embeddings: ArrayLike | UnitRows,
    model: Model | str,
    *,
    run: Run | None = None,
    n_threads: int | None = None,
    progress: Progress = silent,
) -> Links:
    """Look at the links once more, knowing the clusters that they gave.

    Parameters
    ----------
    links : Links
        From `score_links`, with the same model.
    labels : (n,) int array
        The cluster of each item, from `merge_links` and `join_fragments`; `cluster` has both
        at `facelink.links.model.DRAFT`.
    embeddings : (n, d) array
        Those that the links are of.
    model : UniversalModel or str
        The model, or the name or path of one.
    run : Run, optional
        Where to keep what is finished, to go on after an interruption.
    n_threads : int, optional
        All cores of the process by default. The result does not depend on it.
    progress : callable, optional
        Called with (stage, done, total) as it goes on.

    Returns
    -------
    Links
        What the review says, with a weight of 0.6, and what was thought before: likelier where the
        clusters agree with them, as a rule, and less likely elsewhere. Hopeless ones (below
        0.01) between clusters stay as they are.

    Notes
    -----
    Costs about as much as a look of `score_links`; memory beyond the result is four times
    that of the result, and a row of up to 128 numbers for each item and each cluster, beside
    one as wide as the embeddings for each cluster.
    """
    model = load_model(model) if not isinstance(model, Model) else model
    if not isinstance(model, UniversalModel):
        raise InputError(
            f"Model {model.name!r} cannot judge links by clusters. Give the one that fits any "
            "embedding: 'universal'."
        )
    rows, labels = UnitRows.of(embeddings), np.asarray(labels)
    n_items, k = links.likelihood.shape
    if len(rows) != n_items or labels.shape != (n_items,):
        raise InputError(
            f"The links are of {n_items:,} items, the embeddings of {len(rows):,}, the labels of "
            f"shape {labels.shape}. Give those that the links were scored from."
        )
    if k == 0:  # a single item
        return links
    run = run or Run()
    background = links.background or Background.of(rows, n_threads=n_threads)
    whitened = Whitened(rows, labels, n_threads=n_threads)
    likelihood = run.array(REVIEW, links.likelihood.shape, np.float32)
    if not run.is_finished(REVIEW, len(rows)):
        features = LinkFeatures(links.graph.narrowed(k), background, n_threads=n_threads)
        around = Memberships(
            features, links.likelihood, rows, labels, whitened, n_threads=n_threads
        )
        look(
            features, model.review, around, likelihood, run=run, stage=REVIEW,
            n_threads=n_threads, progress=progress,
        )  # fmt: skip
    return _with_copies(Links(links.graph, likelihood, background, whitened))


def _with_copies(links: Links) -> Links:
    """A stored copy is no other person, whatever a model says."""
    links.likelihood[links.similarities == 1.0] = 1.0
    return links


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
