"""How much clusters agree with each other, beside how much strange clusters do."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from facelink.compiled import blocks, in_threads
from facelink.embeddings import Rows
from facelink.links.background import BLOCK_ROWS, QUANTILES, Background, spread_of
from facelink.links.clusters import Clusters, against

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

NAMES = (
    "similarity",  # mean over all pairs of items; 0: like strangers, 1: identical
    "coherence of the larger",  # the same within it
    "coherence of the smaller",
    "agreement",  # the similarity, as a share of both coherences
    "agreement, deviations",  # of strange clusters
    "agreement, deviations upward",
    "agreement, deviations far upward",
    "beyond the nearest stranger",  # of as many clusters as there are
)
REFERENCES = 512  # items, whose clusters show how much those of strangers agree
LARGE = 8  # items, from which on a cluster is compared with others as large alone
ENOUGH = 20  # such clusters: the other parts of a person are few among them
LEAST_SPREAD = 0.02  # of the agreement of strangers
PAIRS_AT_ONCE = 16_384


class Likeness(Clusters):
    """Clusters as compared with each other and with strange ones, as the rows are seen.

    They change as they are joined; one that was joined to another is empty from then on.

    Parameters
    ----------
    labels : (n,) int array
        The cluster of each item.
    rows : Rows
    background : Background
        Of these rows.
    """

    def __init__(self, labels: Labels, rows: Rows, background: Background) -> None:
        super().__init__(labels, rows, background)
        # Clusters that others are compared with, as they are now. Means of few photos scatter
        # more: a large cluster that agrees with another as single photos do is no stranger.
        chosen = np.random.default_rng(0).permutation(len(self.cluster_of))[:REFERENCES]
        chosen = np.unique(self.cluster_of[chosen])
        large = chosen[self.sizes[chosen] >= LARGE]
        self.references = [self._means(chosen)]
        if len(large) >= ENOUGH:
            self.references.append(self._means(large))
        # Of each cluster: how much strangers of either size agree with it; not known yet.
        shape = len(self.references), len(self.sizes), 1 + len(QUANTILES)  # center, spreads
        self.strange = np.full(shape, np.nan)

    def compare(
        self, large: Labels, small: Labels, *, n_threads: int | None = None
    ) -> NDArray[np.float32]:
        """What some pairs of clusters look like: (pairs, features), in the order of `NAMES`."""
        coherence = np.full(len(self.sizes), np.nan)
        concerned = np.unique(np.concatenate([large, small]))
        coherence[concerned] = self.coherence(concerned)
        self._see_strangers(concerned, n_threads)
        products = np.empty(len(large))
        for part in blocks(len(large), PAIRS_AT_ONCE):
            products[part] = np.einsum("ij,ij->i", self.sums[large[part]], self.sums[small[part]])
        n_large, n_small = self.sizes[large], self.sizes[small]
        strangers = (self.centers[large] / n_large + self.centers[small] / n_small) / 2
        similarity = against(strangers, products / (n_large * n_small))
        agreement = similarity / np.sqrt(coherence[large] * coherence[small])

        among_large = (n_small >= LARGE) & (len(self.references) > 1)
        strange = [self.strange[among_large.astype(np.int64), end] for end in (large, small)]
        middle = (strange[0] + strange[1]) / 2
        deviations = (agreement - middle[:, 0]) / middle[:, 1:].T
        nearest = np.array([self._nearest_stranger(1), self._nearest_stranger(LARGE)])
        columns = (
            similarity,
            coherence[large],
            coherence[small],
            agreement,
            *deviations,
            deviations[-1] - nearest[among_large.astype(np.int64)],
        )
        return np.stack(columns, axis=1).astype(np.float32)

    def move(self, moved: Labels) -> None:
        """Join clusters to those that they move to."""
        going = np.flatnonzero(moved != np.arange(len(moved)))
        for values in (self.sizes, self.centers, self.sums):
            np.add.at(values, moved[going], values[going])
            values[going] = 0
        self.strange[:, going] = self.strange[:, moved[going]] = np.nan

    def _means(self, clusters: Labels) -> tuple[NDArray[np.float32], Floats, Floats]:
        """Of some clusters: the means beside coherence, the root of it, and their strangers."""
        roots = np.sqrt(self.coherence(clusters))
        coherent = (roots * self.sizes[clusters])[:, None].astype(np.float32)
        return self.sums[clusters] / coherent, roots, self.centers[clusters] / self.sizes[clusters]

    def _see_strangers(self, clusters: Labels, n_threads: int | None) -> None:
        """Find out how much strangers agree with some clusters, where that is not known."""
        clusters = clusters[np.isnan(self.strange[0, clusters, 0])]

        def see(block: slice) -> None:
            some = clusters[block]
            n, root = self.sizes[some, None], np.sqrt(self.coherence(some))[:, None]
            for strange, (means, roots, theirs) in zip(self.strange, self.references, strict=True):
                strangers = (self.centers[some, None] / n + theirs) / 2
                products = (self.sums[some] @ means.T) / n
                agreement = (products - strangers / roots) / (1 - strangers) / root
                center, spreads = spread_of(agreement)
                strange[some] = np.column_stack([center, spreads + LEAST_SPREAD])

        for _ in in_threads(see, blocks(len(clusters), BLOCK_ROWS), n_threads=n_threads):
            pass

    def _nearest_stranger(self, least: int) -> float:
        """How many deviations away the nearest of all strange clusters so large would be."""
        count = max(int(np.count_nonzero(self.sizes >= least)), 2)
        return float(-ndtri(1 / count))
