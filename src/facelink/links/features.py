"""What a link looks like from its context, whatever the embedding.

Nothing here is a coordinate. A similarity is measured against the background, what
strangers look like in this collection; everything else is ranks, counts and the
similarities of the neighbours to each other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from facelink.compiled import blocks, compiled, in_threads, own_array
from facelink.links.background import BLOCK_ROWS, Background
from facelink.neighbors import KnnGraph
from facelink.scratch import scratch_array

Floats = NDArray[np.float32]

STRANGER = 1e-5  # similarity, 0 being a stranger's: all may be equally far
MOST = 0.9999  # squared similarity: so identical items are not infinitely many deviations away
DEPTHS = (5, 10, 20, 40, 80)  # of the neighbourhoods that are compared
ENDS = ("pivot", "neighbour")
SHARES = {"as": 1.0, "three quarters as": 0.75, "half as": 0.5}  # of a link's similarity
STEEPNESS = 6.0  # of the softmax over an item's neighbours
# Deviations beyond the nearest stranger. Of random vectors a tenth of the items have a nearest
# neighbour 0.6 to 1 beyond, of collections of people 2 or more, of one photo of each person 1 to 2;
# pairs that are one person are mostly beyond 3. Photos of one person alone are on average less
# alike than chance would have them (-0.3 and less), because some are bad.
BY_CHANCE, LIKE_CHANCE, BEYOND_CHANCE = 1.05, -0.25, 2.5

# How many others are so similar to the two: between a person's own photos and strangers there
# are none, between blurred faces and others there are many.
ALIKE = tuple(f"others {share} similar to the {end}" for share in SHARES for end in ENDS)

NAMES = (
    # The link itself, against strangers.
    "similarity",  # 0: like strangers, 1: identical
    "deviations",  # the same, in standard deviations of strangers
    "beyond the nearest stranger",  # of as many strangers as there are items
    "deviations upward",  # by the strangers above the middle
    "deviations far upward",
    "far upward beyond the nearest stranger",
    *ALIKE,
    "beyond the stranger of this rank",
    "rank of the neighbour",
    "rank of the pivot",
    # What the two have around them.
    *(f"common among {depth}" for depth in DEPTHS),
    "probability shared",  # NEP
    "difference of transitions",  # TPDi
    "density of the pivot",
    "density of the neighbour",
    *(f"pivot's {rank}" for rank in ("first", "fifth", "twentieth", "last")),  # above the link
    *(f"neighbour's {rank}" for rank in ("first", "fifth", "twentieth", "last")),
    "neighbour to pivot's 5",
    "neighbour to pivot's 10",
    "pivot to neighbour's 5",
    "pivot to neighbour's 10",
    "pivot's best",
    "neighbour's best",
    "step behind, pivot",  # how much less similar the neighbour of twice the rank is
    "step behind, neighbour",
    # What the two are like.
    "popularity of the pivot",
    "popularity of the neighbour",
    "strangers to the pivot",
    "strangers to the neighbour",
    "spread of strangers to the pivot",
    "spread of strangers to the neighbour",
    "spread upward, pivot",
    "spread upward, neighbour",
    "spread far upward, pivot",
    "spread far upward, neighbour",
    "spread of strangers",  # in the collection
    "spread upward",  # in the collection, beside that
    "spread far upward",
)


class LinkFeatures:
    """The features of all links of a collection, computed for some pivots at a time.

    Parameters
    ----------
    graph : KnnGraph
    background : Background
        Of the same embeddings.
    n_threads : int, optional
        All cores of the process by default.
    """

    def __init__(
        self, graph: KnnGraph, background: Background, *, n_threads: int | None = None
    ) -> None:
        n_items, k = graph.indices.shape
        self.indices = graph.indices
        self.order = graph.order
        self.background = background
        center, spreads = background.center, background.spreads
        self.similarity = scratch_array((n_items, k))  # 0: like strangers, 1: identical
        self.deviations = scratch_array((n_items, k))
        self.root = scratch_array((n_items, k))  # of the softmax over the neighbours
        self.density = np.empty(n_items, np.float32)
        self.back = graph.back

        def prepare(block: slice) -> None:
            _against_background(
                self.order[block], self.indices, graph.similarities, center, spreads,
                self.similarity, self.deviations, self.root, self.density,
            )  # fmt: skip

        for _ in in_threads(prepare, blocks(n_items, BLOCK_ROWS), n_threads=n_threads):
            pass
        listed = np.bincount(self.indices.ravel(), minlength=n_items)
        typical = background.typical_spreads
        self.about_items = np.column_stack(  # (n, 5): popularity, strangers, their spreads
            [
                np.log((listed + 1) / max(k, 1)),
                (center - background.typical_center) / typical[0],
                spreads / np.array(typical),
            ]
        ).astype(np.float32)
        # If all were strangers, the r-th nearest of n would be this many deviations away.
        share = np.minimum((np.arange(k) + 1) / n_items, 0.5)
        self.strangers = -ndtri(share).astype(np.float32)  # (k,)
        beside = (spread / typical[0] for spread in typical[1:])
        self.collection = np.array([background.spread, *beside], np.float32)
        # Whether neighbours are as near as chance would have them if all were strangers.
        nearest = np.quantile(self.deviations[:, 0], 0.9) - self.strangers[0]
        average = self.deviations.mean(axis=0) - self.strangers  # (k,)
        self.by_chance = bool(nearest < BY_CHANCE and average.mean() > LIKE_CHANCE)

    def hopeless(self, pivots: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Which links of some pivots are no closer than strangers' may be: (pivots, k).

        A network that has seen people in every collection finds some where there are none.
        """
        hopeless = self.similarity[pivots] < STRANGER
        if self.by_chance:
            hopeless |= self.deviations[pivots] < self.strangers[0] + BEYOND_CHANCE
        return hopeless

    def of(self, pivots: NDArray[np.integer]) -> Floats:
        """The features of the links of some pivots: (pivots · k, features)."""
        k = self.indices.shape[1]
        out = np.empty((len(pivots), k, len(NAMES)), np.float32)
        _features(
            pivots, self.indices, self.similarity, self.deviations, self.root,
            self.density, self.back, self.about_items, self.background.spreads,
            self.background.above, self.strangers, self.collection, np.array(DEPTHS),
            own_array("places", len(self.indices), np.int16, -1), out,
        )  # fmt: skip
        return out.reshape(-1, len(NAMES))


