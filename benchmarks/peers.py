"""Peers that group embeddings without training, each with its knob set by oracle.

The knob is chosen for the best BCubed F on the very collection that is reported:
an advantage that no user has. EVoC has none and is taken as it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from sklearn.cluster import HDBSCAN

from facelink import KnnGraph, knn_graph
from facelink.baselines.ahc import prepare_ahc
from facelink.baselines.chinese_whispers import prepare_chinese_whispers
from facelink.baselines.components import prepare_components
from facelink.baselines.dbscan import noise_alone, prepare_dbscan
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
    labels_at = prepare_components(x, graph=graph)
    for threshold in np.arange(0.20, 0.96, 0.02):
        yield f"{threshold:.2f}", labels_at(threshold)


def ahc(x: np.ndarray, graph: KnnGraph) -> Labelings:
    """Average-linkage agglomerative clustering of the full distance matrix."""
    labels_at = prepare_ahc(x, exact=True)
    for distance in np.arange(0.06, 1.00, 0.02):
        yield f"{distance:.2f}", labels_at(1 - distance)


def dbscan(x: np.ndarray, graph: KnnGraph) -> Labelings:
    """DBSCAN on the kNN graph; noise becomes singletons."""
    # One way, as when the saved results were measured.
    labels_at = {
        least: prepare_dbscan(x, graph=graph, min_samples=least, one_way=True)
        for least in (1, 2, 4)
    }
    for radius in np.arange(0.08, 0.76, 0.04):
        for least, labels_of in labels_at.items():
            yield f"eps {radius:.2f}, least {least}", labels_of(radius)


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
    labels_at = prepare_chinese_whispers(x, graph=graph)
    for threshold in np.arange(0.32, 0.94, 0.06):
        yield f"{threshold:.2f}", labels_at(threshold)


def hdbscan(x: np.ndarray, graph: KnnGraph) -> Labelings:
    """HDBSCAN of scikit-learn; noise becomes singletons."""
    for least in (2, 5):
        labels = HDBSCAN(min_cluster_size=least, copy=True).fit_predict(x)
        yield f"least {least}", noise_alone(labels)


def evoc(x: np.ndarray, graph: KnnGraph) -> Labelings:
    """EVoC with its defaults; noise becomes singletons."""
    from evoc import EVoC

    yield "default", noise_alone(EVoC().fit_predict(x))


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
