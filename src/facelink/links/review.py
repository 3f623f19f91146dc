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

from facelink.compiled import blocks, compiled
from facelink.embeddings import Rows
from facelink.links.background import BLOCK_ROWS, Background
from facelink.links.clusters import Clusters, against
from facelink.links.features import LinkFeatures
from facelink.links.refinement import NAMES as SURROUNDINGS
from facelink.links.refinement import Surroundings
from facelink.links.variation import Whitened

Floats = NDArray[np.float32]

BESIDE = (
    "pivot to its own",
    "neighbour to its own",
    "pivot to the neighbour's",
    "pivot to the neighbour's, deviations",
    "pivot to the neighbour's, of its own",
    "agreement",
)
NAMES = (
    *SURROUNDINGS,
    # The clusters of the two; similarities are means over all items, the item itself left out.
    "one cluster",
    "size of the pivot's",
    "size of the neighbour's",
    "coherence of the pivot's",
    "coherence of the neighbour's",
    *BESIDE,
    # With the variation inside clusters alike in all directions.
    "similarity, whitened",
    "deviations, whitened",
    *(f"{name}, whitened" for name in BESIDE),
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
    rows : Rows
        The embeddings.
    labels : (n,) int array
        The cluster of each item.
    whitened : Whitened
        The rows by what these clusters vary in.
    n_threads : int, optional
        All cores of the process by default.
    """

    # Before the review links are too sure, after it the doubtful ones are not sure enough:
    # between the two they are calibrated.
    trust = 0.8

    def __init__(
        self,
        features: LinkFeatures,
        likelihood: Floats,
        rows: Rows,
        labels: NDArray[np.int64],
        whitened: Whitened,
        *,
        n_threads: int | None = None,
    ) -> None:
        super().__init__(features, likelihood, n_threads=n_threads)
        self.plain = Beside(labels, rows, features.background)
        self.white = Beside(labels, whitened, whitened.background)
        self.whitened = whitened
        self.cluster_of = self.plain.cluster_of.astype(np.int32)
        self.sizes = self.plain.sizes.astype(np.float32)
        n_items = len(self.cluster_of)
        self.inside = np.empty(n_items, np.float32)  # the share of its likely others in there
        counts = np.zeros(4)
        for start in range(0, n_items, BLOCK_ROWS):
            block = slice(start, start + BLOCK_ROWS)
            _inside(
                block.start, self.cluster_of[block], features.indices, self.joined,
                self.cluster_of, self.inside, counts,
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
        which = pivots, asked, self.context.indices, self.cluster_of
        columns = np.split(out, np.cumsum([len(SURROUNDINGS), 5, len(BESIDE), 2, len(BESIDE)]), 1)
        _, of_clusters, plain, similarity, white, of_links = columns
        _of_clusters(*which, self.sizes, self.plain.coherence_of, of_clusters)
        self.plain.see(*which, plain)
        background = self.white.background
        seen = self.whitened.array, background.center, background.spreads
        _similarities(pivots, asked, self.context.indices, *seen, similarity)
        self.white.see(*which, white)
        _of_links(*which, self.joined, self.inside, self.became, of_links)
        return asked, out


class Beside(Clusters):
    """Clusters beside items, as the rows are seen.

    Parameters
    ----------
    labels : (n,) int array
        The cluster of each item.
    rows : Rows
    background : Background
        Of these rows.
    """

    def __init__(self, labels: NDArray[np.int64], rows: Rows, background: Background) -> None:
        super().__init__(labels, rows, background)
        self.rows = rows
        self.background = background
        self.strangers = (self.centers / self.sizes).astype(np.float32)
        self.coherence_of = self.coherence(np.arange(len(self.sizes))).astype(np.float32)
        self.own = np.empty(len(rows), np.float32)  # similarity to the others of its cluster
        for block in blocks(len(rows), BLOCK_ROWS):
            mine = self.cluster_of[block]
            n = self.sizes[mine]
            products = np.einsum("ij,ij->i", rows[block], self.sums[mine])
            strangers = (background.center[block] + self.strangers[mine]) / 2
            similarity = against(strangers, (products - 1) / np.maximum(n - 1, 1))
            # As if there were one other more, as similar as the cluster is coherent.
            self.own[block] = (similarity * (n - 1) + self.coherence_of[mine]) / n

    def see(
        self,
        pivots: NDArray[np.integer],
        asked: NDArray[np.bool_],
        indices: NDArray[np.int32],
        cluster_of: NDArray[np.int32],
        out: Floats,
    ) -> None:
        """Write what is asked of some pivots: (asked, features), in the order of `BESIDE`."""
        _beside_clusters(
            pivots, asked, indices, cluster_of, self.rows[pivots], self.sums, self.sizes,
            self.strangers, self.coherence_of, self.own, self.background.center,
            self.background.spreads, out,
        )  # fmt: skip


@compiled
def _inside(first, mine, indices, joined, cluster_of, inside, counts):
    """Of some items from ``first`` on: where their links lie."""
    k = indices.shape[1]
    for p in range(len(mine)):
        i, cluster = first + p, mine[p]
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
def _of_clusters(pivots, asked, indices, cluster_of, sizes, coherence, out):
    row = 0
    for p in range(len(pivots)):
        here = cluster_of[pivots[p]]
        for r in range(indices.shape[1]):
            if asked[p, r]:
                there = cluster_of[indices[pivots[p], r]]
                f = out[row]
                row += 1
                f[0] = here == there
                f[1], f[2] = np.log(sizes[here]), np.log(sizes[there])
                f[3], f[4] = coherence[here], coherence[there]


@compiled
def _similarities(pivots, asked, indices, rows, center, spreads, out):
    """How similar the two are, against strangers."""
    row = 0
    for p in range(len(pivots)):
        i = pivots[p]
        for r in range(indices.shape[1]):
            if asked[p, r]:
                j = indices[i, r]
                stranger = (center[i] + center[j]) / 2
                above = np.dot(rows[i], rows[j]) - stranger
                out[row, 0] = above / (1 - stranger)
                out[row, 1] = above / ((spreads[i, 2] + spreads[j, 2]) / 2)
                row += 1


@compiled
def _beside_clusters(
    pivots, asked, indices, cluster_of, rows, sums, sizes, strangers, coherence, own, center,
    spreads, out,
):  # fmt: skip
    k = indices.shape[1]
    # Clusters that were compared with the pivot already, and what came of it.
    known = np.empty(k, np.int64)
    similar, agreeing = np.empty(k, np.float32), np.empty(k, np.float32)
    row = 0
    for p in range(len(pivots)):
        i = pivots[p]
        here = cluster_of[i]
        n_known = 0
        for r in range(k):
            if not asked[p, r]:
                continue
            j = indices[i, r]
            there = cluster_of[j]
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
            f = out[row]
            row += 1
            f[0], f[1], f[2] = own[i], own[j], to_theirs
            f[3] = to_theirs * (1 - center[i]) / spreads[i, 2]
            f[4] = to_theirs / max(own[i], np.float32(0.05))
            f[5] = agreement


@compiled
def _of_links(pivots, asked, indices, cluster_of, joined, inside, became, out):
    k = indices.shape[1]
    half = np.float32(0.5)
    clusters = np.empty(k, cluster_of.dtype)  # of the pivot's neighbours
    row = 0
    for p in range(len(pivots)):
        i = pivots[p]
        here = cluster_of[i]
        for r in range(k):
            clusters[r] = cluster_of[indices[i, r]]
        for r in range(k):
            if not asked[p, r]:
                continue
            j, there = indices[i, r], clusters[r]
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
            f[0], f[1] = inside[i], inside[j]
            f[2], f[3] = likely / count, likely_back / count_back
            f[4:8] = became
