r"""Conditional pairwise clustering (Shi, Otto and Jain, *Face clustering: representation and
pairwise constraints*, 2018), its variant on the kNN graph.

A conditional random field over y_ij ∈ {0, 1}, whether i and j are one person, for the
pairs of the kNN graph:

.. math::

    \log P(y) = \sum_{ij} \theta_{ij} y_{ij}
              - \alpha \sum_{ijl} [\, y_{ij} + y_{il} + y_{jl} = 2 \,] + const

The unary θ = log p / (1 − p) is from the similarity: p rises linearly from 0 at
similarity 0 to ½ at the threshold, and on to 1 at similarity 1. A triplet with exactly
two links is not transitive and costs α. The y of highest probability is sought by loopy
belief propagation (max-product). In log-odds, the message of a triplet to one of its
pairs, of the other two with odds p and q without this triplet's own message, is

.. math::

    \max(0, p + q, p - \alpha, q - \alpha) - \max(0, p, q, p + q - \alpha)

and a pair's belief is its unary and the messages of all its triplets. Pairs of a belief
above ½, log-odds above 0, are merged transitively.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facelink.baselines.adjacency import join, nearest_columns
from facelink.baselines.pairs import similarity_pairs
from facelink.baselines.sizes import check_size
from facelink.compiled import compiled, over_rows
from facelink.embeddings import UnitRows
from facelink.errors import InputError
from facelink.links import Pairs
from facelink.merging import by_size
from facelink.neighbors import KnnGraph

GRID: tuple[float, ...] = tuple(round(0.1 + 0.04 * i, 2) for i in range(22))  # 0.10 to 0.94

SURE = 0.99  # no similarity alone is surer than that: log-odds stay within ±4.6
NARROWEST = 1e-3  # of the spans over which p rises


def conpac(
    embeddings: ArrayLike | UnitRows,
    *,
    threshold: float,
    graph: KnnGraph | None = None,
    k: int = 40,
    penalty: float = 1.0,
    n_rounds: int = 20,
    damping: float = 0.5,
) -> NDArray[np.int64]:
    """Link neighbours by their similarity and by whether the links around them are transitive.

    Parameters
    ----------
    embeddings : (n, d) array
    threshold : float
        The similarity at which the unary is indifferent. Rising, it splits more.
    graph : KnnGraph, optional
        At least k wide; made from the embeddings by default.
    k : int
        Neighbours per item. More of them give more triplets: time and memory grow as k².
    penalty : float
        α. Rising, the triplets count more beside the similarity; 0 leaves the
        connected components of the pairs above the threshold.
    n_rounds : int
        Rounds of messages. There is no test of convergence.
    damping : float
        From 0 to below 1: the share of its old value that a message keeps in a round.
        Rising, it takes more rounds, and swings less.

    Returns
    -------
    (n,) int array
        Labels from 0 for the largest cluster on; an item alone has one of its own.

    Notes
    -----
    From memory of the source, which could not be read again. Open were: the form of the
    unary (here without a scale to choose, so that it suits embeddings of any spread),
    what becomes of triplets of which two items are not neighbours (left out: a person
    with more than k photos would be torn by them), and α, rounds and damping (from α =
    0.3 on the result hardly changes). Max-product rather than sum-product since the most
    probable y is sought; beside, dozens of triplets of indifferent pairs, each with a
    slight bias for "not linked", would in a sum-product drown the similarities.

    Takes time and 24 bytes for each of up to ⅔ n k² triplets per round: at 70,000
    items at most 1.7 GiB, and 100 n k bytes more.

    Examples
    --------
    >>> import facelink
    >>> from facelink.baselines.conpac import conpac
    >>> faces = facelink.load_sample()
    >>> labels = conpac(faces.embeddings, threshold=0.45)
    >>> facelink.metrics.bcubed(faces.labels, labels).f > 0.7
    True
    """
    prepared = prepare_conpac(
        embeddings, graph=graph, k=k, penalty=penalty, n_rounds=n_rounds, damping=damping
    )
    return prepared(threshold)


def prepare_conpac(
    embeddings: ArrayLike | UnitRows,
    *,
    graph: KnnGraph | None = None,
    k: int = 40,
    penalty: float = 1.0,
    n_rounds: int = 20,
    damping: float = 0.5,
) -> Callable[[float], NDArray[np.int64]]:
    """Find the triplets once; returns the labels as a function of the threshold."""
    rows = UnitRows.of(embeddings)
    check_size("ConPaC", len(rows), len(rows) * k * (100 + 16 * k))
    if not 0 <= damping < 1:
        raise InputError(f"damping should be a number from 0 to below 1, got {damping!r}.")
    pairs = similarity_pairs(nearest_columns("ConPaC", rows, graph, k))
    triplets = find_triplets(pairs)

    def labels_at(threshold: float) -> NDArray[np.int64]:
        unary = log_odds(pairs.likelihood, threshold)
        belief = propagate_beliefs(
            unary, triplets, penalty=penalty, n_rounds=n_rounds, damping=damping
        )
        linked = belief > 0
        return by_size(join(pairs.n_items, pairs.first[linked], pairs.second[linked]))

    return labels_at


def log_odds(similarity: NDArray[np.float32], threshold: float) -> NDArray[np.float32]:
    """The unary θ of each similarity."""
    span = np.where(similarity < threshold, threshold, 1 - threshold)
    p = 0.5 + 0.5 * (similarity - threshold) / np.maximum(span, NARROWEST)
    p = np.clip(p, 1 - SURE, SURE)
    return np.log(p / (1 - p)).astype(np.float32)


def find_triplets(pairs: Pairs) -> NDArray[np.int32]:
    """The triplets of items of which each two are a pair, as the three pairs: (t, 3)."""
    starts = np.searchsorted(pairs.first, np.arange(pairs.n_items + 1))
    n_triplets = _list_triplets(starts, pairs.second, np.empty((0, 3), np.int32))
    triplets = np.empty((n_triplets, 3), np.int32)
    _list_triplets(starts, pairs.second, triplets)
    return triplets


@compiled
def _list_triplets(starts, second, triplets):
    """Count the triplets and, where there is room for them, write them down."""
    n_items = len(starts) - 1
    pair_with = np.full(n_items, -1, np.int64)  # pair_with[x]: the pair (i, x), if seen_by[x] == i
    seen_by = np.full(n_items, -1, np.int64)
    count = 0
    for i in range(n_items):
        for ij in range(starts[i], starts[i + 1]):
            seen_by[second[ij]], pair_with[second[ij]] = i, ij
        for ij in range(starts[i], starts[i + 1]):
            j = second[ij]
            for jl in range(starts[j], starts[j + 1]):
                if seen_by[second[jl]] == i:
                    if len(triplets):
                        triplets[count, 0] = ij
                        triplets[count, 1] = pair_with[second[jl]]
                        triplets[count, 2] = jl
                    count += 1
    return count


def propagate_beliefs(
    unary: NDArray[np.float32],
    triplets: NDArray[np.int32],
    *,
    penalty: float,
    n_rounds: int,
    damping: float,
) -> NDArray[np.float32]:
    """The belief of each pair as log-odds, after so many rounds of messages from its triplets."""
    messages = np.zeros(triplets.shape, np.float32)
    belief = unary.copy()
    pace = np.float32(1 - damping)

    def work(start: int, stop: int) -> None:
        _send(triplets, belief, np.float32(penalty), pace, start, stop, messages)

    for _ in range(n_rounds):
        over_rows(work, len(triplets))
        belief[:] = unary
        _collect(triplets, messages, belief)
    return belief


@compiled
def _send(triplets, belief, penalty, pace, start, stop, messages):
    zero = np.float32(0)
    odds = np.empty(3, np.float32)
    for t in range(start, stop):
        for side in range(3):
            odds[side] = belief[triplets[t, side]] - messages[t, side]
        for side in range(3):
            p, q = odds[(side + 1) % 3], odds[(side + 2) % 3]
            linked = max(zero, p + q, p - penalty, q - penalty)
            apart = max(zero, p, q, p + q - penalty)
            messages[t, side] += pace * (linked - apart - messages[t, side])


@compiled
def _collect(triplets, messages, belief):
    for t in range(len(triplets)):
        for side in range(3):
            belief[triplets[t, side]] += messages[t, side]
