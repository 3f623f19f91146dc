"""Fragments of one person: the question of the links, asked of whole clusters.

With k neighbours per item a person of many photos falls into pieces: every photo's
neighbours are filled up by its own piece. And pieces of few photos are easier to
judge as wholes than photo by photo. So pairs of clusters are looked at like pairs of
items: how likely are they one person, given how similar they are on average, how
coherent each is, and how much strangers agree? They are compared as they are and by what
people differ in (`facelink.links.variation`). What the links between them say is not asked
again, but for those of clusters sure of themselves (`facelink.merging.witnesses`): where links
err, as between blurred faces, they err all alike. Clusters that are each other's likeliest are
joined, and the question is asked again of what has changed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facelink.compiled import blocks, compiled, in_threads
from facelink.embeddings import UnitRows
from facelink.errors import InputError
from facelink.links import Links, Model, UniversalModel, load_model
from facelink.links.background import Background
from facelink.links.pairs import joined_value
from facelink.links.perceptron import Perceptron
from facelink.links.variation import Whitened
from facelink.merging import likeness
from facelink.merging.components import check_share
from facelink.merging.likeness import PAIRS_AT_ONCE, Likeness
from facelink.merging.propagation import root
from facelink.merging.witnesses import Witnesses

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

LIKENESS = (
    *likeness.NAMES,
    "better for the larger",  # by how much the best other cluster agrees more
    "better for the smaller",
)
NAMES = (
    "size of the larger",
    "size of the smaller",
    *LIKENESS,
    # With the variation inside clusters alike in all directions.
    *(f"{name}, whitened" for name in LIKENESS),
    "spread of strangers",
    "witnesses",
)
AGREEMENT = likeness.NAMES.index("agreement")
BESIDE = [NAMES.index(f"beyond the nearest stranger{way}") for way in ("", ", whitened")]
CANDIDATE = 0.1  # the likelihood from which a link makes its two clusters candidates
BEYOND = 1.5  # deviations by which two clusters agree more than the nearest stranger would
# With witnesses it takes less: with as many, and so many of the smaller cluster's items. Of such
# pairs between 0.5 and 1.5 in training episodes 66 % were one person; without witnesses 10 %, and
# of those with three that were fewer than one in a hundred none.
BEYOND_WITNESSED, WITNESSES, OF_ITEMS, WITNESSED = 0.5, 3, 0.01, 0.66
SMALL = 1 / 16  # of a cluster's size, for it to take in several at once
GROWTH = 1 / 4  # at once, at most


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
    whitened : Whitened
        The same by what photos of one person differ in.
    """

    def __init__(
        self,
        labels: Labels,
        links: Links,
        rows: UnitRows,
        background: Background,
        whitened: Whitened,
    ) -> None:
        self.likenesses = (
            Likeness(labels, rows, background),
            Likeness(labels, whitened, whitened.background),
        )
        self.cluster_of = self.likenesses[0].cluster_of
        self.witnesses = Witnesses(links, self.cluster_of)
        self.spread = background.spread
        self.becomes = np.arange(len(self.sizes))

        # Of each pair of clusters that have a link: the highest likelihood of one; whether they
        # are one person, if judged. Pairs that no chain of candidates can ever bring together
        # are left out.
        chain = np.arange(len(self.sizes))
        seen = links.graph.indices, links.graph.back, links.likelihood
        n_pairs = _chain_candidates(*seen, self.cluster_of, chain)
        self.first, self.second = np.empty((2, n_pairs), np.int32)
        self.highest = np.empty(n_pairs, np.float32)
        _list_between(*seen, self.cluster_of, chain, self.first, self.second, self.highest)
        self.agreement = np.full((2, n_pairs), np.nan, np.float32)  # plain, whitened
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
            "agreement": np.stack([unknown, unknown]), "likelihood": unknown,
        }  # fmt: skip
        for name, new in replaced.items():
            kept = getattr(self, name)[..., ~touched]
            setattr(self, name, np.concatenate([kept, new], axis=-1))

    def judge(self, network: Perceptron, *, n_threads: int | None = None) -> None:
        """Ask the network about the candidates."""
        asked = self.candidates
        features = self.features(asked, n_threads=n_threads)
        beyond = features[:, BESIDE].max(axis=1)
        witnesses = np.expm1(features[:, NAMES.index("witnesses")])
        smaller = np.exp(features[:, NAMES.index("size of the smaller")])
        enough = np.maximum(WITNESSES, OF_ITEMS * smaller) - 0.5  # they are whole numbers
        witnessed = (witnesses > enough) & (beyond > BEYOND_WITNESSED)
        # Whoever agrees little more than the nearest of as many strangers would may be that one,
        # whatever the network says: clusters of blurred faces agree, too.
        apart = (beyond <= BEYOND) & ~witnessed

        def work(block: slice) -> None:
            likelihood = network.probabilities(features[block])
            likelihood[apart[block]] = 0
            likelihood[witnessed[block]] = np.maximum(likelihood[witnessed[block]], WITNESSED)
            self.likelihood[asked[block]] = likelihood

        for _ in in_threads(work, blocks(len(asked), PAIRS_AT_ONCE), n_threads=n_threads):
            pass

    @property
    def sizes(self) -> Floats:
        """The number of items of each cluster now."""
        return self.likenesses[0].sizes

    def features(
        self, pairs: NDArray[np.int64], *, n_threads: int | None = None
    ) -> NDArray[np.float32]:
        """What some pairs of clusters look like: (pairs, features), in the order of `NAMES`."""
        a, b = self.first[pairs], self.second[pairs]
        swap = self.sizes[a] < self.sizes[b]
        large, small = np.where(swap, b, a), np.where(swap, a, b)
        columns = [np.log(self.sizes[large])[:, None], np.log(self.sizes[small])[:, None]]
        for alike, agreement in zip(self.likenesses, self.agreement, strict=True):
            columns.append(alike.compare(large, small, n_threads=n_threads))
            agreement[pairs] = columns[-1][:, AGREEMENT]
            best = self._best(agreement)
            better = best[large] - agreement[pairs], best[small] - agreement[pairs]
            columns.append(np.stack(better, axis=1))
        columns.append(np.full((len(a), 1), self.spread))
        columns.append(np.log1p(self.witnesses.count(large, small))[:, None])
        return np.concatenate(columns, axis=1).astype(np.float32)

    def _best(self, agreement: NDArray[np.float32]) -> Floats:
        """Of each cluster with any other, as far as it was computed."""
        known = np.flatnonzero(~np.isnan(agreement))
        best = np.full(len(self.sizes), -1.0)
        for ends in (self.first, self.second):
            np.maximum.at(best, ends[known], agreement[known])
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
        for part in (*self.likenesses, self.witnesses):
            part.move(moved)
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
    model: Model | str,
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
    model : UniversalModel or str
        The model, or the name or path of one. Its networks for clusters judge pairs of them.
    threshold : float
        The likelihood from which two clusters are joined.
    n_threads : int, optional
        All cores of the process by default. The result does not depend on it.

    Returns
    -------
    (n,) int array
        Joined clusters have the label of one of them; `merge_links` gave the others theirs.
    """
    check_share("threshold", threshold)
    model = load_model(model) if not isinstance(model, Model) else model
    if not isinstance(model, UniversalModel):
        raise InputError(
            f"Model {model.name!r} cannot judge clusters. Give the one that fits any embedding: "
            "'universal'."
        )
    rows, labels = UnitRows.of(embeddings), np.asarray(labels)
    n_items = links.graph.n_items
    if len(rows) != n_items or labels.shape != (n_items,):
        raise InputError(
            f"The links are of {n_items:,} items, the embeddings of {len(rows):,}, the labels of "
            f"shape {labels.shape}. Give the embeddings that the links were scored from, and a "
            "label of each."
        )
    if threshold >= 1 or links.likelihood.size == 0:
        return labels
    background = links.background or Background.of(rows, n_threads=n_threads)
    whitened = links.whitened or Whitened(rows, labels, n_threads=n_threads)
    fragments = Fragments(labels, links, rows, background, whitened)
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
