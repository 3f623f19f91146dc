"""Training speed beside a dense, padded implementation that is fed by Python sets.

    python benchmarks/training_speed.py DATA_DIR

Both train the same network (GCN-M) on the same pivots of the same collection, turn
by turn in one run: building the subgraphs, forward, backward, step. The dense one is
the way of the published code, written out plainly: a set of nodes per pivot, features
and adjacency padded to k1 (k2 + 1) nodes, batched dense products. Saves
results/training_speed.{json,md}; a ratio, because the machine's own speed varies.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from facelink import Context, knn_graph
from facelink.embeddings import UnitRows
from facelink.links.model import Architecture
from facelink.subgraphs import build_subgraphs
from facelink.training.loop import Collection, add_gradients
from facelink.training.network import LinkNetwork
from tables import markdown, save

COLUMNS = [
    "collection",
    "hops",
    "u",
    "widths",
    "nodes",
    "dense pivots/s",
    "facelink pivots/s",
    "ratio",
]
PAPER, NARROW = (512, 512, 256, 256), (256, 256, 128, 128)
SETTINGS = [  # collection, context, widths, batches
    ("lfw-degraded-512", Context((200, 10), 10), PAPER, 8),
    ("celeba-512", Context((200, 10), 10), PAPER, 8),
    ("lfw-degraded-512", Context((80, 5), 5), PAPER, 20),
    ("lfw-degraded-128", Context((200, 10), 10), NARROW, 20),
    ("celeba-128", Context((200, 10), 10), NARROW, 20),
    ("glint24-128", Context((200, 10), 10), NARROW, 20),
    ("lfw-degraded-128", Context((80, 5), 5), NARROW, 20),
]
BATCH = 16


class DenseNetwork(nn.Module):
    """The same layers over padded batches."""

    def __init__(self, dimension: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        sizes = [dimension, *widths]
        self.normalize = nn.BatchNorm1d(dimension, affine=False)
        self.layers = nn.ModuleList(
            nn.Linear(2 * a, b) for a, b in zip(sizes, widths, strict=False)
        )
        last = widths[-1]
        self.classifier = nn.Sequential(nn.Linear(last, last), nn.PReLU(last), nn.Linear(last, 2))

    def forward(self, x: torch.Tensor, a: torch.Tensor, n_links: int) -> torch.Tensor:
        batch, nodes, dimension = x.shape
        x = self.normalize(x.reshape(-1, dimension)).view(batch, nodes, dimension)
        for layer in self.layers:
            x = torch.relu(layer(torch.cat([x, torch.bmm(a, x)], dim=2)))
        return self.classifier(x[:, :n_links].reshape(batch * n_links, -1))


def dense_batch(
    x: np.ndarray, neighbors: np.ndarray, pivots: np.ndarray, context: Context
) -> tuple[torch.Tensor, torch.Tensor]:
    """Padded residuals and row-normalised adjacency, with Python sets."""
    k1, k2 = context.hops
    most = k1 * (k2 + 1)
    features = np.zeros((len(pivots), most, x.shape[1]), np.float32)
    adjacency = np.zeros((len(pivots), most, most), np.float32)
    for b, pivot in enumerate(pivots):
        first = [int(q) for q in neighbors[pivot][:k1]]
        nodes = set(first)
        for q in first:
            nodes |= {int(r) for r in neighbors[q][:k2]}
        nodes.discard(int(pivot))
        ordered = first + sorted(nodes - set(first))
        place = {item: row for row, item in enumerate(ordered)}
        features[b, : len(ordered)] = x[ordered] - x[pivot]
        for q in ordered:
            for r in neighbors[q][: context.u]:
                if int(r) in place:
                    adjacency[b, place[q], place[int(r)]] = 1
                    adjacency[b, place[int(r)], place[q]] = 1
        adjacency[b] /= np.maximum(adjacency[b].sum(axis=1, keepdims=True), 1)
    return torch.from_numpy(features), torch.from_numpy(adjacency)


def compare(
    x: np.ndarray, y: np.ndarray, context: Context, widths: tuple[int, ...], batches: int
) -> dict[str, object]:
    """Pivots per second of both."""
    neighbors = knn_graph(x, context.k).indices
    torch.manual_seed(0)
    dense = DenseNetwork(x.shape[1], widths)
    sparse = LinkNetwork(Architecture(x.shape[1], "mean", widths))
    collection = Collection(torch.from_numpy(x), y, neighbors, np.ones(len(x), np.float32))

    def dense_gradients(pivots: np.ndarray) -> None:
        padded, adjacency = dense_batch(x, neighbors, pivots, context)
        truth = y[neighbors[pivots, : context.hops[0]]] == y[pivots, None]
        target = torch.from_numpy(truth.ravel()).long()
        cross_entropy(dense(padded, adjacency, context.hops[0]), target).backward()

    def sparse_gradients(pivots: np.ndarray) -> None:
        add_gradients(sparse, collection.features, collection.parts(pivots, context))

    methods = {"dense": (dense, dense_gradients), "facelink": (sparse, sparse_gradients)}
    seconds = dict.fromkeys(methods, 0.0)
    optimizers = {n: torch.optim.SGD(net.parameters(), 1e-2) for n, (net, _) in methods.items()}
    rng = np.random.default_rng(0)
    for turn in range(batches + 1):  # the first turn warms up
        pivots = rng.choice(len(x), BATCH, replace=False)
        for name, (_, add) in methods.items():
            began = time.perf_counter()
            optimizers[name].zero_grad()
            add(pivots)
            optimizers[name].step()
            if turn:
                seconds[name] += time.perf_counter() - began
    pivots = np.arange(500)
    nodes = len(build_subgraphs(neighbors, pivots, context).nodes) / len(pivots)
    rates = {name: batches * BATCH / s for name, s in seconds.items()}
    return {
        "hops": str(list(context.hops)),
        "u": context.u,
        "widths": str(list(widths)),
        "nodes": round(nodes),
        "dense pivots/s": round(rates["dense"], 1),
        "facelink pivots/s": round(rates["facelink"], 1),
        "ratio": round(rates["facelink"] / rates["dense"], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="DATA_DIR")
    options = parser.parse_args()
    rows = []
    for collection, context, widths, batches in SETTINGS:
        arrays = np.load(options.folder / f"{collection}.npz", allow_pickle=False)
        x = UnitRows(arrays["x"])[:]
        rows.append({"collection": collection, **compare(x, arrays["y"], context, widths, batches)})
        print(markdown(rows[-1:], COLUMNS).splitlines()[-1], flush=True)
        save("training_speed", rows, COLUMNS, script="training_speed.py DATA_DIR",
             batch=BATCH, torch=torch.__version__)  # fmt: skip


if __name__ == "__main__":
    main()
