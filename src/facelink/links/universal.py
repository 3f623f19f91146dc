"""The model for any embedding: links from context without coordinates.

The paper's idea with other node features. A link's likelihood is read from what lies
around the pivot and its neighbour; what is read (`facelink.links.features`) does not
depend on the embedder or its dimension, so one model, trained once on many
collections, serves all. A small network then says how likely the link is. Others correct
it by what is thought of the links around it (`facelink.links.refinement`), and a last one
by the clusters that these links would give (`facelink.links.review`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from facelink.embeddings import UnitRows
from facelink.links.background import Background
from facelink.links.features import LinkFeatures
from facelink.links.model import Preset, UniversalModel
from facelink.links.pairs import Links
from facelink.links.perceptron import Perceptron
from facelink.links.refinement import Surroundings
from facelink.links.review import Memberships
from facelink.links.variation import Whitened
from facelink.neighbors import KnnGraph
from facelink.progress import Progress, silent
from facelink.runs import Run

Floats = NDArray[np.float32]

PIVOTS = 128  # whose links are scored at once: their features stay in the cache
DRAFT = Preset(0.4, 0.6)  # of the clusters that links are reviewed by
LOOK, DRAFTED, REVIEWED = "links", "draft", "links, reviewed"  # the names of the stages


def score_universal(
    rows: UnitRows,
    graph: KnnGraph,
    model: UniversalModel,
    *,
    out: Floats | None = None,
    run: Run | None = None,
    n_threads: int | None = None,
    progress: Progress = silent,
) -> Links:
    """Look at all links of a graph, draft clusters of them, and look once more, knowing these.

    Parameters
    ----------
    rows : UnitRows
        The embeddings.
    graph : KnnGraph
        Of these embeddings, as wide as the links to score.
    model : UniversalModel
    out, run, n_threads, progress
        As in `score_links`.
    """
    run = run or Run()
    links = look_at_all(rows, graph, model, run=run, n_threads=n_threads, progress=progress)

    def draft() -> dict[str, NDArray[np.int64]]:
        return {"labels": draft_clusters(links, rows, model, n_threads=n_threads)}

    progress(DRAFTED, 0, 1)
    labels = run.once(DRAFTED, draft)["labels"]
    progress(DRAFTED, 1, 1)
    return review_links(
        links, labels, rows, model, out=out, run=run, n_threads=n_threads, progress=progress
    )


def look_at_all(
    rows: UnitRows,
    graph: KnnGraph,
    model: UniversalModel,
    *,
    run: Run | None = None,
    n_threads: int | None = None,
    progress: Progress = silent,
) -> Links:
    """What the networks that know no clusters think of all links, one after the other."""
    run = run or Run()
    background = Background.of(rows, n_threads=n_threads)
    shape = graph.indices.shape
    stages = [LOOK, *(f"{LOOK}, look {number}" for number in range(2, len(model.links) + 1))]
    if run.is_finished(stages[-1], len(rows)):
        return Links(graph, run.array(stages[-1], shape, np.float32), background).with_copies()
    features = LinkFeatures(graph, background, n_threads=n_threads)
    before: Floats | None = None
    for stage, network in zip(stages, model.links, strict=True):
        likelihood = run.array(stage, shape, np.float32)
        if not run.is_finished(stage, len(rows)):
            around = None
            if before is not None:
                around = Surroundings(features, before, n_threads=n_threads)
            look(
                features, network, around, likelihood, run=run, stage=stage, n_threads=n_threads,
                progress=progress,
            )  # fmt: skip
        before = likelihood
    return Links(graph, likelihood, background).with_copies()


def draft_clusters(
    links: Links, rows: UnitRows, model: UniversalModel, *, n_threads: int | None = None
) -> NDArray[np.int64]:
    """Clusters to review links by: so loose that there are some where they are much doubted."""
    from facelink.merging import join_fragments, merge_links  # which need links themselves

    labels = merge_links(links, threshold=DRAFT.threshold)
    return join_fragments(labels, links, rows, model, threshold=DRAFT.joining, n_threads=n_threads)


def review_links(
    links: Links,
    labels: NDArray[np.int64],
    rows: UnitRows,
    model: UniversalModel,
    *,
    out: Floats | None = None,
    run: Run | None = None,
    n_threads: int | None = None,
    progress: Progress = silent,
) -> Links:
    """What the last network thinks of the links, knowing clusters of the items (`labels`)."""
    run = run or Run()
    shape = links.likelihood.shape
    background = links.background or Background.of(rows, n_threads=n_threads)
    whitened = Whitened(rows, labels, n_threads=n_threads)
    likelihood = run.array(REVIEWED, shape, np.float32) if out is None else out
    if not run.is_finished(REVIEWED, len(rows)):
        features = LinkFeatures(links.graph, background, n_threads=n_threads)
        around = Memberships(
            features, links.likelihood, rows, labels, whitened, n_threads=n_threads
        )
        look(
            features, model.review, around, likelihood, run=run, stage=REVIEWED,
            n_threads=n_threads, progress=progress,
        )  # fmt: skip
    return Links(links.graph, likelihood, background, whitened).with_copies()


def look(
    features: LinkFeatures,
    network: Perceptron,
    around: Surroundings | None,
    out: Floats,
    *,
    run: Run | None = None,
    stage: str = LOOK,
    n_threads: int | None = None,
    progress: Progress = silent,
) -> None:
    """Write to ``out`` (n, k) how likely every link is.

    Read from its context or, if what was thought before is given, that corrected by what is
    ``around``.
    """

    def score(pivots: NDArray[np.integer]) -> None:
        if around is None:
            likelihood = network.probabilities(features.of(pivots)).reshape(len(pivots), -1)
            likelihood[features.hopeless(pivots)] = 0
        else:
            asked, links = around.of(pivots)
            likelihood = around.likelihood[pivots]
            before, now = likelihood[asked], network.probabilities(links)
            likelihood[asked] = around.trust * now + (1 - around.trust) * before
        out[pivots] = likelihood

    run = run or Run()
    run.work(stage, features.order, score, size=PIVOTS, n_threads=n_threads, progress=progress)
