"""The model for any embedding: links from context without coordinates.

The paper's idea with other node features. A link's likelihood is read from what lies
around the pivot and its neighbour; what is read (`facelink.links.features`) does not
depend on the embedder or its dimension, so one model, trained once on many
collections, serves all. A small network then says how likely the link is, and others
correct it by what is thought of the links around it (`facelink.links.refinement`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from facelink.embeddings import UnitRows
from facelink.links.background import Background
from facelink.links.features import LinkFeatures
from facelink.links.perceptron import Perceptron
from facelink.links.refinement import Surroundings
from facelink.neighbors import KnnGraph
from facelink.progress import Progress, silent
from facelink.runs import Run

Floats = NDArray[np.float32]

PIVOTS = 128  # whose links are scored at once: their features stay in the cache
FIRST = "links"  # the name of the first look's stage


class UniversalScorer:
    """A model made ready for one collection.

    Parameters
    ----------
    rows : UnitRows
        The embeddings.
    graph : KnnGraph
        Of these embeddings, as wide as the links to score.
    networks : sequence of Perceptron
        One for each look at the links: the first reads `LinkFeatures`, the
        others `Surroundings`.
    n_threads : int, optional
        All cores of the process by default.
    """

    def __init__(
        self,
        rows: UnitRows,
        graph: KnnGraph,
        networks: Sequence[Perceptron],
        *,
        n_threads: int | None = None,
    ) -> None:
        self.n_threads = n_threads
        self.networks = networks
        self.graph = graph
        self.background = Background.of(rows, n_threads=n_threads)

    def score_all(
        self, run: Run, out: Floats | None = None, *, progress: Progress = silent
    ) -> Floats:
        """The likelihoods of every item's links (n, k), in ``out`` if it is given."""
        shape = self.graph.indices.shape
        stages = [FIRST, *(f"{FIRST}, look {look}" for look in range(2, len(self.networks) + 1))]
        after = out if out is not None else run.array(stages[-1], shape, np.float32)
        if run.is_finished(stages[-1], shape[0]):
            return after
        features = LinkFeatures(self.graph, self.background, n_threads=self.n_threads)
        before: Floats | None = None
        for stage, network in zip(stages, self.networks, strict=True):
            likelihood = after if stage == stages[-1] else run.array(stage, shape, np.float32)
            if not run.is_finished(stage, shape[0]):
                around = None
                if before is not None:
                    around = Surroundings(features, before, n_threads=self.n_threads)
                look(
                    features, network, around, likelihood, run=run, stage=stage,
                    n_threads=self.n_threads, progress=progress,
                )  # fmt: skip
            before = likelihood
        return after


def look(
    features: LinkFeatures,
    network: Perceptron,
    around: Surroundings | None,
    out: Floats,
    *,
    run: Run | None = None,
    stage: str = FIRST,
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
