"""Scoring links with the paper's network: pivots per second, memory, exactness.

    python benchmarks/scoring.py DATA_DIR [--collection lfw-degraded-512] [--pivots 2000]

In turns in one run, on the same features, graph and weights (GCN-M, the paper's widths):

- (a) reference: the way of the published code, written out plainly: Python sets, nodes looked
  up in a list, entries of an adjacency tensor set one by one, features and adjacency padded to
  k1 (k2 + 1) nodes, batched dense products in torch;
- (a') the same fed by dictionaries and NumPy, as one would write it with speed in mind;
- (b) sparse torch: facelink's own network in torch, subgraphs side by side, no padding;
- (c) facelink: the scorer;
- (d) facelink, narrow: the scorer with narrower layers.

All score the same pivots, which come one after the other in (c)'s order, as they do when a
whole collection is scored. Each in a process of its own, for its peak memory. The share of
the machine's rate is that of (c): the multiply-adds that are left after folding, per second,
over those of products of the same shapes alone. Weights are random unless --paper and
--narrow name models: the speed depends on their widths and features alone. Then how (c)
grows with n, k1, k2 and d (--growth). Saves results/scoring.* and results/scoring_growth.*.
Needs the extra [train].
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import facelink
from facelink import Context, GcnModel, KnnGraph, knn_graph
from facelink.compiled import available_threads, in_threads
from facelink.embeddings import UnitRows
from facelink.links.gcn import PIVOTS, GcnScorer
from facelink.links.model import Architecture
from facelink.neighbors.order import near_one_another
from facelink.runs import Run
from facelink.subgraphs import build_subgraphs
from facelink.training.network import Batch, LinkNetwork, weights_of
from tables import markdown, save
from training_speed import DenseNetwork, dense_batch

COLUMNS = ["way", "widths", "pivots/s", "ratio to (a)", "peak MiB", "difference from (a)"]
GROWTH = ["varied", "value", "nodes", "pivots/s", "ms per pivot"]
PAPER, NARROW = (512, 512, 256, 256), (64, 32, 32, 32)
CONTEXT = Context((80, 5), 5)
BATCH = 16
TURNS = 3
MODELS = ("paper", "narrow")
REFERENCE = "(a) reference"


def random_model(dimension: int, widths: tuple[int, ...], features: np.ndarray) -> GcnModel:
    """Random weights whose likelihoods are not all alike; normalised as training would have it."""
    torch.manual_seed(0)
    network = LinkNetwork(Architecture(dimension, "mean", widths))
    network.normalize.running_mean.copy_(torch.from_numpy(features.mean(axis=0)))
    network.normalize.running_var.copy_(torch.from_numpy(features.var(axis=0)))
    weights = weights_of(network)
    weights["classifier.output"] *= 30
    return GcnModel(network.architecture, weights, CONTEXT)


def dense_network(model: GcnModel) -> DenseNetwork:
    """The same weights in the padded network."""
    widths, weights = model.architecture.widths, model.weights
    network = DenseNetwork(model.architecture.dimension, widths).eval()

    def put(parameter: torch.Tensor, array: np.ndarray) -> None:
        parameter.data.copy_(torch.from_numpy(np.ascontiguousarray(array)))

    put(network.normalize.running_mean, weights["normalize.mean"])
    put(network.normalize.running_var, weights["normalize.scale"] ** -2 - network.normalize.eps)
    for depth, layer in enumerate(network.layers):
        prefix = f"convolutions.{depth}."
        both = np.vstack([weights[prefix + "own"], weights[prefix + "aggregated"]])
        put(layer.weight, both.T)
        put(layer.bias, weights[prefix + "bias"])
    hidden, slope, output = network.classifier
    put(hidden.weight, weights["classifier.hidden"].T)
    put(hidden.bias, weights["classifier.hidden_bias"])
    put(slope.weight, weights["classifier.slope"])
    put(output.weight, weights["classifier.output"].T)
    put(output.bias, weights["classifier.output_bias"])
    return network


def sparse_network(model: GcnModel) -> LinkNetwork:
    """The same weights in facelink's torch network."""
    network = LinkNetwork(model.architecture).eval()
    state = network.state_dict()
    dense = dense_network(model).state_dict()
    for name in state:
        if name in dense:
            state[name] = dense[name]
        elif name.startswith("convolutions."):
            state[name] = torch.from_numpy(model.weights[name])
    network.load_state_dict(state)
    return network


