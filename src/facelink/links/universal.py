"""The model for any embedding: links from context without coordinates.

The paper's idea with other node features. A link's likelihood is read from what lies
around the pivot and its neighbour; what is read (`facelink.links.features`) does not
depend on the embedder or its dimension, so one model, trained once on many
collections, serves all. A small network then says how likely the link is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from facelink.compiled import blocks, in_threads
from facelink.embeddings import UnitRows
from facelink.links.features import LinkFeatures
from facelink.links.model import UniversalModel
from facelink.neighbors import KnnGraph
from facelink.progress import Progress, watch

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
    model : UniversalModel
    n_threads : int, optional
        All cores of the process by default.
    """

    def __init__(
        self,
        rows: UnitRows,
        graph: KnnGraph,
        model: UniversalModel,
        *,
        n_threads: int | None = None,
    ) -> None:
        self.n_threads = n_threads
        self.network = model.links
        self.features = LinkFeatures(rows, graph, n_threads=n_threads)

    def score_all(self, out: NDArray[np.float32], *, progress: Progress) -> None:
        """Write the likelihoods of every item's links to ``out`` (n, k)."""

        def score_block(block: slice) -> range:
            features = self.features.of(block.start, block.stop)
            out[block] = self.network.probabilities(features).reshape(-1, out.shape[1])
            return range(block.start, block.stop)

        done = in_threads(score_block, blocks(len(out), PIVOTS), n_threads=self.n_threads)
        for _ in watch(done, "links", len(out), progress):
            pass
        # Whoever is no nearer than a stranger is no neighbour: all may be equally far.
        out[self.features.similarity < STRANGER] = 0
