"""Stage 2: instance pivot subgraphs (section 3.2 of the paper).

The context from which the links of a pivot p are predicted: its neighbours up
to h hops away, and edges among them. Step 2 of the paper, subtracting the
pivot's embedding from each node's, is left to whoever reads the features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from facelink.compiled import compiled, own_array
from facelink.errors import InputError


@dataclass(frozen=True)
class Context:
    """How far around a pivot its subgraph reaches.

    Attributes
    ----------
    hops : tuple of int
        Neighbours taken at each hop: ``(80, 5)`` takes the pivot's 80 nearest
        and the 5 nearest of each of these. A larger first hop predicts more
        links; a larger second one shows more of what surrounds them.
    u : int
        A node is joined to those of its u nearest neighbours that are nodes too.
    include_pivot : bool
        Whether the pivot is a node itself: not in the paper, yes in its
        reference code.
    """

    hops: tuple[int, ...] = (80, 5)  # the paper's choice for testing, as is u
    u: int = 5
    include_pivot: bool = False

    def __post_init__(self) -> None:
        hops = tuple(self.hops) if isinstance(self.hops, Sequence) else (self.hops,)
        if not hops or any(not isinstance(k, int | np.integer) or k < 1 for k in hops):
            raise InputError(
                "hops should be the neighbours to take at each hop, whole numbers from 1 "
                f"such as (80, 5), got {self.hops!r}."
            )
        if not isinstance(self.u, int | np.integer) or self.u < 1:
            raise InputError(f"u should be a whole number from 1, got {self.u!r}.")
        object.__setattr__(self, "hops", tuple(int(k) for k in hops))

    @property
    def k(self) -> int:
        """The neighbours per item that the kNN graph should hold."""
        return max(*self.hops, self.u)

    def fitted_to(self, k: int) -> Context:
        """The same context on a graph that is only k neighbours wide."""
        return Context(tuple(min(hop, k) for hop in self.hops), min(self.u, k), self.include_pivot)


@dataclass(frozen=True)
class Subgraphs:
    """The subgraphs of a batch of pivots, one after the other, without padding.

    Nodes are numbered through the whole batch; subgraph s has the nodes
    ``node_starts[s]`` to ``node_starts[s + 1]``, the pivot's 1-hop neighbours
    first, in their order in the kNN graph.

    Attributes
    ----------
    pivots : (batch,) int array
        The item at the centre of each subgraph.
    nodes : (n_nodes,) int32 array
        The item that each node is.
    node_starts : (batch + 1,) int64 array
    edge_starts : (n_nodes + 1,) int64 array
        Node q's neighbours are ``edges[edge_starts[q] : edge_starts[q + 1]]``.
    edges : (n_edges,) int32 array
        Node numbers, ascending for each node. Every edge is there in both directions.
    n_links : int
        The 1-hop nodes per subgraph: those whose link to the pivot is predicted.
    """

    pivots: NDArray[np.integer]
    nodes: NDArray[np.int32]
    node_starts: NDArray[np.int64]
    edge_starts: NDArray[np.int64]
    edges: NDArray[np.int32]
    n_links: int

    def __len__(self) -> int:
        return len(self.pivots)

    @property
    def pivot_of_node(self) -> NDArray[np.integer]:
        """(n_nodes,) the pivot whose subgraph each node belongs to."""
        return np.repeat(self.pivots, np.diff(self.node_starts))

    @property
    def link_nodes(self) -> NDArray[np.int64]:
        """(batch, n_links) the node numbers of the 1-hop neighbours."""
        return self.node_starts[:-1, None] + np.arange(self.n_links)

    @property
    def degrees(self) -> NDArray[np.int64]:
        """(n_nodes,) the number of edges at each node."""
        return np.diff(self.edge_starts)


def build_subgraphs(
    neighbors: NDArray[np.int32], pivots: NDArray[np.integer], context: Context
) -> Subgraphs:
    """Build the instance pivot subgraphs of some pivots.

    Parameters
    ----------
    neighbors : (n, k) int32 array
        Of the whole collection, nearest first: the indices of a `KnnGraph`.
    pivots : (batch,) int array
        The items to build subgraphs around.
    context : Context
        How many neighbours to take. Where the graph is narrower, all it has.

    Notes
    -----
    An edge joins two nodes where either is among the other's u nearest; no node
    is joined to itself. Linear in the nodes and edges built. Each thread keeps an
    array as long as the collection.
    """
    pivots = np.ascontiguousarray(pivots)
    context = context.fitted_to(neighbors.shape[1])
    nodes, node_starts, edge_starts, edges = _build(
        neighbors, pivots, np.array(context.hops, np.int64), context.u, context.include_pivot,
        own_array("positions", len(neighbors), np.int64, 0),
    )  # fmt: skip
    return Subgraphs(pivots, nodes, node_starts, edge_starts, edges, n_links=context.hops[0])


@compiled
def _build(neighbors, pivots, hops, u, include_pivot, position):
    batch = len(pivots)
    nodes = np.empty(256 * batch + 1024, np.int32)
    node_starts = np.zeros(batch + 1, np.int64)
    # position[item] is the item's node number plus one in the subgraph under construction,
    # and whatever an earlier subgraph, or call, left there otherwise: it counts only if that
    # node belongs to this subgraph and is that item, so nothing ever needs clearing.
    end = 0
    for s in range(batch):
        pivot, start = pivots[s], end
        hop_start = start
        for hop in range(len(hops)):
            hop_end = end if hop > 0 else start + 1
            for origin in range(hop_start, hop_end):
                item = nodes[origin] if hop > 0 else pivot
                if end + hops[hop] + 1 > len(nodes):
                    grown = np.empty(2 * len(nodes) + hops[hop], np.int32)
                    grown[:end] = nodes[:end]
                    nodes = grown
                for slot in range(hops[hop]):
                    other = neighbors[item, slot]
                    known = position[other] - 1
                    if other == pivot or (start <= known < end and nodes[known] == other):
                        continue
                    nodes[end] = other
                    position[other] = end + 1
                    end += 1
            hop_start = hop_end if hop > 0 else start
        if include_pivot:
            nodes[end] = pivot
            position[pivot] = end + 1
            end += 1
        node_starts[s + 1] = end
    nodes = nodes[:end].copy()

    # Node q lists r among its u nearest: an edge each way, once, even if r lists q as well.
    listed = np.empty((end, u), np.int32)  # the u nearest of q that are nodes of its subgraph
    mutual = np.empty((end, u), np.bool_)
    counts = np.zeros(end, np.int64)
    edge_starts = np.zeros(end + 1, np.int64)
    for s in range(batch):
        start, stop = node_starts[s], node_starts[s + 1]
        for q in range(start, stop):
            # Later subgraphs have overwritten the positions: set this one's again.
            position[nodes[q]] = q + 1
        for q in range(start, stop):
            for slot in range(u):
                other = neighbors[nodes[q], slot]
                r = position[other] - 1
                if start <= r < stop and nodes[r] == other and r != q:
                    listed[q, counts[q]] = r
                    counts[q] += 1
    for q in range(end):
        edge_starts[q + 1] += counts[q]
        for c in range(counts[q]):
            r = listed[q, c]
            mutual[q, c] = _lists(listed, counts, r, q)
            edge_starts[r + 1] += not mutual[q, c]
    for q in range(end):
        edge_starts[q + 1] += edge_starts[q]

    unsorted = np.empty(edge_starts[end], np.int32)
    filled = edge_starts[:-1].copy()
    for q in range(end):
        for c in range(counts[q]):
            r = listed[q, c]
            unsorted[filled[q]] = r
            filled[q] += 1
            if not mutual[q, c]:
                unsorted[filled[r]] = q
                filled[r] += 1
    # Turning every edge round, in ascending order of its origin, sorts them.
    edges = np.empty(edge_starts[end], np.int32)
    filled[:] = edge_starts[:-1]
    for q in range(end):
        for e in range(edge_starts[q], edge_starts[q + 1]):
            r = unsorted[e]
            edges[filled[r]] = q
            filled[r] += 1
    return nodes, node_starts, edge_starts, edges


@compiled
def _lists(listed, counts, q, r):
    """Whether r is among the u nearest of q."""
    found = False
    for c in range(counts[q]):
        found |= listed[q, c] == r
    return found
