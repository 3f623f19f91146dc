"""A second look at every link, at what was first thought of the links around it.

Context says how likely a link is; the likelihoods of all links are context again. Are
the two likely one person with the same others? Is the pair as similar as each of them
is to those it is likely one person with, and as people are in this collection? Like a
further layer of the paper's network, a look carries what is known one hop farther.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from facelink.compiled import blocks, compiled, in_threads, own_array
from facelink.links.background import BLOCK_ROWS
from facelink.links.features import ALIKE, LinkFeatures, beside_spread, write_alike
from facelink.scratch import scratch_array

Floats = NDArray[np.float32]

NAMES = (
    "log-odds",  # both directions
    "log-odds from the pivot",
    # "Likely" others are weighted with how likely they are. The two themselves are left out.
    "likely others of the pivot",
    "likely others of the neighbour",
    "agreed, of the fewer",  # others that are likely for both
    "agreed, of the more",
    "denied by the neighbour",  # likely for the pivot, listed by the neighbour, not likely
    "denied by the pivot",
    "not listed by the neighbour",
    "not listed by the pivot",
    "best path",  # over another item: the less likely of its two links
    "second best path",
    "beyond the pivot's likely",  # the similarity, less that of the likely others
    "beyond the neighbour's likely",
    "neighbour to the pivot's likely",  # less the similarity of the pivot to them
    "pivot to the neighbour's likely",
    "likelier for the pivot",  # its likeliest, less this one
    "likelier for the neighbour",
    "beyond the usual",  # the similarity of likely pairs in the collection
    "likely others, usual",
    "usual similarity",
    # As in the first look.
    "similarity",
    "deviations",
    "beyond the nearest stranger",
    "deviations upward",
    "deviations far upward",
    "far upward beyond the nearest stranger",
    *ALIKE,
    "rank of the neighbour",
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
    "spread of strangers",
    "spread upward",
    "spread far upward",
)
FAINT = 0.01  # links less likely than this are not looked at again
USUAL, ASSUMED = 0.6, 50  # the similarity of a likely pair, as if this many had shown it


class Surroundings:
    """What the likelihoods of a collection's links say of each of them.

    Parameters
    ----------
    features : LinkFeatures
        What the first look read.
    likelihood : (n, k) float32 array
        What is thought of every link now.
    n_threads : int, optional
        All cores of the process by default.

    Attributes
    ----------
    trust : float
        How much a network that sees this counts beside what was thought before.
    """

    trust = 1.0

    def __init__(
        self, features: LinkFeatures, likelihood: Floats, *, n_threads: int | None = None
    ) -> None:
        n_items = len(likelihood)
        self.context = features
        self.likelihood = likelihood
        # The mean of both directions, where there are two.
        self.joined = scratch_array(likelihood.shape)
        self.others = np.empty(n_items, np.float32)  # likely ones, counted
        self.similarity = np.empty(n_items, np.float32)  # to them, summed
        self.likeliest = np.empty(n_items, np.float32)

        def prepare(block: slice) -> None:
            _around_items(
                features.order[block], features.indices, features.back, likelihood,
                features.similarity, self.joined, self.others, self.similarity, self.likeliest,
            )  # fmt: skip

        for _ in in_threads(prepare, blocks(n_items, BLOCK_ROWS), n_threads=n_threads):
            pass
        likely = float(self.others.sum(dtype=np.float64))
        known = USUAL * ASSUMED + float(self.similarity.sum(dtype=np.float64))
        self.usual = np.array(
            [known / (ASSUMED + likely), np.log1p(self.others).mean(dtype=np.float64)], np.float32
        )

    def asked(self, pivots: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Which links of some pivots deserve a look: (pivots, k)."""
        return self.joined[pivots] >= FAINT

    def of(self, pivots: NDArray[np.integer]) -> tuple[NDArray[np.bool_], Floats]:
        """Those links, and what they look like: (asked, features)."""
        context = self.context
        asked = self.asked(pivots)
        out = np.empty((int(asked.sum()), len(NAMES)), np.float32)
        _features(
            pivots, asked, context.indices, context.back, self.likelihood, self.joined,
            self.others, self.similarity, self.likeliest, self.usual, context.similarity,
            context.deviations, context.about_items, context.background.spreads,
            context.background.above, context.strangers, context.collection,
            own_array("places", len(self.joined), np.int16, -1), out,
        )  # fmt: skip
        return asked, out


