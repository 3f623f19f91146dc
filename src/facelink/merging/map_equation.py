r"""Merging by the map equation: clusters in which a random walk on the links stays long.

The two-level map equation (Rosvall and Bergstrom 2008) is the mean number of
bits that describe a step of the walk, given modules m with the share
:math:`p_m` of all visits and the share :math:`q_m` of all steps that leave m:

.. math::

    L = f(q) - 2 \sum_m f(q_m) - \sum_i f(p_i) + \sum_m f(q_m + p_m),
    \quad q = \sum_m q_m, \quad f(x) = x \log_2 x

Modules that the walk rarely leaves make it short. Unlike connected components,
one wrong link between two people does not join them: the walk seldom takes it.
Nobody has to say how large a person may be.

The search: move single nodes to the neighbouring module that shortens L most,
until none moves; then modules as wholes, and so on. Then again from the modules
found: single nodes, and the parts into which each module falls on its own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array

from facelink.compiled import compiled
from facelink.links import Pairs
from facelink.merging.components import check_share

ROUNDS = 10  # at most
ENOUGH = 1e-5  # stop when a round shortens L by less than this share
LARGE, WINDOW = 65_536, 4096  # nodes, from which on the next are tried among so many


def merge_map_equation(pairs: Pairs, *, threshold: float = 0.6, seed: int = 0) -> NDArray[np.int64]:
    """Cut the links below a likelihood and minimise the map equation over the rest.

    Parameters
    ----------
    pairs : Pairs
    threshold : float
        Links of at least this likelihood count, with their likelihood as the
        weight. Rising, it splits more.
    seed : int
        Of the order in which nodes are tried. The same seed gives the same labels.

    Returns
    -------
    (n,) int array of labels
    """
    check_share("threshold", threshold)
    kept = pairs.at_least(threshold)
    return find_modules(kept.both_ways(), order=kept.order, seed=seed)[0]


def find_modules(
    links: csr_array, *, order: NDArray[np.int64] | None = None, seed: int = 0
) -> tuple[NDArray[np.int64], float]:
    """Modules of a symmetric graph and their code length in bits per step.

    ``order`` is one in which linked nodes are near one another: in a large graph they are
    tried about in this order, so that what is looked at is in the cache.
    """
    n_nodes = links.shape[0]
    total = links.data.sum(dtype=np.float64)
    if total == 0:
        return np.arange(n_nodes), 0.0
    # Float32 for the links, of which there may be a hundred million; sums are in float64.
    flow = csr_array(
        (links.data * np.float32(1 / total), links.indices, links.indptr), shape=links.shape
    )
    visits = _sum_rows(flow.indptr, flow.data)
    rng = np.random.default_rng(seed)
    if n_nodes <= LARGE:
        order = None

    modules = _grow(flow, visits, np.arange(n_nodes), rng, order)
    length = code_length(flow, visits, modules)
    for _ in range(ROUNDS):
        before = length
        for single in (True, False):  # nodes, then the parts of the modules as they are now
            if single:
                tuned = _grow(flow, visits, modules, rng, order)
            else:
                parts = _parts(flow, modules, rng, order)
                tuned = _regroup(flow, visits, parts, modules, rng)
            tuned_length = code_length(flow, visits, tuned)
            if tuned_length < length:
                modules, length = tuned, tuned_length
        if length > before * (1 - ENOUGH):
            break
    return modules, length


def code_length(flow: csr_array, visits: NDArray[np.float64], modules: NDArray[np.int64]) -> float:
    """The map equation L, in bits per step."""
    n_modules = int(modules.max()) + 1
    exits = _exits(flow.indptr, flow.indices, flow.data, modules, n_modules)
    inside = _sum_by(modules, visits, n_modules)
    return float(
        _plogp(exits.sum())
        - 2 * _plogp(exits).sum()
        - _plogp(visits).sum()
        + _plogp(exits + inside).sum()
    )


def _plogp(x: NDArray[np.float64] | float) -> NDArray[np.float64]:
    x = np.asarray(x, np.float64)
    return x * np.log2(x, out=np.zeros_like(x), where=x > 0)


def _grow(
    flow: csr_array,
    visits: NDArray[np.float64],
    modules: NDArray[np.int64],
    rng: np.random.Generator,
    order: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """Move nodes, then the modules found as wholes, and so on until nothing moves."""
    modules = _move(flow, visits, modules, rng, order)
    while True:
        grouped, group_visits = _aggregate(flow, visits, modules)
        joined = _move(grouped, group_visits, np.arange(len(group_visits)), rng)
        if joined.max() + 1 == len(joined):  # they are numbered without gaps
            return modules
        modules = _renumber(joined[modules])


def _regroup(
    flow: csr_array,
    visits: NDArray[np.float64],
    parts: NDArray[np.int64],
    modules: NDArray[np.int64],
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Move parts of modules, starting from the modules that they are in, then grow."""
    grouped, part_visits = _aggregate(flow, visits, parts)
    module_of_part = np.empty(len(part_visits), np.int64)
    module_of_part[parts] = modules
    found = _grow(grouped, part_visits, module_of_part, rng)
    return _renumber(found[parts])


