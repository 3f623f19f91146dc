"""Links that speak for two clusters being one person, however unlike they are as wholes.

Somebody who has changed over the years may be two clusters whose means are hardly more alike
than strangers', with a few photos of the time between that are surely one person with photos
on either side. One photo in the wrong cluster may have many such links, but it is one witness:
no item counts twice. And only clusters that are sure of themselves are heard: those of blurred
strangers have dozens of sure links between them, but as many doubtful ones inside.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from facelink.compiled import compiled
from facelink.links import Links
from facelink.links.pairs import joined_value

Labels = NDArray[np.int64]

SURE = np.float32(0.9)  # the likelihood from which a link is a witness
SURE_ENOUGH = np.float32(0.79)  # of one direction, for the mean of both to be sure
# The mean likelihood inside a cluster from which it is heard: people had .99, blurred strangers
# .88 at most.
CERTAIN = 0.95


class Witnesses:
    """The sure links between the clusters of a collection.

    Parameters
    ----------
    links : Links
    cluster_of : (n,) int array
        Clusters numbered from 0.
    """

    def __init__(self, links: Links, cluster_of: Labels) -> None:
        self.cluster_of = cluster_of
        n_clusters = int(cluster_of.max()) + 1
        seen = links.graph.indices, links.graph.back, links.likelihood, cluster_of
        # Of each cluster: the likelihoods of the links inside it, summed, and their number.
        self.inside, n_sure = _sum_inside(*seen, n_clusters)
        ends, likelihood = np.empty((2, n_sure), np.int32), np.empty(n_sure, np.float32)
        _list_sure(*seen, ends, likelihood)
        self.ends = ends[:, np.lexsort((ends[1], ends[0], -likelihood))]  # the surest first

    def count(self, first: Labels, second: Labels) -> NDArray[np.float64]:
        """How many there are between each two clusters that are certain of themselves."""
        n_clusters = self.inside.shape[1]
        certain = self.inside[0] >= CERTAIN * np.maximum(self.inside[1], 1)

        def number(one: Labels, other: Labels) -> Labels:
            return np.minimum(one, other).astype(np.int64) * n_clusters + np.maximum(one, other)

        ends = self.cluster_of[self.ends]
        heard = (ends[0] != ends[1]) & certain[ends].all(axis=0)
        pairs = number(*ends[:, heard])
        order = np.argsort(pairs, kind="stable")
        pairs, items = pairs[order], self.ends[:, heard][:, order]
        speaking = _speaking(*items, pairs, np.full(len(self.cluster_of), -1))
        known, counts = np.unique(pairs[speaking], return_counts=True)
        if not len(known):
            return np.zeros(len(first))
        asked = number(first, second)
        at = np.minimum(np.searchsorted(known, asked), len(known) - 1)
        return np.where(known[at] == asked, counts[at], 0.0)

    def move(self, moved: Labels) -> None:
        """Join clusters to those that they move to. Links between the two are left out."""
        going = np.flatnonzero(moved != np.arange(len(moved)))
        for values in self.inside:
            np.add.at(values, moved[going], values[going])
            values[going] = 0
        self.cluster_of = moved[self.cluster_of]


@compiled
def _speaking(first, second, pairs, heard):
    """Which links share no item with a surer one of their pair of clusters."""
    speaking = np.zeros(len(pairs), np.bool_)
    for link in range(len(pairs)):
        i, j = first[link], second[link]
        if heard[i] != pairs[link] and heard[j] != pairs[link]:
            heard[i] = heard[j] = pairs[link]
            speaking[link] = True
    return speaking


@compiled
def _sum_inside(neighbors, back, likelihood, cluster_of, n_clusters):
    """Of each cluster what is inside it, and how many sure links there are between clusters."""
    inside = np.zeros((2, n_clusters))
    n_sure = 0
    n_items, k = likelihood.shape
    for i in range(n_items):
        for place in range(k):
            one_cluster = cluster_of[i] == cluster_of[neighbors[i, place]]
            if one_cluster or likelihood[i, place] >= SURE_ENOUGH:
                value, mine = joined_value(neighbors, back, likelihood, i, place)
                if mine and one_cluster:
                    inside[0, cluster_of[i]] += value
                    inside[1, cluster_of[i]] += 1
                elif mine:
                    n_sure += value >= SURE
    return inside, n_sure


@compiled
def _list_sure(neighbors, back, likelihood, cluster_of, ends, joined):
    """List the sure links between clusters, the lesser item first."""
    count = 0
    n_items, k = likelihood.shape
    for i in range(n_items):
        for place in range(k):
            if likelihood[i, place] < SURE_ENOUGH:
                continue
            j = np.int64(neighbors[i, place])
            if cluster_of[i] != cluster_of[j]:
                value, mine = joined_value(neighbors, back, likelihood, i, place)
                if mine and value >= SURE:
                    ends[0, count], ends[1, count], joined[count] = min(i, j), max(i, j), value
                    count += 1
