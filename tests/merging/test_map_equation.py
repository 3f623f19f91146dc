from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array, csr_array
from test_merging import pairs_of, same

from facelink.merging import map_equation
from facelink.merging.map_equation import code_length, find_modules, merge_map_equation


def obvious_length(weights: np.ndarray, modules: np.ndarray) -> float:
    """The map equation as the mean of two kinds of code: between modules, and inside each."""
    flow = weights / weights.sum()
    visits = flow.sum(axis=1)

    def entropy(shares: np.ndarray) -> float:
        shares = shares[shares > 0] / shares.sum() if shares.sum() > 0 else shares[:0]
        return float(-(shares * np.log2(shares)).sum())

    numbers = np.unique(modules)
    exits = np.array([flow[modules == m][:, modules != m].sum() for m in numbers])
    length = exits.sum() * entropy(exits)
    for m, leaving in zip(numbers, exits, strict=True):
        uses = np.append(visits[modules == m], leaving)
        length += uses.sum() * entropy(uses)
    return length


def partitions(n: int):
    """All partitions of n items, as labels."""
    if n == 1:
        yield [0]
        return
    for labels in partitions(n - 1):
        for label in range(max(labels) + 2):
            yield [*labels, label]


def symmetric(n: int, edges: dict[tuple[int, int], float]) -> np.ndarray:
    weights = np.zeros((n, n))
    for (a, b), weight in edges.items():
        weights[a, b] = weights[b, a] = weight
    return weights


@st.composite
def small_graphs(draw):
    n = draw(st.integers(2, 7))
    every = [(a, b) for a in range(n) for b in range(a + 1, n)]
    chosen = draw(st.lists(st.sampled_from(every), unique=True, min_size=1))
    return symmetric(n, {e: draw(st.sampled_from([0.2, 0.6, 0.8, 1.0])) for e in chosen})


def length_of(weights: np.ndarray, modules) -> float:
    flow = csr_array(weights / weights.sum())
    return code_length(flow, np.asarray(flow.sum(axis=1)).ravel(), np.asarray(modules))


@settings(max_examples=60, deadline=None)
@given(small_graphs(), st.integers(0, 10**6))
def test_the_code_length_is_that_of_the_two_codes(weights, seed):
    modules = np.random.default_rng(seed).integers(0, 3, len(weights))
    assert length_of(weights, modules) == pytest.approx(obvious_length(weights, modules), abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(small_graphs())
def test_small_graphs_get_nearly_the_shortest_code_there_is(weights):
    modules, length = find_modules(csr_array(weights))
    assert length == pytest.approx(obvious_length(weights, modules), abs=1e-6)
    shortest = min(obvious_length(weights, np.array(labels)) for labels in partitions(len(weights)))
    assert length <= shortest * 1.03 + 1e-6


def test_a_bridge_does_not_join_two_groups():
    edges = {
        (a, b): 0.9 for group in (range(5), range(5, 10)) for a in group for b in group if a < b
    }
    edges[4, 5] = 0.9
    assert same(merge_map_equation(pairs_of(10, edges)), [0] * 5 + [1] * 5)


def test_links_below_the_threshold_do_not_count():
    edges = {(0, 1): 0.9, (1, 2): 0.59, (2, 3): 0.9}
    assert same(merge_map_equation(pairs_of(4, edges)), [0, 0, 1, 1])


def test_stronger_links_decide_where_a_node_belongs():
    groups = (range(4), range(4, 8))
    edges = {(a, b): 1.0 for group in groups for a in group for b in group if a < b}
    edges |= {(a, 8): 0.95 if a < 4 else 0.61 for a in range(8)}
    labels = merge_map_equation(pairs_of(9, edges))
    assert labels[8] == labels[0] != labels[4]


def test_everyone_is_alone_without_links():
    assert same(merge_map_equation(pairs_of(3, {})), range(3))
    assert same(merge_map_equation(pairs_of(3, {(0, 1): 0.1})), range(3))


def test_a_ring_of_groups_is_found_and_the_seed_fixes_the_result():
    rng = np.random.default_rng(0)
    n_groups, size = 30, 12
    edges = {}
    for g in range(n_groups):
        members = range(g * size, (g + 1) * size)
        edges |= {(a, b): rng.uniform(0.7, 1) for a in members for b in members if a < b}
    for g in range(n_groups - 1):
        edges[(g + 1) * size - 1, (g + 1) * size] = 0.9
    pairs = pairs_of(n_groups * size, edges)
    labels = merge_map_equation(pairs, seed=3)
    assert same(labels, np.repeat(np.arange(n_groups), size))
    np.testing.assert_array_equal(labels, merge_map_equation(pairs, seed=3))


def test_one_large_group_stays_whole():
    # 400 items, each joined to its 20 nearest on a circle of similar faces and at random.
    rng = np.random.default_rng(1)
    edges = {}
    for a in range(400):
        for b in rng.choice(400, 40, replace=False):
            if a != b:
                edges[min(a, int(b)), max(a, int(b))] = rng.uniform(0.7, 1)
    assert len(set(merge_map_equation(pairs_of(400, edges)).tolist())) == 1


@pytest.mark.parametrize("seed", range(20))
def test_only_parts_of_the_modules_at_hand_are_moved(monkeypatch, seed):
    """Parts of modules that are no more would be given modules that do not exist."""
    rng = np.random.default_rng(seed)
    ends = rng.integers(40, size=(2, 100))
    links = coo_array((rng.random(100), ends), shape=(40, 40)).tocsr()
    links.setdiag(0)
    regroup = map_equation._regroup

    def checked(flow, visits, parts, modules, rng):
        of_part = np.full(parts.max() + 1, -1)
        of_part[parts] = modules
        np.testing.assert_array_equal(of_part[parts], modules)
        return regroup(flow, visits, parts, modules, rng)

    monkeypatch.setattr(map_equation, "_regroup", checked)
    map_equation.find_modules((links + links.T).tocsr())
