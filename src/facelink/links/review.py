"""A last look at the links, knowing the clusters that they gave.

Whether a doubtful link holds is easier to say when one knows whom everybody else was put
with. Is the item more like the other's cluster than like its own? Do its other links
lead there too? And what became of the doubtful links of this collection: if nearly all
lie inside clusters the looks before were too strict here, if nearly none do, too
credulous. That no embedder and no kind of photo shares with another, and only the
clusters show it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from facelink.compiled import compiled
from facelink.embeddings import UnitRows
from facelink.links.background import BLOCK_ROWS
from facelink.links.clusters import Clusters
from facelink.links.features import LinkFeatures
from facelink.links.refinement import NAMES as SURROUNDINGS
from facelink.links.refinement import Surroundings

Floats = NDArray[np.float32]

NAMES = (
    *SURROUNDINGS,
    # The clusters of the two; similarities are means over all items, the item itself left out.
    "one cluster",
    "size of the pivot's",
    "size of the neighbour's",
    "pivot to its own",
    "neighbour to its own",
    "pivot to the neighbour's",
    "pivot to the neighbour's, deviations",
    "pivot to the neighbour's, of its own",
    "coherence of the pivot's",
    "coherence of the neighbour's",
    "agreement",
    # Where their likely others are.
    "likely inside, pivot",
    "likely inside, neighbour",
    "likely of the pivot in the neighbour's",
    "likely of the neighbour in the pivot's",
    # What became of links in this collection.
    "doubtful inside",
    "sure outside",
    "alone",
    "usual size",
)
DOUBTFUL, SURE = 0.2, 0.8  # likelihoods between which a link is doubtful
FEW = 20  # links say as little of a collection as this many of which half lie inside


class Memberships(Surroundings):
    """What the clusters of a collection say of each link.

    Parameters
    ----------
    features : LinkFeatures
    likelihood : (n, k) float32 array
        What is thought of every link now.
    rows : UnitRows
        The embeddings.
    labels : (n,) int array
        The cluster of each item.
    n_threads : int, optional
        All cores of the process by default.
    """

    # Before the review links are too sure, after it the doubtful ones are not sure enough: the
    # mean of both is calibrated.
    trust = 0.5

    def __init__(
        self,
        features: LinkFeatures,
        likelihood: Floats,
        rows: UnitRows,
        labels: NDArray[np.int64],
        *,
        n_threads: int | None = None,
    ) -> None:
        super().__init__(features, likelihood, n_threads=n_threads)
        self.rows = rows
        clusters = Clusters(labels, rows, features.background)
        every = np.arange(len(clusters.sizes))
        self.cluster_of = clusters.cluster_of.astype(np.int32)
        self.sizes = clusters.sizes.astype(np.float32)
        self.sums = clusters.sums
        self.strangers = (clusters.centers / clusters.sizes).astype(np.float32)
        self.coherence = clusters.coherence(every).astype(np.float32)
        n_items = len(self.cluster_of)
        self.own = np.empty(n_items, np.float32)  # similarity to the others of its cluster
        self.inside = np.empty(n_items, np.float32)  # the share of its likely others in there
        counts = np.zeros(4)
        for start in range(0, n_items, BLOCK_ROWS):
            block = slice(start, start + BLOCK_ROWS)
            mine = self.cluster_of[block]
            products = np.einsum("ij,ij->i", rows[block], self.sums[mine])
            _inside(
                block.start, mine, products, features.indices, self.joined, self.cluster_of,
                self.sizes, self.strangers, self.coherence, features.background.center, self.own,
                self.inside, counts,
            )  # fmt: skip
        doubtful, doubtful_inside, sure, sure_outside = counts
        self.became = np.array(
            [
                (doubtful_inside + FEW / 2) / (doubtful + FEW),
                sure_outside / (sure + FEW),
                np.count_nonzero(self.sizes == 1) / n_items,
                np.log(self.sizes) @ self.sizes / n_items,
            ],
            np.float32,
        )

    def asked(self, pivots: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Links that are not hopeless, and all inside clusters: (pivots, k)."""
        theirs = self.cluster_of[self.context.indices[pivots]]
        return super().asked(pivots) | (theirs == self.cluster_of[pivots, None])

    def of(self, pivots: NDArray[np.integer]) -> tuple[NDArray[np.bool_], Floats]:
        asked, around = super().of(pivots)
        out = np.empty((len(around), len(NAMES)), np.float32)
        out[:, : len(SURROUNDINGS)] = around
        background = self.context.background
        _memberships(
            pivots, self.rows[pivots], asked, self.context.indices, self.joined, self.cluster_of,
            self.sizes, self.sums, self.strangers, self.coherence, self.own, self.inside,
            background.center, background.spreads, self.became, out[:, len(SURROUNDINGS) :],
        )  # fmt: skip
        return asked, out


