"""Peers that group embeddings without training, each with its knob set by oracle.

The knob is chosen for the best BCubed F on the very collection that is reported:
an advantage that no user has. EVoC has none and is taken as it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from sklearn.cluster import DBSCAN, HDBSCAN

from facelink import KnnGraph, knn_graph
from facelink.compiled import compiled
from facelink.metrics import bcubed, nmi, pairwise

Labelings = Iterator[tuple[str, np.ndarray]]


def measure(truth: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """The scores of a labeling."""
    precision, recall, f = bcubed(truth, labels)
    return {
        "BCubed P": precision,
        "BCubed R": recall,
        "BCubed F": f,
        "pairwise F": pairwise(truth, labels).f,
        "NMI": nmi(truth, labels),
        "clusters": len(np.unique(labels)),
    }


def threshold_components(x: np.ndarray, graph: KnnGraph) -> Labelings:
    """Connected components of the neighbours above a similarity."""
    n, k = graph.indices.shape
    rows, columns = np.repeat(np.arange(n), k), graph.indices.ravel()
    similarities = graph.similarities.ravel()
    for threshold in np.arange(0.20, 0.96, 0.02):
        kept = similarities > threshold
        matrix = coo_array((np.ones(kept.sum()), (rows[kept], columns[kept])), shape=(n, n))
        yield f"{threshold:.2f}", connected_components(matrix, directed=False)[1]


def ahc(x: np.ndarray, graph: KnnGraph) -> Labelings:
    """Average-linkage agglomerative clustering of the full distance matrix."""
    distances = np.maximum(1 - x @ x.T, 0)
    tree = linkage(distances[np.triu_indices(len(x), 1)].astype(np.float64), "average")
    for threshold in np.arange(0.06, 1.00, 0.02):
        yield f"{threshold:.2f}", fcluster(tree, threshold, "distance")


def dbscan(x: np.ndarray, graph: KnnGraph) -> Labelings:
    """DBSCAN on the kNN graph; noise becomes singletons."""
    n, k = graph.indices.shape
    rows = np.repeat(np.arange(n), k)
    values = np.maximum(1 - graph.similarities.ravel(), 1e-6)
    distances = coo_array((values, (rows, graph.indices.ravel())), shape=(n, n)).tocsr()
    for radius in np.arange(0.08, 0.76, 0.04):
        for least in (1, 2, 4):
            labels = DBSCAN(eps=radius, min_samples=least, metric="precomputed").fit_predict(
                distances
            )
            yield f"eps {radius:.2f}, least {least}", noise_alone(labels)


def infomap(x: np.ndarray, graph: KnnGraph) -> Labelings:
    """The map equation on the neighbours above a similarity, by the infomap package (GPL)."""
    from infomap import Infomap

    for threshold in np.arange(0.20, 0.96, 0.04):
        rows, columns = np.nonzero(graph.similarities > threshold)
        solver = Infomap("--two-level --directed --silent --seed 1")
        for item in range(graph.n_items):
            solver.add_node(item)
        weights = graph.similarities[rows, columns].tolist()
        ends = graph.indices[rows, columns].tolist()
        solver.add_links(list(zip(rows.tolist(), ends, weights, strict=True)))
        solver.run()
        labels = np.empty(graph.n_items, np.int64)
        for node in solver.nodes:
            labels[node.node_id] = node.module_id
        yield f"{threshold:.2f}", labels


def chinese_whispers(x: np.ndarray, graph: KnnGraph) -> Labelings:
    """Everyone takes the label that is strongest around them, 20 times over."""
    n, k = graph.indices.shape
    for threshold in np.arange(0.32, 0.94, 0.06):
        weights = np.where(graph.similarities > threshold, graph.similarities, 0).ravel()
        rows = np.repeat(np.arange(n), k)
        one_way = coo_array((weights, (rows, graph.indices.ravel())), shape=(n, n)).tocsr()
        both_ways = one_way.maximum(one_way.T).tocsr()
        both_ways.eliminate_zeros()
        order = np.random.default_rng(0)
        labels = np.arange(n)
        for _ in range(20):
            if not _whisper(
                both_ways.indptr, both_ways.indices, both_ways.data, order.permutation(n), labels
            ):
                break
        yield f"{threshold:.2f}", labels


@compiled
def _whisper(starts, neighbors, weights, order, labels):
    """One round in place; how many labels changed."""
    strength = np.zeros(len(labels))
    changed = 0
    for i in order:
        best = labels[i]
        for e in range(starts[i], starts[i + 1]):
            label = labels[neighbors[e]]
            strength[label] += weights[e]
        highest = 0.0
        for e in range(starts[i], starts[i + 1]):
            label = labels[neighbors[e]]
            if strength[label] > highest:
                highest, best = strength[label], label
        for e in range(starts[i], starts[i + 1]):
            strength[labels[neighbors[e]]] = 0.0
        changed += labels[i] != best
        labels[i] = best
    return changed


def hdbscan(x: np.ndarray, graph: KnnGraph) -> Labelings:
    """HDBSCAN of scikit-learn; noise becomes singletons."""
    for least in (2, 5):
        labels = HDBSCAN(min_cluster_size=least, copy=True).fit_predict(x)
        yield f"least {least}", noise_alone(labels)


def evoc(x: np.ndarray, graph: KnnGraph) -> Labelings:
    """EVoC with its defaults; noise becomes singletons."""
    from evoc import EVoC

    yield "default", noise_alone(EVoC().fit_predict(x))


def noise_alone(labels: np.ndarray) -> np.ndarray:
    """Give every item of noise (-1) a label of its own."""
    noise = labels < 0
    labels = labels.copy()
    labels[noise] = labels.max() + 1 + np.arange(noise.sum())
    return labels


Peer = Callable[[np.ndarray, KnnGraph], Labelings]

PEERS: dict[str, Peer] = {
    "threshold components": threshold_components,
    "AHC, average linkage": ahc,
    "DBSCAN": dbscan,
}
MORE_PEERS: dict[str, Peer] = {
    **PEERS,
    "Infomap on the kNN graph": infomap,
    "Chinese Whispers": chinese_whispers,
    "HDBSCAN": hdbscan,
    "EVoC": evoc,
}


def oracle_rows(
    x: np.ndarray, truth: np.ndarray, peers: dict[str, Peer] = PEERS
) -> Iterator[dict[str, object]]:
    """Each peer's best row on a collection of unit vectors."""
    graph = knn_graph(x, 80)
    for name, method in peers.items():
        best: dict[str, object] = {}
        highest = -1.0
        for knob, labels in method(x, graph):
            scores = measure(truth, labels)
            if scores["BCubed F"] > highest:
                highest = scores["BCubed F"]
                best = {**scores, "knob": knob}
        yield {"method": name if best["knob"] == "default" else f"{name} (oracle)", **best}