Way = Callable[[np.ndarray], np.ndarray]  # pivots to likelihoods (pivots, k1)
# Features, neighbours, pivots and context to padded features and adjacency.
Feeder = Callable[[np.ndarray, np.ndarray, np.ndarray, Context], tuple[torch.Tensor, torch.Tensor]]


def published_batch(
    x: np.ndarray, neighbors: np.ndarray, pivots: np.ndarray, context: Context
) -> tuple[torch.Tensor, torch.Tensor]:
    """Padded residuals and row-normalised adjacency, an edge of a torch tensor at a time."""
    k1, k2 = context.hops
    most = k1 * (k2 + 1)
    residuals, adjacencies = [], []
    for pivot in pivots:
        first = list(neighbors[pivot, :k1])
        second = set()
        for q in first:
            second.update(neighbors[q, :k2])
        nodes = first + list(second - set(first) - {pivot})
        place = {node: row for row, node in enumerate(nodes)}
        edges = torch.zeros(len(nodes), len(nodes))
        for node in nodes:
            for other in neighbors[node, : context.u]:
                if other in nodes:
                    edges[place[node], place[other]] = 1
                    edges[place[other], place[node]] = 1
        padding = most - len(nodes)
        edges = edges / edges.sum(dim=1, keepdim=True).clamp(min=1)
        adjacencies.append(nn.functional.pad(edges, (0, padding, 0, padding)))
        residual = torch.from_numpy(x[nodes]) - torch.from_numpy(x[pivot])
        residuals.append(nn.functional.pad(residual, (0, 0, 0, padding)))
    return torch.stack(residuals), torch.stack(adjacencies)


def in_batches(score: Way) -> Way:
    def score_all(pivots: np.ndarray) -> np.ndarray:
        starts = range(0, len(pivots), BATCH)
        with torch.no_grad():
            return np.concatenate([score(pivots[start : start + BATCH]) for start in starts])

    return score_all


def ways(
    x: np.ndarray, graph: KnnGraph, paper: GcnModel, narrow: GcnModel
) -> dict[str, Callable[[], Way]]:
    def reference(feed: Feeder) -> Way:
        network, k1 = dense_network(paper), CONTEXT.hops[0]

        def score(pivots: np.ndarray) -> np.ndarray:
            features, adjacency = feed(x, graph.indices, pivots, CONTEXT)
            logits = network(features, adjacency, k1)
            return logits.softmax(dim=1)[:, 1].numpy().reshape(-1, k1)

        return in_batches(score)

    def sparse() -> Way:
        network, features = sparse_network(paper), torch.from_numpy(x)

        def score(pivots: np.ndarray) -> np.ndarray:
            batch = Batch.from_subgraphs(build_subgraphs(graph.indices, pivots, CONTEXT))
            return network(features, batch).softmax(dim=1)[:, 1].numpy().reshape(len(pivots), -1)

        return in_batches(score)

    def facelinks(model: GcnModel) -> Way:
        scorer = GcnScorer(UnitRows(x), graph, model, CONTEXT)

        def score(pivots: np.ndarray) -> np.ndarray:
            out = np.empty((graph.n_items, CONTEXT.hops[0]), np.float32)
            scorer.score_all(Run(), out, pivots=pivots)
            return out[pivots]

        return score

    return {
        REFERENCE: lambda: reference(published_batch),
        "(a') fed faster": lambda: reference(dense_batch),
        "(b) sparse torch": sparse,
        "(c) facelink": lambda: facelinks(paper),
        "(d) facelink, narrow": lambda: facelinks(narrow),
    }


