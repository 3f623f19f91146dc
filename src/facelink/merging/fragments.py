"""Fragments of one person: the question of the links, asked of whole clusters.

With k neighbours per item a person of many photos falls into pieces: every photo's
neighbours are filled up by its own piece. And pieces of few photos are easier to
judge as wholes than photo by photo. So pairs of clusters are looked at like pairs of
items: how likely are they one person, given how similar they are on average, how
coherent each is, and how much strangers agree? What the links between them say is not
asked again: where links err, as between blurred faces, they err all alike. Those that are
each other's likeliest are joined, and the question is asked again of what has changed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from facelink.compiled import blocks, compiled, in_threads
from facelink.embeddings import UnitRows
from facelink.links import Links, UniversalModel
from facelink.links.background import BLOCK_ROWS, QUANTILES, Background, spread_of
from facelink.links.clusters import Clusters, against
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
    "better for the larger",  # by how much the best other cluster agrees more
    "better for the smaller",
    "spread of strangers",
)
FAR_UPWARD = NAMES.index("agreement, deviations far upward")
CANDIDATE = 0.1  # the likelihood from which a link makes its two clusters candidates
BEYOND = 1.5  # deviations by which two clusters agree more than the nearest stranger would
REFERENCES = 512  # items, whose clusters show how much those of strangers agree
LEAST_SPREAD = 0.02  # of the agreement of strangers
SMALL = 1 / 16  # of a cluster's size, for it to take in several at once
GROWTH = 1 / 4  # at once, at most
PAIRS_AT_ONCE = 16_384


class Fragments(Clusters):
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
        super().__init__(labels, rows, background)
        self.spread = background.spread
        # A cluster that was joined to another is empty from then on.
        self.becomes = np.arange(len(self.sizes))

        # Clusters that others are compared with, as they are now: their means, beside coherence.
        chosen = np.random.default_rng(0).permutation(len(self.cluster_of))[:REFERENCES]
        chosen = np.unique(self.cluster_of[chosen])
        self.their_roots = np.sqrt(self.coherence(chosen))
        self.their_strangers = self.centers[chosen] / self.sizes[chosen]
        coherent = self.their_roots * self.sizes[chosen]
        self.references = self.sums[chosen] / coherent[:, None].astype(np.float32)
        # Of each cluster: how much strangers agree with it; not known yet.
        self.strange = np.full((len(self.sizes), 1 + len(QUANTILES)), np.nan)  # center, spreads

        # Of each pair of clusters that have a link: the highest likelihood of one; whether they
        # are one person, if judged. Pairs that no chain of candidates can ever bring together
        # are left out.
        chain = np.arange(len(self.sizes))
        seen = links.graph.indices, links.graph.back, links.likelihood
        n_pairs = _chain_candidates(*seen, self.cluster_of, chain)
        self.first, self.second = np.empty((2, n_pairs), np.int32)
        self.highest = np.empty(n_pairs, np.float32)
        _list_between(*seen, self.cluster_of, chain, self.first, self.second, self.highest)
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
        first, second, highest = _once_each(
            self.first[touched], self.second[touched], self.highest[touched], len(self.sizes)
        )
        unknown = np.full(len(first), np.nan, np.float32)
        replaced = {
            "first": first, "second": second, "highest": highest,
            "agreement": unknown, "likelihood": unknown,
        }  # fmt: skip
        for name, new in replaced.items():
            setattr(self, name, np.concatenate([getattr(self, name)[~touched], new]))

    def judge(self, network: Perceptron, *, n_threads: int | None = None) -> None:
        """Ask the network about the candidates."""
        asked = self.candidates
        features = self.features(asked)
        # Whoever agrees little more than the nearest of as many strangers would may be that one,
        # whatever the network says: clusters of blurred faces agree, too.
        apart = features[:, FAR_UPWARD] <= self._nearest_stranger() + BEYOND

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
        coherence[concerned] = self.coherence(concerned)
        self._see_strangers(concerned)

        products = np.empty(len(a))
        for start in range(0, len(a), PAIRS_AT_ONCE):
            part = slice(start, start + PAIRS_AT_ONCE)
            products[part] = np.einsum("ij,ij->i", self.sums[a[part]], self.sums[b[part]])
        strangers = (self.centers[a] / self.sizes[a] + self.centers[b] / self.sizes[b]) / 2
        similarity = against(strangers, products / (n_large * n_small))
        agreement = similarity / np.sqrt(coherence[a] * coherence[b])
        self.agreement[pairs] = agreement
        best = self._best_agreement()
        strange = (self.strange[a] + self.strange[b]) / 2
        deviations = (agreement - strange[:, 0]) / strange[:, 1:].T

        columns = (
            np.log(n_large),
            np.log(n_small),
            similarity,
            coherence[large],
            coherence[small],
            agreement,
            *deviations,
            deviations[0] - self._nearest_stranger(),
            best[large] - agreement,
            best[small] - agreement,
            np.full(len(a), self.spread),
        )
        return np.stack(columns, axis=1).astype(np.float32)

    def _see_strangers(self, clusters: NDArray[np.int64]) -> None:
        """Find out how much strangers agree with some clusters, where that is not known."""
        clusters = clusters[np.isnan(self.strange[clusters, 0])]
        for start in range(0, len(clusters), BLOCK_ROWS):
            some = clusters[start : start + BLOCK_ROWS]
            n, root = self.sizes[some, None], np.sqrt(self.coherence(some))[:, None]
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
        likely = np.flatnonzero(self.likelihood >= threshold)
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
        Its networks for clusters judge pairs of them.
    threshold : float
        The likelihood from which two clusters are joined.
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
    return join_all(fragments, model.fragments, threshold, n_threads=n_threads)


def join_all(
    fragments: Fragments, network: Perceptron, threshold: float, *, n_threads: int | None = None
) -> Labels:
    """Judge and join for as long as there are two to join; the labels then."""
    joined = True
    while joined:
        fragments.judge(network, n_threads=n_threads)
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
def _list_between(neighbors, back, likelihood, cluster_of, chain, first, second, values):
    """The pairs of items of two clusters of one chain."""
    n_items, k = likelihood.shape
    count = 0
    for i in range(n_items):
        for place in range(k):
            a, b = cluster_of[i], cluster_of[neighbors[i, place]]
            if a != b and chain[a] == chain[b]:
                value, mine = joined_value(neighbors, back, likelihood, i, place)
                if mine:
                    first[count], second[count], values[count] = a, b, value
                    count += 1


@compiled
def _once_each(first, second, values, n_clusters):
    """Each pair of clusters once, with its highest value."""
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
    highest = np.empty(len(order), np.float32)
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
                ends[0, at], ends[1, at], highest[at] = lesser, greater, values[pair]
            else:
                highest[at] = max(highest[at], values[pair])
    return ends[0, :n_pairs].copy(), ends[1, :n_pairs].copy(), highest[:n_pairs].copy()