@compiled
def _against_background(
    items, indices, similarities, center, spreads, similarity, deviations, root, density
):
    k = indices.shape[1]
    for i in items:
        total = np.float32(0)
        for r in range(k):
            j = indices[i, r]
            stranger = (center[i] + center[j]) / np.float32(2)
            above = similarities[i, r] - stranger
            room = np.float32(1) - stranger
            t = above / room
            similarity[i, r] = t
            spread = (spreads[i, 0] + spreads[j, 0]) / np.float32(2)
            deviations[i, r] = _unbounded(t) * room / spread
            weight = np.exp(np.float32(STEEPNESS) * (similarity[i, r] - np.float32(1)))
            root[i, r] = weight
            total += weight
        density[i] = total / np.float32(k)
        for r in range(k):
            root[i, r] = np.sqrt(root[i, r] / total)


@compiled
def _unbounded(similarity):
    """The similarity as it would be if nothing limited it, and chance alone made it.

    In d dimensions that of strangers exceeds s with a probability of about (1 - s²)^(d/2). That is
    exp(-d t²/2), as for a normal distribution, at t = √(-log(1 - s²)).
    """
    if similarity <= 0:
        return similarity
    square = min(similarity * similarity, np.float32(MOST))
    return np.sqrt(-np.log1p(-square))