def run(way: str, folder: Path, n_pivots: int) -> dict[str, object]:
    """One way in a process of its own: pivots per second, memory beyond its input, likelihoods."""
    arrays = np.load(folder / "input.npz")
    x, graph = arrays["x"], KnnGraph(arrays["indices"], arrays["similarities"])
    paper, narrow = (facelink.load_model(folder / f"{name}.safetensors") for name in MODELS)
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    score = ways(x, graph, paper, narrow)[way]()
    pivots = near_one_another(graph.indices)[len(x) // 2 :][:n_pivots]
    score(pivots[: 2 * BATCH])  # compiles, warms up
    began = time.perf_counter()
    likelihood = score(pivots)
    seconds = time.perf_counter() - began
    return {"rate": n_pivots / seconds, "MiB": memory("VmHWM") - before, "likelihood": likelihood}


def memory(what: str) -> float:
    """Of this process, in MiB (Linux): VmRSS now, VmHWM at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith(what))


def multiply_adds(nodes: float, k1: int, widths: tuple[int, ...]) -> float:
    """Per pivot, after folding: the first layer's are per item, the last is of 1-hop nodes."""
    inner = sum(nodes * a * 2 * b for a, b in pairwise(widths[:-1]))
    return inner + k1 * (2 * widths[-2] * widths[-1] + widths[-1] ** 2 + 2 * widths[-1])


def product_rate(nodes: float, k1: int, widths: tuple[int, ...]) -> float:
    """Multiply-adds per second of the same products alone, on the same threads."""
    rng = np.random.default_rng(0)
    n_rows, n_links = round(PIVOTS * nodes), PIVOTS * k1
    shapes = [(n_rows, a, 2 * b) for a, b in pairwise(widths[:-1])]
    shapes += [(n_links, widths[-2], widths[-1])] * 2 + [(n_links, widths[-1], widths[-1])]
    pairs = [[rng.random(shape, np.float32) for shape in ((m, k), (k, n))] for m, k, n in shapes]
    outs = [[np.empty((m, n), np.float32) for m, _, n in shapes] for _ in range(16)]

    def work(turn: int) -> None:
        for (a, b), out in zip(pairs, outs[turn % 16], strict=True):
            np.matmul(a, b, out=out)

    for _ in in_threads(work, range(4)):
        pass
    began = time.perf_counter()
    repeats = 64
    for _ in in_threads(work, range(repeats)):
        pass
    seconds = time.perf_counter() - began
    return repeats * sum(m * k * n for m, k, n in shapes) / seconds


def compare(x: np.ndarray, options: argparse.Namespace, folder: Path) -> None:
    graph = knn_graph(x, CONTEXT.k)
    np.savez(folder / "input.npz", x=x, indices=graph.indices, similarities=graph.similarities)
    pairs = np.random.default_rng(0).integers(len(x), size=4096)
    residuals = x[graph.indices[pairs, -1]] - x[pairs]
    given = {"paper": (options.paper, PAPER), "narrow": (options.narrow, NARROW)}
    models = {}
    for name, (path, widths) in given.items():
        loaded = facelink.load_model(path) if path else random_model(x.shape[1], widths, residuals)
        assert isinstance(loaded, GcnModel)
        loaded.save(folder / f"{name}.safetensors")
        models[name] = loaded
    paper, narrow = models["paper"], models["narrow"]
    widths = paper.architecture.widths
    pivots = np.arange(min(500, len(x)))
    nodes = len(build_subgraphs(graph.indices, pivots, CONTEXT).nodes) / len(pivots)
    left = multiply_adds(nodes, CONTEXT.hops[0], widths)

    spawn = multiprocessing.get_context("spawn")
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in ways(x, graph, paper, narrow)}
    shares = []
    for _ in range(options.turns):
        for way, turns in found.items():
            n_pivots = options.pivots if "facelink" in way else options.pivots // 10
            with spawn.Pool(1) as pool:
                turns.append(pool.apply(run, (way, folder, n_pivots)))
        rate = product_rate(nodes, CONTEXT.hops[0], widths)
        shares.append(found["(c) facelink"][-1]["rate"] * left / rate)

    def median(way: str, what: str) -> float:
        return float(np.median([turn[what] for turn in found[way]]))

    reference = found[REFERENCE][0]["likelihood"]
    rows = []
    for way, turns in found.items():
        likelihood = turns[0]["likelihood"][: len(reference)]
        same = "narrow" not in way
        difference = f"{np.abs(likelihood - reference).max():.1e}" if same else ""
        rows.append(
            {
                "way": way,
                "widths": str(list((paper if same else narrow).architecture.widths)),
                "pivots/s": round(median(way, "rate"), 1),
                "ratio to (a)": round(median(way, "rate") / median(REFERENCE, "rate"), 1),
                "peak MiB": round(median(way, "MiB")),
                "difference from (a)": difference,
            }
        )
    share = float(np.median(shares))
    print(markdown(rows, COLUMNS))
    print(f"{nodes:.0f} nodes, {left / 1e6:.0f} M multiply-adds per pivot")
    print(f"(c) reaches {share:.0%} of the rate of the products alone")
    print(f"standard deviation of the likelihoods: {reference.std():.2f}")
    save("scoring", rows, COLUMNS, script="scoring.py DATA_DIR", collection=options.collection,
         items=len(x), dimension=x.shape[1], context=str(CONTEXT), nodes=round(nodes),
         million_multiply_adds_per_pivot=round(left / 1e6), share_of_product_rate=round(share, 3),
         threads=available_threads(), turns=options.turns,
         narrow="random weights" if options.narrow is None else f"trained: {options.narrow.stem}",
         narrow_reads_similarities=narrow.architecture.similarity)  # fmt: skip


