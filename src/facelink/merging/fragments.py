"""Fragments of one person: the question of the links, asked of whole clusters.

With k neighbours per item a person of many photos falls into pieces: every photo's
neighbours are filled up by its own piece. And pieces of few photos are easier to
judge as wholes than photo by photo. So pairs of clusters are looked at like pairs of
items: how likely are they one person, given how similar they are on average, how
coherent each is, and what the links between them say? Those that are each other's
likeliest are joined, and the question is asked again of what has changed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from facelink.compiled import blocks, compiled, in_threads
from facelink.embeddings import UnitRows
from facelink.links import Links, UniversalModel
from facelink.links.background import BLOCK_ROWS, QUANTILES, Background, spread_of
from facelink.links.pairs import joined_value
from facelink.links.perceptron import Perceptron
from facelink.merging.propagation import root

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

NAMES = (
    "size of the larger",
    "size of the smaller",
    "similarity",  # mean over all pairs of items; 0: like strangers, 1: identical
    "coherence of the larger",  # the same within it
    "coherence of the smaller",
    "agreement",  # the similarity, as a share of both coherences
    "agreement, deviations",  # of strange clusters
    "agreement, deviations upward",
    "agreement, deviations far upward",
    "beyond the nearest stranger",  # of as many clusters as there are
    "mean likelihood",  # of the links between them
    "highest likelihood",
    "highest similarity",  # of two items
    "likelihood per pair",  # links that are not there count as zero
    "links",
    "links per pair",
    "better for the larger",  # by how much the best other cluster agrees more
    "better for the smaller",
    "spread of strangers",
)
FAR_UPWARD = NAMES.index("agreement, deviations far upward")
CANDIDATE = 0.1  # the likelihood from which a link makes its two clusters candidates
CAUTION = 0.2  # the larger the clusters, the more items a wrong join spoils: the surer to be
USUAL, ASSUMED = 0.6, 50  # the coherence of a person, as if this many items had shown it
REFERENCES = 512  # items, whose clusters show how much those of strangers agree
LEAST_SPREAD = 0.02  # of the agreement of strangers
SMALL = 1 / 16  # of a cluster's size, for it to take in several at once
GROWTH = 1 / 4  # at once, at most
PAIRS_AT_ONCE = 16_384


class Fragments:
    """Clusters, and what there is between each two of them.

    Parameters
    ----------
    labels : (n,) int array
        The cluster of each item.
    links : Links
        What was scored between items.
    rows : UnitRows
        The embeddings.
    background : Background
        Of these embeddings.
    """

    def __init__(
        self, labels: Labels, links: Links, rows: UnitRows, background: Background
    ) -> None:
        self.k = links.likelihood.shape[1]
        self.spread = background.spread
        _, self.cluster_of = np.unique(labels, return_inverse=True)  # (n,) at the beginning

        # Of each cluster. One that was joined to another is empty from then on.
        self.sizes = np.bincount(self.cluster_of).astype(np.float64)
        self.becomes = np.arange(len(self.sizes))
        self.sums = _sums(rows, self.cluster_of, len(self.sizes))  # (clusters, d)
        # How similar strangers are to its items, summed.
        self.centers = np.bincount(self.cluster_of, weights=background.center)
        several = np.flatnonzero(self.sizes > 1)
        weights = self.sizes[several]
        # A few clusters, perhaps wrong ones, do not say what is usual.
        known = USUAL * ASSUMED + weights @ self._inside(several)
        self.usual = known / (ASSUMED + weights.sum())

        # Clusters that others are compared with, as they are now: their means, beside coherence.
        chosen = np.random.default_rng(0).permutation(len(self.cluster_of))[:REFERENCES]
        chosen = np.unique(self.cluster_of[chosen])
        self.their_roots = np.sqrt(self._coherence(chosen))
        self.their_strangers = self.centers[chosen] / self.sizes[chosen]
        coherent = self.their_roots * self.sizes[chosen]
        self.references = self.sums[chosen] / coherent[:, None].astype(np.float32)
        # Of each cluster: how much strangers agree with it; not known yet.
        self.strange = np.full((len(self.sizes), 1 + len(QUANTILES)), np.nan)  # center, spreads

        # Of each pair of clusters that have a link: likelihoods summed, the highest, the
        # highest similarity, links counted; whether they are one person, if judged. Pairs that
        # no chain of candidates can ever bring together are left out.
        chain = np.arange(len(self.sizes))
        seen = links.graph.indices, links.graph.back, links.likelihood
        n_pairs = _chain_candidates(*seen, self.cluster_of, chain)
        self.first, self.second = np.empty((2, n_pairs), np.int32)
        self.highest, self.nearest = np.empty((2, n_pairs), np.float32)
        _list_between(
            *seen, links.similarities, self.cluster_of, chain, self.first, self.second,
            self.highest, self.nearest,
        )  # fmt: skip
        self.total = self.highest.copy()
        self.count = np.ones(n_pairs, np.float32)
        self.agreement = np.full(n_pairs, np.nan, np.float32)
        self.likelihood = np.full(n_pairs, np.nan, np.float32)
        self._replace(np.ones(n_pairs, bool))

    @property
    def labels(self) -> Labels:
        """The cluster of each item now."""
        return self.becomes[self.cluster_of]

    @property
    def candidates(self) -> NDArray[np.int64]:
        """The pairs of clusters that may be one person and have not been judged."""
        return np.flatnonzero(np.isnan(self.likelihood) & (self.highest >= CANDIDATE))

    def _replace(self, touched: NDArray[np.bool_]) -> None:
        """Bring the pairs that were touched by joining up to date: each pair of clusters once."""
        parts = [getattr(self, name) for name in ("total", "count", "highest", "nearest")]
        first, second, *joined = _once_each(
            self.first[touched], self.second[touched], *(p[touched] for p in parts), len(self.sizes)
        )
        kept = ~touched
        self.total, self.count, self.highest, self.nearest = (
            np.concatenate([part[kept], new]) for part, new in zip(parts, joined, strict=True)
        )
        unknown = np.full(len(first), np.nan, np.float32)
        self.agreement = np.concatenate([self.agreement[kept], unknown])
        self.likelihood = np.concatenate([self.likelihood[kept], unknown])
        self.first = np.concatenate([self.first[kept], first])
        self.second = np.concatenate([self.second[kept], second])

    def judge(self, network: Perceptron, *, n_threads: int | None = None) -> None:
        """Ask the network about the candidates."""
        asked = self.candidates
        features = self.features(asked)
        # Whoever agrees no more than the nearest of as many strangers would may be that one,
        # whatever the links say: in a collection of another kind they may all be too sure.
        apart = features[:, FAR_UPWARD] <= self._nearest_stranger()

        def work(block: slice) -> None:
            likelihood = network.probabilities(features[block])
            likelihood[apart[block]] = 0
            self.likelihood[asked[block]] = likelihood

        for _ in in_threads(work, blocks(len(asked), PAIRS_AT_ONCE), n_threads=n_threads):
            pass

    def features(self, pairs: NDArray[np.int64]) -> NDArray[np.float32]:
        """What some pairs of clusters look like: (pairs, features), in the order of `NAMES`."""
        a, b = self.first[pairs], self.second[pairs]
        swap = self.sizes[a] < self.sizes[b]
        large, small = np.where(swap, b, a), np.where(swap, a, b)
        n_large, n_small = self.sizes[large], self.sizes[small]
        coherence = np.full(len(self.sizes), np.nan)
        concerned = np.unique(np.concatenate([a, b]))
        coherence[concerned] = self._coherence(concerned)
        self._see_strangers(concerned)

        products = np.empty(len(a))
        for start in range(0, len(a), PAIRS_AT_ONCE):
            part = slice(start, start + PAIRS_AT_ONCE)
            products[part] = np.einsum("ij,ij->i", self.sums[a[part]], self.sums[b[part]])
        strangers = (self.centers[a] / self.sizes[a] + self.centers[b] / self.sizes[b]) / 2
        similarity = _against(strangers, products / (n_large * n_small))
        agreement = similarity / np.sqrt(coherence[a] * coherence[b])
        self.agreement[pairs] = agreement
        best = self._best_agreement()
        strange = (self.strange[a] + self.strange[b]) / 2
        deviations = (agreement - strange[:, 0]) / strange[:, 1:].T

        # Each item lists at most k others, so not all pairs of items can have a link.
        listable = n_large * n_small * np.minimum(1, self.k / (n_large + n_small - 1))
        columns = (
            np.log(n_large),
            np.log(n_small),
            similarity,
            coherence[large],
            coherence[small],
            agreement,
            *deviations,
            deviations[0] - self._nearest_stranger(),
            self.total[pairs] / self.count[pairs],
            self.highest[pairs],
            _against(strangers, self.nearest[pairs]),
            self.total[pairs] / listable,
            np.log(self.count[pairs]),
            self.count[pairs] / listable,
            best[large] - agreement,
            best[small] - agreement,
            np.full(len(a), self.spread),
        )
        return np.stack(columns, axis=1).astype(np.float32)

    def _inside(self, clusters: NDArray[np.int64]) -> Floats:
        """The mean similarity of the items of some clusters to each other."""
        n, sums = self.sizes[clusters], self.sums[clusters]
        squares = np.einsum("ij,ij->i", sums, sums)
        mean = (squares - n) / np.maximum(n * (n - 1), 1)
        return _against(self.centers[clusters] / n, mean)

    def _coherence(self, clusters: NDArray[np.int64]) -> Floats:
        """The same, drawn towards that of the others; a cluster of one has none of its own."""
        n = self.sizes[clusters]
        return np.maximum((self._inside(clusters) * (n - 1) + self.usual) / n, 0.05)

    def _see_strangers(self, clusters: NDArray[np.int64]) -> None:
        """Find out how much strangers agree with some clusters, where that is not known."""
        clusters = clusters[np.isnan(self.strange[clusters, 0])]
        for start in range(0, len(clusters), BLOCK_ROWS):
            some = clusters[start : start + BLOCK_ROWS]
            n, root = self.sizes[some, None], np.sqrt(self._coherence(some))[:, None]
            strangers = self.centers[some, None] / n
            strangers = (strangers + self.their_strangers) / 2
            products = (self.sums[some] @ self.references.T) / n
            agreement = (products - strangers / self.their_roots) / (1 - strangers) / root
            center, spreads = spread_of(agreement)
            self.strange[some] = np.column_stack([center, spreads + LEAST_SPREAD])

    def _nearest_stranger(self) -> float:
        """How many deviations away the nearest of so many strange clusters would be."""
        return float(-ndtri(min(1 / np.count_nonzero(self.sizes), 0.5)))

    def _best_agreement(self) -> Floats:
        """Of each cluster with any other, as far as it was computed."""
        known = np.flatnonzero(~np.isnan(self.agreement))
        best = np.full(len(self.sizes), -1.0)
        for ends in (self.first, self.second):
            np.maximum.at(best, ends[known], self.agreement[known])
        return best

    def join(self, threshold: float) -> bool:
        """Join the pairs that are each other's likeliest, from a likelihood on; if there are.

        A cluster also takes in others that like it best, as long as they are small beside it:
        one by one would come to nearly the same, and take as many rounds as a person has photos.
        """
        larger = np.maximum(self.sizes[self.first], self.sizes[self.second])
        likely = np.flatnonzero(1 - self.likelihood <= (1 - threshold) / larger**CAUTION)
        ends = np.concatenate([self.first[likely], self.second[likely]])
        others = np.concatenate([self.second[likely], self.first[likely]])
        likelihood = np.tile(self.likelihood[likely], 2)
        order = np.lexsort((others, -likelihood, ends))[::-1]  # the likeliest of each comes last
        favourite = np.full(len(self.sizes), -1)
        favourite[ends[order]] = others[order]
        liking = np.zeros(len(self.sizes))
        liking[ends[order]] = likelihood[order]

        having = np.flatnonzero(favourite >= 0)
        mutual = favourite[favourite[having]] == having
        staying = having[mutual & (having < favourite[having])]
        moved = np.arange(len(self.sizes))
        moved[favourite[staying]] = staying

        rest = having[~mutual]
        rest = rest[moved[favourite[rest]] == favourite[rest]]  # whose favourite stays
        rest = rest[self.sizes[rest] <= SMALL * self.sizes[favourite[rest]]]
        rest = rest[np.lexsort((-liking[rest], favourite[rest]))]
        host = favourite[rest]
        grown = np.cumsum(self.sizes[rest])
        starts = np.searchsorted(host, host)
        grown -= (grown - self.sizes[rest])[starts]  # within each host
        rest = rest[grown <= GROWTH * self.sizes[host]]
        rest = rest[~np.isin(favourite[rest], rest)]  # whose favourite stays here too
        moved[rest] = favourite[rest]

        going = np.flatnonzero(moved != np.arange(len(moved)))
        for name in ("sizes", "centers", "sums"):
            values = getattr(self, name)
            np.add.at(values, moved[going], values[going])
            values[going] = 0
        self.strange[going] = self.strange[moved[going]] = np.nan
        self.becomes = moved[self.becomes]
        changed = np.zeros(len(self.sizes), bool)
        changed[going] = changed[moved[going]] = True
        touched = changed[self.first] | changed[self.second]
        moved = moved.astype(np.int32)
        self.first, self.second = moved[self.first], moved[self.second]
        self._replace(touched)
        return len(going) > 0


def join_fragments(
    labels: Labels,
    links: Links,
    embeddings: ArrayLike | UnitRows,
    model: UniversalModel,
    *,
    threshold: float,
    n_threads: int | None = None,
) -> Labels:
    """Join clusters for as long as two of them are likely enough to be one person.

    Parameters
    ----------
    labels : (n,) int array
        The cluster of each item, from `merge_links`.
    links : Links
    embeddings : (n, d) array
        Those that the links are of.
    model : UniversalModel
        Its second network judges pairs of clusters.
    threshold : float
        The likelihood from which two single items are joined; the larger the
        clusters, the higher.
    n_threads : int, optional
        All cores of the process by default. The result does not depend on it.

    Returns
    -------
    (n,) int array
    """
    if threshold >= 1 or links.likelihood.size == 0:
        return labels
    rows = UnitRows.of(embeddings)
    background = links.background or Background.of(rows, n_threads=n_threads)
    fragments = Fragments(labels, links, rows, background)
    joined = True
    while joined:
        fragments.judge(model.fragments, n_threads=n_threads)
        joined = fragments.join(threshold)
    return fragments.labels


@compiled
def _chain_candidates(neighbors, back, likelihood, cluster_of, chain):
    """Join clusters by candidates, in ``chain``; the number of pairs of items inside chains."""
    n_items, k = likelihood.shape
    for i in range(n_items):
        for place in range(k):
            a, b = cluster_of[i], cluster_of[neighbors[i, place]]
            if a != b:
                value, mine = joined_value(neighbors, back, likelihood, i, place)
                if mine and value >= CANDIDATE:
                    a, b = root(chain, a), root(chain, b)
                    chain[max(a, b)] = min(a, b)
    for cluster in range(len(chain)):
        chain[cluster] = root(chain, cluster)
    count = 0
    for i in range(n_items):
        for place in range(k):
            a, b = cluster_of[i], cluster_of[neighbors[i, place]]
            if a != b and chain[a] == chain[b]:
                count += joined_value(neighbors, back, likelihood, i, place)[1]
    return count


@compiled
def _list_between(
    neighbors, back, likelihood, similarities, cluster_of, chain, first, second, values, nearest
):
    """The pairs of items of two clusters of one chain."""
    n_items, k = likelihood.shape
    count = 0
    for i in range(n_items):
        for place in range(k):
            a, b = cluster_of[i], cluster_of[neighbors[i, place]]
            if a != b and chain[a] == chain[b]:
                value, mine = joined_value(neighbors, back, likelihood, i, place)
                if mine:
                    first[count], second[count] = a, b
                    values[count], nearest[count] = value, similarities[i, place]
                    count += 1


@compiled
def _once_each(first, second, total, count, highest, nearest, n_clusters):
    """Each pair of clusters once: sums of the first two values, the highest of the others."""
    starts = np.zeros(n_clusters + 1, np.int64)
    for pair in range(len(first)):
        if first[pair] != second[pair]:
            starts[min(first[pair], second[pair]) + 1] += 1
    starts = np.cumsum(starts)
    order = np.empty(starts[-1], np.int64)  # by the lesser of the two
    filled = starts[:-1].copy()
    for pair in range(len(first)):
        if first[pair] != second[pair]:
            lesser = min(first[pair], second[pair])
            order[filled[lesser]] = pair
            filled[lesser] += 1

    ends = np.empty((2, len(order)), np.int32)
    values = np.empty((4, len(order)), np.float32)
    place = np.full(n_clusters, -1, np.int64)  # of the greater, in the result
    n_pairs = 0
    for lesser in range(n_clusters):
        begin = n_pairs
        for pair in order[starts[lesser] : starts[lesser + 1]]:
            greater = max(first[pair], second[pair])
            at = place[greater]
            if at < begin:
                at = place[greater] = n_pairs
                n_pairs += 1
                ends[0, at], ends[1, at] = lesser, greater
                values[0, at], values[1, at] = total[pair], count[pair]
                values[2, at], values[3, at] = highest[pair], nearest[pair]
            else:
                values[0, at] += total[pair]
                values[1, at] += count[pair]
                values[2, at] = max(values[2, at], highest[pair])
                values[3, at] = max(values[3, at], nearest[pair])
    ends, values = ends[:, :n_pairs].copy(), values[:, :n_pairs].copy()
    return ends[0], ends[1], values[0], values[1], values[2], values[3]


def _against(strangers: Floats, similarity: NDArray[np.floating]) -> Floats:
    """0: like strangers, 1: identical."""
    return (similarity - strangers) / (1 - strangers)


def _sums(rows: UnitRows, labels: Labels, n_clusters: int) -> NDArray[np.float32]:
    """The sum of the embeddings of each cluster."""
    sums = np.zeros((n_clusters, rows.shape[1]), np.float32)
    order = np.argsort(labels, kind="stable")
    for start in range(0, len(order), BLOCK_ROWS):
        part = order[start : start + BLOCK_ROWS]
        mine = labels[part]
        starts = np.flatnonzero(np.concatenate([[True], mine[1:] != mine[:-1]]))
        sums[mine[starts]] += np.add.reduceat(rows[part], starts, axis=0)
    return sums
