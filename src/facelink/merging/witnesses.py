"""Clusters that several photos surely link, however unlike they are as wholes.

Somebody who has changed over the years may be two clusters whose means are as unlike as
strangers', with a few photos of the time between that are surely one person with photos on
either side. One photo in the wrong cluster may have many such links, but it is one witness: no
item counts twice. And only clusters that are sure of themselves are heard: those of blurred
strangers have dozens of sure links between them, but as many doubtful ones inside.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from facelink.compiled import compiled
from facelink.links import Links
from facelink.links.pairs import joined_value
from facelink.merging.propagation import root

SURE = 0.9  # the likelihood from which a link is a witness
WITNESSES = 4  # strangers had two at most, a person in two parts five
# The mean likelihood inside a cluster from which it is heard: people had .99, blurred strangers
# .88 at most.
CERTAIN = 0.95


def join_witnessed(
    labels: NDArray[np.int64], links: Links, *, sure: float = SURE
) -> NDArray[np.int64]:
    """Join clusters sure of themselves between which four sure links or more share no item.

    Parameters
    ----------
    labels : (n,) int array
        The cluster of each item.
    links : Links
    sure : float
        The likelihood from which a link counts; rising, it joins less.

    Returns
    -------
    (n,) int array
    """
    clusters, cluster_of = np.unique(labels, return_inverse=True)
    seen = links.graph.indices, links.graph.back, links.likelihood, cluster_of
    certain = _mean_inside(*seen, len(clusters)) >= CERTAIN
    heard = certain, np.float32(sure)
    n_links = _list_between(*seen, *heard, np.empty((0, 2), np.int64), np.empty(0, np.float32))
    ends, likelihood = np.empty((n_links, 2), np.int64), np.empty(n_links, np.float32)
    _list_between(*seen, *heard, ends, likelihood)
    between = np.sort(cluster_of[ends], axis=1)
    # Pair of clusters by pair of clusters, the surest link first.
    order = np.lexsort((ends[:, 1], ends[:, 0], -likelihood, between[:, 1], between[:, 0]))
    becomes = np.arange(len(clusters))
    _join(ends[order], between[order], becomes, np.full(len(labels), -1))
    return clusters[becomes[cluster_of]]


@compiled
def _mean_inside(neighbors, back, likelihood, cluster_of, n_clusters):
    """The mean likelihood of the links inside each cluster, 0 where there is none."""
    total, count = np.zeros(n_clusters), np.zeros(n_clusters)
    n_items, k = likelihood.shape
    for i in range(n_items):
        for place in range(k):
            if cluster_of[i] == cluster_of[neighbors[i, place]]:
                value, mine = joined_value(neighbors, back, likelihood, i, place)
                if mine:
                    total[cluster_of[i]] += value
                    count[cluster_of[i]] += 1
    return total / np.maximum(count, 1)


@compiled
def _list_between(neighbors, back, likelihood, cluster_of, certain, sure, ends, values):
    """List the sure links between certain clusters, as many as fit; how many there are."""
    n_items, k = likelihood.shape
    count = 0
    for i in range(n_items):
        if not certain[cluster_of[i]]:
            continue
        for place in range(k):
            j = neighbors[i, place]
            if cluster_of[i] != cluster_of[j] and certain[cluster_of[j]]:
                value, mine = joined_value(neighbors, back, likelihood, i, place)
                if mine and value >= sure:
                    if count < len(values):
                        ends[count, 0], ends[count, 1], values[count] = min(i, j), max(i, j), value
                    count += 1
    return count


@compiled
def _join(ends, between, becomes, heard):
    """Join pairs of clusters that have enough witnesses; ``heard``: the pair an item spoke for."""
    pair, witnesses = -1, 0
    for link in range(len(ends)):
        a, b = between[link]
        if link == 0 or a != between[link - 1, 0] or b != between[link - 1, 1]:
            pair, witnesses = pair + 1, 0
        i, j = ends[link]
        if heard[i] == pair or heard[j] == pair:
            continue
        heard[i] = heard[j] = pair
        witnesses += 1
        if witnesses == WITNESSES:
            one, other = root(becomes, a), root(becomes, b)
            becomes[max(one, other)] = min(one, other)
    for cluster in range(len(becomes)):
        becomes[cluster] = root(becomes, cluster)