def growth(x: np.ndarray) -> None:
    """How the scorer's cost per pivot grows, one thing varied at a time."""
    rows = []
    usual = {"n": len(x), "k1": 80, "k2": 5, "d": x.shape[1]}
    values = {
        "n": [n for n in (1250, 2500, 5000, 10_000, 20_000) if n <= len(x)],
        "k1": [20, 40, 80, 160],
        "k2": [0, 2, 5, 10, 20],
        "d": [d for d in (64, 128, 256, 512) if d <= x.shape[1]],
    }
    rng = np.random.default_rng(0)
    for name, options in values.items():
        for value in options:
            case = {**usual, name: value}
            part = UnitRows(x[: case["n"], : case["d"]])
            hops = (case["k1"], case["k2"]) if case["k2"] else (case["k1"],)
            context = Context(hops, 5)
            graph = knn_graph(part, context.k)
            features = part[:] - part[:].mean(axis=0)
            model = random_model(case["d"], PAPER, features)
            scorer = GcnScorer(part, graph, model, context)
            pivots = rng.choice(len(part), min(600, len(part)), replace=False)
            nodes = len(build_subgraphs(graph.indices, pivots, context).nodes) / len(pivots)
            out = np.empty((len(part), context.hops[0]), np.float32)
            scorer.score_all(Run(), out, pivots=pivots[:64])
            times = []
            for _ in range(3):
                began = time.perf_counter()
                scorer.score_all(Run(), out, pivots=pivots)
                times.append(time.perf_counter() - began)
            seconds = float(np.median(times)) / len(pivots)
            rows.append(
                {
                    "varied": name,
                    "value": value,
                    "nodes": round(nodes),
                    "pivots/s": round(1 / seconds),
                    "ms per pivot": f"{1000 * seconds:.2f}",
                }
            )
            print(markdown(rows[-1:], GROWTH).splitlines()[-1], flush=True)
    save("scoring_growth", rows, GROWTH, script="scoring.py DATA_DIR --growth", usual=usual,
         widths=PAPER, threads=available_threads())  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="DATA_DIR")
    parser.add_argument("--collection", default="lfw-degraded-512")
    parser.add_argument("--pivots", type=int, default=2000)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--paper", type=Path, metavar="MODEL")
    parser.add_argument("--narrow", type=Path, metavar="MODEL")
    parser.add_argument("--growth", action="store_true")
    options = parser.parse_args()
    arrays = np.load(options.folder / f"{options.collection}.npz", allow_pickle=False)
    x = UnitRows(arrays["x"])[:]
    if options.growth:
        growth(x)
        return
    with tempfile.TemporaryDirectory() as folder:
        compare(x, options, Path(folder))


if __name__ == "__main__":
    main()