@compiled
def _features(
    pivots, indices, similarity, deviations, root, density, listed_at, about_items, spreads,
    above, strangers, collection, depths, place, out,
):  # fmt: skip
    k = indices.shape[1]
    n_depths = len(depths)
    last = k - 1
    zero = np.float32(0)
    of_pivot, of_neighbor = np.empty(k + 1, np.int64), np.empty(k + 1, np.int64)
    common = np.empty(n_depths + 1, np.int64)  # beyond the depth before, within this one
    depth_of = np.searchsorted(depths, np.arange(k) + 1)  # the least depth with this rank
    for p in range(len(pivots)):
        i = pivots[p]
        for r in range(k):
            place[indices[i, r]] = r
        for r in range(k):
            j = indices[i, r]
            back = listed_at[i, r]  # the rank of the pivot among the neighbour's
            # Whom both list, first: a loop without branches, and short ones after it.
            n_common = 0
            for s in range(k):
                at = place[indices[j, s]]
                of_pivot[n_common], of_neighbor[n_common] = at, s
                n_common += at >= 0
            common[:] = 0
            shared, overlap = zero, zero
            # Sums of similarities over the first 5 and 10 of one, and how many are known.
            to_pivots_5, to_pivots_10, to_neighbors_5, to_neighbors_10 = zero, zero, zero, zero
            known_5, known_10, known_back_5, known_back_10 = 0, 0, 0, 0
            for c in range(n_common):
                at, s = of_pivot[c], of_neighbor[c]
                common[depth_of[max(at, s)]] += 1
                here, there = root[i, at], root[j, s]
                shared += here * here + there * there
                overlap += here * there
                to_pivots_10 += similarity[j, s] if at < 10 else zero
                known_10 += at < 10
                to_pivots_5 += similarity[j, s] if at < 5 else zero
                known_5 += at < 5
            for c in range(min(n_common, 10)):
                at, s = of_pivot[c], of_neighbor[c]
                if s < 10:
                    to_neighbors_10 += similarity[i, at]
                    known_back_10 += 1
                if s < 5:
                    to_neighbors_5 += similarity[i, at]
                    known_back_5 += 1
            t = similarity[i, r]
            f = out[p, r]
            f[0] = t
            f[1] = deviations[i, r]
            f[2] = deviations[i, r] - strangers[0]
            f[3] = deviations[i, r] * beside_spread(spreads, i, j, 1)
            f[4] = deviations[i, r] * beside_spread(spreads, i, j, 2)
            f[5] = f[4] - strangers[0]
            f = f[6:]
            f = f[write_alike(above, i, j, t, f) :]
            f[0] = deviations[i, r] - strangers[r]
            f[1] = np.log(1.0 + r)
            f[2] = np.log(1.0 + back)
            within = 0
            for d in range(n_depths):
                within += common[d]
                f[3 + d] = within / min(depths[d], k)
            f = f[3 + n_depths :]
            f[0] = shared / 2
            f[1] = 1 - overlap
            f[2], f[3] = density[i], density[j]
            at_5, at_20 = min(4, last), min(19, last)
            f[4], f[5] = similarity[i, 0] - t, similarity[i, at_5] - t
            f[6], f[7] = similarity[i, at_20] - t, similarity[i, last] - t
            f[8], f[9] = similarity[j, 0] - t, similarity[j, at_5] - t
            f[10], f[11] = similarity[j, at_20] - t, similarity[j, last] - t
            # The two themselves are left out; one who is not listed is no nearer than the last.
            far, far_back = similarity[j, last], similarity[i, last]
            f[12] = _filled_mean(to_pivots_5, known_5, min(5, k) - (r < 5), far)
            f[13] = _filled_mean(to_pivots_10, known_10, min(10, k) - (r < 10), far)
            f[14] = _filled_mean(to_neighbors_5, known_back_5, min(5, k) - (back < 5), far_back)
            f[15] = _filled_mean(to_neighbors_10, known_back_10, min(10, k) - (back < 10), far_back)
            f[16], f[17] = similarity[i, 0], similarity[j, 0]
            f[18] = t - similarity[i, min(2 * r + 1, last)]
            f[19] = 0.0
            if back < k:
                f[19] = similarity[j, back] - similarity[j, min(2 * back + 1, last)]
            for a in range(about_items.shape[1]):
                f[20 + 2 * a] = about_items[i, a]
                f[21 + 2 * a] = about_items[j, a]
            f[30:33] = collection
        for r in range(k):
            place[indices[i, r]] = -1


_SHARES = tuple(SHARES.values())


@compiled
def write_alike(above, i, j, similarity, out):
    """Write how many others are so similar to the two, in the order of `ALIKE`; their number."""
    levels = above.shape[1] - 1
    place = 0
    for share in _SHARES:
        at = min(max(similarity * np.float32(share), np.float32(0)), np.float32(1)) * levels
        level = min(np.int64(at), levels - 1)
        further = at - np.float32(level)
        for item in (np.int64(i), np.int64(j)):
            out[place] = above[item, level] * (1 - further) + above[item, level + 1] * further
            place += 1
    return place


@compiled
def beside_spread(spreads, i, j, which):
    """What deviations of a pair are multiplied with to be those of another spread."""
    return (spreads[i, 0] + spreads[j, 0]) / (spreads[i, which] + spreads[j, which])


@compiled
def _filled_mean(total, known, wanted, filling):
    """The mean over ``wanted`` values, those that are not known counting as ``filling``."""
    missing = max(wanted - known, 0)
    return (total + missing * filling) / max(wanted, 1)