def _parts(
    flow: csr_array,
    modules: NDArray[np.int64],
    rng: np.random.Generator,
    order: NDArray[np.int64] | None,
) -> NDArray[np.int64]:
    """The modules of the graph without the links between modules."""
    inside = _inside(flow.indptr, flow.indices, flow.data, modules)
    alone = csr_array(inside, shape=flow.shape)
    visits = _sum_rows(alone.indptr, alone.data)
    return _grow(alone, visits, np.arange(flow.shape[0]), rng, order)


def _aggregate(
    flow: csr_array, visits: NDArray[np.float64], modules: NDArray[np.int64]
) -> tuple[csr_array, NDArray[np.float64]]:
    """The graph whose nodes are the modules; what stays inside one is left out."""
    n_modules = int(modules.max()) + 1
    rows, columns, between = _between(flow.indptr, flow.indices, flow.data, modules)
    grouped = coo_array((between, (rows, columns)), shape=(n_modules, n_modules)).tocsr()
    return grouped, _sum_by(modules, visits, n_modules)


def _sum_by(
    modules: NDArray[np.int64], values: NDArray[np.float64], n_modules: int
) -> NDArray[np.float64]:
    return np.bincount(modules, weights=values, minlength=n_modules).astype(np.float64)


def _renumber(labels: NDArray[np.integer]) -> NDArray[np.int64]:
    """From 0 on without gaps, in the same order; there are no more labels than nodes."""
    there = np.zeros(int(labels.max()) + 1, bool)
    there[labels] = True
    return (np.cumsum(there) - 1)[labels]


