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

from facelink.compiled import blocks, in_threads
from facelink.embeddings import UnitRows
from facelink.links.features import LinkFeatures
from facelink.links.perceptron import Perceptron
from facelink.links.refinement import Surroundings
from facelink.neighbors import KnnGraph
from facelink.progress import Progress, silent, watch

Floats = NDArray[np.float32]

STRANGER = 1e-5  # similarity, 0 being a stranger's
PIVOTS = 64  # whose links are scored at once: their features stay in the cache


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
        self.features = LinkFeatures(rows, graph, n_threads=n_threads)

    def score_all(self, out: Floats, *, progress: Progress = silent) -> None:
        """Write the likelihoods of every item's links to ``out`` (n, k)."""
        first, *others = self.networks
        first_look(self.features, first, out, n_threads=self.n_threads, progress=progress)
        for look, network in enumerate(others, start=2):

            def tell(_: str, done: int, total: int, look: int = look) -> None:
                progress(f"links, look {look}", done, total)

            look_again(self.features, network, out, n_threads=self.n_threads, progress=tell)


def first_look(
    features: LinkFeatures,
    network: Perceptron,
    out: Floats,
    *,
    n_threads: int | None = None,
    progress: Progress = silent,
) -> None:
    """Write to ``out`` (n, k) how likely every link is, read from its context."""

    def score(block: slice) -> range:
        likelihood = network.probabilities(features.of(block.start, block.stop))
        out[block] = likelihood.reshape(-1, out.shape[1])
        # Whoever is no nearer than a stranger is no neighbour: all may be equally far.
        out[block][features.similarity[block] < STRANGER] = 0
        return range(block.start, block.stop)

    done = in_threads(score, blocks(len(out), PIVOTS), n_threads=n_threads)
    for _ in watch(done, "links", len(out), progress):
        pass


def look_again(
    features: LinkFeatures,
    network: Perceptron,
    likelihood: Floats,
    *,
    n_threads: int | None = None,
    progress: Progress = silent,
) -> None:
    """Correct the likelihoods (n, k) by what they say of each other."""
    before = Surroundings(features, likelihood.copy(), n_threads=n_threads)

    def score(block: slice) -> range:
        asked, around = before.of(block.start, block.stop)
        likelihood[block][asked] = network.probabilities(around)
        return range(block.start, block.stop)

    done = in_threads(score, blocks(len(likelihood), PIVOTS), n_threads=n_threads)
    for _ in watch(done, "links", len(likelihood), progress):
        pass