@compiled
def _around_items(
    items, indices, back, likelihood, similarity, joined, others, to_others, likeliest
):
    k = indices.shape[1]
    for i in items:
        count, total, most = 0.0, 0.0, np.float32(0)
        for r in range(k):
            p = likelihood[i, r]
            if back[i, r] < k:
                p = (p + likelihood[indices[i, r], back[i, r]]) / np.float32(2)
            joined[i, r] = p
            count += p
            total += p * similarity[i, r]
            most = max(most, p)
        others[i] = count
        to_others[i] = total
        likeliest[i] = most


@compiled
def _features(
    pivots, asked, indices, back, likelihood, joined, others, to_others, likeliest, usual,
    similarity, deviations, about_items, spreads, above, strangers, collection, place, out,
):  # fmt: skip
    k = indices.shape[1]
    # Whom both list: their places among the neighbours of either.
    of_pivot, of_neighbor = np.empty(k + 1, np.int64), np.empty(k + 1, np.int64)
    zero = np.float32(0)
    row = 0
    for pivot in range(len(pivots)):
        i = pivots[pivot]
        for r in range(k):
            place[indices[i, r]] = r
        for r in range(k):
            if not asked[pivot, r]:
                continue
            j = indices[i, r]
            p, t = joined[i, r], similarity[i, r]
            known = p if back[i, r] < k else 0.0  # the neighbour may not list the pivot
            mine, yours = max(others[i] - p, 0.0), max(others[j] - known, 0.0)
            agreed, best, second = zero, zero, zero
            listed, listed_back = zero, zero  # of my others by you, of yours by me
            to_mine, to_yours = zero, zero
            n_common = 0
            for s in range(k):
                at = place[indices[j, s]]
                of_pivot[n_common], of_neighbor[n_common] = at, s
                n_common += at >= 0
            for c in range(n_common):
                at, s = of_pivot[c], of_neighbor[c]
                a, b = joined[i, at], joined[j, s]
                agreed += a * b
                listed += a
                listed_back += b
                to_mine += a * similarity[j, s]
                to_yours += b * similarity[i, at]
                path = min(a, b)
                second = max(second, min(best, path))
                best = max(best, path)
            far, far_back = similarity[j, k - 1], similarity[i, k - 1]
            missing, missing_back = max(mine - listed, 0.0), max(yours - listed_back, 0.0)
            # As if there were one other more, as similar as usual.
            level = (to_others[i] - p * t + usual[0]) / (mine + 1)
            level_back = (to_others[j] - known * t + usual[0]) / (yours + 1)
            f = out[row]
            row += 1
            f[0] = _log_odds(p)
            f[1] = _log_odds(likelihood[i, r])
            f[2], f[3] = np.log(1 + mine), np.log(1 + yours)
            f[4], f[5] = agreed / (min(mine, yours) + 0.5), agreed / (max(mine, yours) + 0.5)
            f[6], f[7] = (listed - agreed) / (mine + 0.5), (listed_back - agreed) / (yours + 0.5)
            f[8], f[9] = missing / (mine + 0.5), missing_back / (yours + 0.5)
            f[10], f[11] = best, second
            f[12], f[13] = t - level, t - level_back
            f[14] = (to_mine + missing * far + usual[0]) / (mine + 1) - level
            f[15] = (to_yours + missing_back * far_back + usual[0]) / (yours + 1) - level_back
            f[16], f[17] = likeliest[i] - p, likeliest[j] - p
            f[18], f[19], f[20] = t - usual[0], usual[1], usual[0]
            f[21], f[22] = t, deviations[i, r]
            f[23] = deviations[i, r] - strangers[0]
            f[24] = deviations[i, r] * beside_spread(spreads, i, j, 1)
            f[25] = deviations[i, r] * beside_spread(spreads, i, j, 2)
            f[26] = f[25] - strangers[0]
            f = f[27:]
            f = f[write_alike(above, i, j, t, f) :]
            f[0] = np.log(1.0 + r)
            for a in range(about_items.shape[1]):
                f[1 + 2 * a] = about_items[i, a]
                f[2 + 2 * a] = about_items[j, a]
            f[11:14] = collection
        for r in range(k):
            place[indices[i, r]] = -1


@compiled
def _log_odds(p):
    return np.log(p + 1e-4) - np.log(1 - p + 1e-4)
