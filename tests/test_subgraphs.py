from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from facelink import knn_graph
from facelink.errors import InputError
from facelink.subgraphs import Context, build_subgraphs


def obvious_subgraph(neighbors, pivot, context):
    """The paper's three steps with sets: nodes in order of discovery, and edges."""
    found, frontier = [], [pivot]
    for k in context.hops:
        reached = []
        for item in frontier:
            for other in neighbors[item][:k]:
                if other != pivot and other not in found and other not in reached:
                    reached.append(int(other))
        found += reached
        frontier = reached
    nodes = [*found, pivot] if context.include_pivot else found
    edges = set()
    for q in nodes:
        for r in neighbors[q][: context.u]:
            if r in nodes and r != q:
                edges |= {(q, int(r)), (int(r), q)}
    return nodes, edges


def parts(subgraphs):
    """The nodes and edges of each subgraph, as items."""
    for s in range(len(subgraphs)):
        start, stop = subgraphs.node_starts[s : s + 2]
        nodes = subgraphs.nodes[start:stop].tolist()
        edges = set()
        for q in range(start, stop):
            for r in subgraphs.edges[subgraphs.edge_starts[q] : subgraphs.edge_starts[q + 1]]:
                assert start <= r < stop
                assert (subgraphs.nodes[q], subgraphs.nodes[r]) not in edges
                edges.add((int(subgraphs.nodes[q]), int(subgraphs.nodes[r])))
        yield nodes, edges


@st.composite
def graphs(draw):
    n = draw(st.integers(2, 25))
    k = draw(st.integers(1, n - 1))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    neighbors = np.array([rng.permutation(np.delete(np.arange(n), i))[:k] for i in range(n)])
    hops = tuple(draw(st.lists(st.integers(1, k), min_size=1, max_size=3)))
    context = Context(hops, draw(st.integers(1, k)), draw(st.booleans()))
    pivots = rng.permutation(n)[: draw(st.integers(1, n))]
    return neighbors.astype(np.int32), pivots, context


@settings(max_examples=200, deadline=None)
@given(graphs())
def test_equals_the_obvious_version(case):
    neighbors, pivots, context = case
    built = build_subgraphs(neighbors, pivots, context)
    for (nodes, edges), pivot in zip(parts(built), pivots, strict=True):
        wanted_nodes, wanted_edges = obvious_subgraph(neighbors, pivot, context)
        assert len(nodes) == len(set(nodes))
        assert set(nodes) == set(wanted_nodes)
        assert edges == wanted_edges
        first_hop = neighbors[pivot][: context.hops[0]].tolist()
        assert nodes[: built.n_links] == first_hop  # in the order of the graph


def test_edges_are_sorted_and_go_both_ways(faces):
    neighbors = knn_graph(faces.embeddings, 20).indices
    built = build_subgraphs(neighbors, np.arange(30), Context((15, 4), 6))
    targets = np.repeat(np.arange(len(built.nodes)), built.degrees)
    pairs = list(zip(targets.tolist(), built.edges.tolist(), strict=True))
    assert pairs == sorted(pairs)
    assert {(b, a) for a, b in pairs} == set(pairs)


def test_the_papers_figure_in_small():
    # A line 0 - 1 - 2 - 3 - 4: each lists the nearer side first.
    neighbors = np.array([[1, 2], [0, 2], [1, 3], [2, 4], [3, 2]], np.int32)
    ((nodes, edges),) = parts(build_subgraphs(neighbors, np.array([0]), Context((1, 2), 1)))
    assert nodes == [1, 2]  # 0, the pivot, is not a node
    assert edges == {(1, 2), (2, 1)}  # 2 lists 1; 1 lists 0, which is not there


def test_a_node_may_have_no_edge():
    neighbors = np.array([[1, 2], [0, 2], [0, 1]], np.int32)
    built = build_subgraphs(neighbors, np.array([0]), Context((2,), 1))
    assert built.degrees.tolist() == [0, 0]  # both list the pivot alone


def test_a_narrow_graph_gives_what_it_has():
    neighbors = np.array([[1], [0]], np.int32)
    built = build_subgraphs(neighbors, np.array([0, 1]), Context((80, 5), 5))
    assert built.n_links == 1
    assert built.nodes.tolist() == [1, 0]


def test_nodes_grow_beyond_the_first_allocation():
    n = 3000
    neighbors = (np.arange(n)[:, None] + np.arange(1, 1501)) % n
    built = build_subgraphs(neighbors.astype(np.int32), np.array([0, 7]), Context((1500, 2), 3))
    assert np.diff(built.node_starts).tolist() == [1502, 1502]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"hops": ()}, "hops should be"),
        ({"hops": (80, 0)}, "hops should be"),
        ({"hops": (80, 2.5)}, "hops should be"),
        ({"u": 0}, "u should be"),
    ],
)
def test_impossible_contexts_are_refused(options, said):
    with pytest.raises(InputError, match=said):
        Context(**options)