def _move(
    flow: csr_array,
    visits: NDArray[np.float64],
    modules: NDArray[np.int64],
    rng: np.random.Generator,
    order: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    moved = modules.astype(np.int32)
    if order is None:
        order = rng.permutation(len(visits))
    else:  # at random, but not far from where they are
        order = order[np.argsort(np.arange(len(order)) // WINDOW + rng.random(len(order)))]
    _move_nodes(flow.indptr, flow.indices, flow.data, visits, moved, order)
    return _renumber(moved)


@compiled
def _f(x):
    return x * np.log2(x) if x > 1e-300 else 0.0


@compiled
def _exits(starts, columns, flow, modules, n_modules):
    """The flow out of each module."""
    exits = np.zeros(n_modules)
    for i in range(len(starts) - 1):
        for e in range(starts[i], starts[i + 1]):
            if modules[columns[e]] != modules[i]:
                exits[modules[i]] += flow[e]
    return exits


@compiled
def _sum_rows(starts, flow):
    sums = np.zeros(len(starts) - 1)
    for i in range(len(sums)):
        for e in range(starts[i], starts[i + 1]):
            sums[i] += flow[e]
    return sums


@compiled
def _inside(starts, columns, flow, modules):
    """The links inside modules: flow, columns and starts of rows."""
    rows = np.zeros_like(starts)
    for i in range(len(starts) - 1):
        rows[i + 1] = rows[i]
        for e in range(starts[i], starts[i + 1]):
            rows[i + 1] += modules[columns[e]] == modules[i]
    kept_columns, kept = np.empty(rows[-1], columns.dtype), np.empty(rows[-1], flow.dtype)
    count = 0
    for i in range(len(starts) - 1):
        for e in range(starts[i], starts[i + 1]):
            if modules[columns[e]] == modules[i]:
                kept_columns[count], kept[count] = columns[e], flow[e]
                count += 1
    return kept, kept_columns, rows


@compiled
def _between(starts, columns, flow, modules):
    """The links between modules: the module at either end, and the flow."""
    count = 0
    for i in range(len(starts) - 1):
        for e in range(starts[i], starts[i + 1]):
            count += modules[columns[e]] != modules[i]
    first, second = np.empty(count, np.int32), np.empty(count, np.int32)
    along = np.empty(count)
    count = 0
    for i in range(len(starts) - 1):
        for e in range(starts[i], starts[i + 1]):
            if modules[columns[e]] != modules[i]:
                first[count], second[count] = modules[i], modules[columns[e]]
                along[count] = flow[e]
                count += 1
    return first, second, along


@compiled
def _move_nodes(starts, columns, flow, visits, modules, order):
    """Move each node to the neighbouring module that shortens L most, until none moves."""
    n_nodes = len(visits)
    # Of each module, side by side, because they are needed together and far from the cache: the
    # share of visits, that of steps that leave it, its members, and the flow into it from the
    # node at hand.
    about = np.zeros((n_nodes, 4))
    inside, exits, members, to_module = about[:, 0], about[:, 1], about[:, 2], about[:, 3]
    for i in range(n_nodes):
        inside[modules[i]] += visits[i]
        members[modules[i]] += 1
        for e in range(starts[i], starts[i + 1]):
            if modules[columns[e]] != modules[i]:
                exits[modules[i]] += flow[e]
    all_exits = exits.sum()
    empty = np.empty(n_nodes, np.int64)  # a stack of modules without members
    n_empty = 0
    for m in range(n_nodes):
        if members[m] == 0:
            empty[n_empty] = m
            n_empty += 1

    touched = np.empty(n_nodes, np.int64)
    waiting = np.ones(n_nodes, np.bool_)  # whose surroundings have changed
    n_waiting = n_nodes
    while n_waiting > 0:
        for position in range(n_nodes):
            i = order[position]
            if not waiting[i]:
                continue
            waiting[i] = False
            n_waiting -= 1
            own = modules[i]
            n_touched = 0
            leaving = 0.0
            for e in range(starts[i], starts[i + 1]):
                if columns[e] == i:
                    continue
                m = modules[columns[e]]
                if to_module[m] == 0.0:
                    touched[n_touched] = m
                    n_touched += 1
                to_module[m] += flow[e]
                leaving += flow[e]
            p = visits[i]
            own_exits = exits[own] - leaving + 2 * to_module[own]  # without the node
            if members[own] == 1:
                own_exits = 0.0
            own_inside = inside[own] - p
            taken_away = (
                -2 * (_f(own_exits) - _f(exits[own]))
                + _f(own_exits + own_inside)
                - _f(exits[own] + inside[own])
            )
            best, best_change, best_exits = own, -1e-12, 0.0
            # The neighbouring modules and, to break out, one without members.
            n_choices = n_touched + (1 if members[own] > 1 and n_empty > 0 else 0)
            for c in range(n_choices):
                m = touched[c] if c < n_touched else empty[n_empty - 1]
                if m == own:
                    continue
                m_exits = exits[m] + leaving - 2 * to_module[m]
                change = (
                    _f(all_exits - exits[own] - exits[m] + own_exits + m_exits)
                    - _f(all_exits)
                    + taken_away
                    - 2 * (_f(m_exits) - _f(exits[m]))
                    + _f(m_exits + inside[m] + p)
                    - _f(exits[m] + inside[m])
                )
                if change < best_change:
                    best, best_change, best_exits = m, change, m_exits
            for c in range(n_touched):
                to_module[touched[c]] = 0.0
            if best == own:
                continue
            if members[best] == 0:
                n_empty -= 1
            all_exits += own_exits + best_exits - exits[own] - exits[best]
            exits[own], exits[best] = own_exits, best_exits
            inside[own] = own_inside
            inside[best] += p
            members[own] -= 1
            members[best] += 1
            if members[own] == 0:
                exits[own] = inside[own] = 0.0
                empty[n_empty] = own
                n_empty += 1
            modules[i] = best
            for e in range(starts[i], starts[i + 1]):
                j = columns[e]
                if not waiting[j] and modules[j] != best:
                    waiting[j] = True
                    n_waiting += 1