@compiled
def _inside(
    first, mine, products, indices, joined, cluster_of, sizes, strangers, coherence, center, own,
    inside, counts,
):  # fmt: skip
    """Of some items from ``first`` on: how like their clusters they are, where their links lie."""
    k = indices.shape[1]
    for p in range(len(mine)):
        i, cluster = first + p, mine[p]
        n = sizes[cluster]
        stranger = (center[i] + strangers[cluster]) / 2
        similarity = np.float32(0)
        if n > 1:
            similarity = ((products[p] - 1) / (n - 1) - stranger) / (1 - stranger)
        own[i] = (similarity * (n - 1) + coherence[cluster]) / n
        within, total = np.float32(0), np.float32(0)
        for r in range(k):
            likely, same = joined[i, r], cluster_of[indices[i, r]] == cluster
            total += likely
            within += likely if same else np.float32(0)
            if likely >= SURE:
                counts[2] += 1
                counts[3] += not same
            elif likely > DOUBTFUL:
                counts[0] += 1
                counts[1] += same
        inside[i] = within / (total + np.float32(0.5))


@compiled
def _memberships(
    pivots, rows, asked, indices, joined, cluster_of, sizes, sums, strangers, coherence, own,
    inside, center, spreads, became, out,
):  # fmt: skip
    k = indices.shape[1]
    half = np.float32(0.5)
    # Clusters that were compared with the pivot already, and what came of it.
    known = np.empty(k, np.int64)
    similar, agreeing = np.empty(k, np.float32), np.empty(k, np.float32)
    clusters = np.empty(k, cluster_of.dtype)  # of the pivot's neighbours
    row = 0
    for p in range(len(pivots)):
        i = pivots[p]
        here = cluster_of[i]
        n_known = 0
        for r in range(k):
            clusters[r] = cluster_of[indices[i, r]]
        for r in range(k):
            if not asked[p, r]:
                continue
            j, there = indices[i, r], clusters[r]
            to_theirs, agreement = own[i], np.float32(1)
            if there != here:
                at = 0
                while at < n_known and known[at] != there:
                    at += 1
                if at == n_known:
                    known[at] = there
                    n_known += 1
                    stranger = (center[i] + strangers[there]) / 2
                    mean = np.dot(rows[p], sums[there]) / sizes[there]
                    similar[at] = (mean - stranger) / (1 - stranger)
                    stranger = (strangers[here] + strangers[there]) / 2
                    mean = np.dot(sums[here], sums[there]) / (sizes[here] * sizes[there])
                    both = np.sqrt(coherence[here] * coherence[there])
                    agreeing[at] = (mean - stranger) / (1 - stranger) / both
                to_theirs, agreement = similar[at], agreeing[at]
            # The likelihood of the others between the one and the other's cluster, this link
            # counting half.
            likely, count = half * joined[i, r], half
            for s in range(k):
                if s != r and clusters[s] == there:
                    likely += joined[i, s]
                    count += 1
            likely_back, count_back = half * joined[i, r], half
            for s in range(k):
                if indices[j, s] != i and cluster_of[indices[j, s]] == here:
                    likely_back += joined[j, s]
                    count_back += 1
            f = out[row]
            row += 1
            f[0] = here == there
            f[1], f[2] = np.log(sizes[here]), np.log(sizes[there])
            f[3], f[4], f[5] = own[i], own[j], to_theirs
            f[6] = to_theirs * (1 - center[i]) / spreads[i, 2]
            f[7] = to_theirs / max(own[i], np.float32(0.05))
            f[8], f[9], f[10] = coherence[here], coherence[there], agreement
            f[11], f[12] = inside[i], inside[j]
            f[13], f[14] = likely / count, likely_back / count_back
            f[15:19] = became
