"""Which learner reads links from context best on collections that it was not trained on?

    python benchmarks/universal_learners.py DATA_DIR [--groups celebs800 celeba]

The same episodes, features and weights for four learners: a multilayer perceptron, the
same with the further looks that facelink gives it, gradient-boosted trees, and graph
convolutions over the pivot's subgraph with these features at its nodes. Trained without
one group of collections, they score the links of that group: average precision, BCubed
and pairwise F with the map equation at the best of several thresholds (the ranking is
compared, not the calibration), and the time per link on one thread. Saves
results/universal_learners.*.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import average_precision_score
from threadpoolctl import threadpool_limits
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import facelink
from facelink import Context, KnnGraph, Links
from facelink.embeddings import UnitRows
from facelink.links.background import Background
from facelink.links.features import NAMES, LinkFeatures
from facelink.links.perceptron import FARTHEST, Perceptron
from facelink.links.refinement import NAMES as SURROUNDINGS
from facelink.links.refinement import Surroundings
from facelink.links.universal import look
from facelink.metrics import bcubed, pairwise
from facelink.progress import silent
from facelink.subgraphs import build_subgraphs
from facelink.training.episodes import make_episodes
from facelink.training.network import Batch, GraphConvolution
from facelink.training.universal import LOOKS, PIVOTS, Examples, K, Lesson, fit_perceptrons
from tables import markdown, save
from universal import load

COLUMNS = ["collection", "learner", "link AP", "BCubed F", "pairwise F", "µs per link"]
THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
Scorer = Callable[[LinkFeatures, KnnGraph], np.ndarray]  # likelihoods (n, k)


def perceptron(lessons: Sequence[Lesson], looks: int = 0) -> Scorer:
    def fitted(name: str, examples: list[Examples], n: int, widths: tuple[int, ...]) -> Perceptron:
        how = {"widths": widths, "epochs": 4, "seed": 0, "progress": silent}
        arrays = fit_perceptrons(name, examples, members=1, **how)
        return Perceptron.from_arrays(arrays, name, n)

    examples = [lesson.link_examples() for lesson in lessons]
    first = fitted("links", examples, len(NAMES), (64, 64))
    others: list[Perceptron] = []
    rng = np.random.default_rng(0)
    for again in range(looks):
        for lesson in lessons:
            around = Surroundings(lesson.features, lesson.likelihood.copy()) if others else None
            look(lesson.features, others[-1] if others else first, around, lesson.likelihood)
        examples = [lesson.surrounding_examples(rng) for lesson in lessons]
        others.append(fitted(f"again.{again}", examples, len(SURROUNDINGS), (48, 48)))

    def score(features: LinkFeatures, graph: KnnGraph) -> np.ndarray:
        likelihood = np.empty(graph.indices.shape, np.float32)
        look(features, first, None, likelihood, n_threads=1)
        for network in others:
            around = Surroundings(features, likelihood.copy(), n_threads=1)
            look(features, network, around, likelihood, n_threads=1)
        return likelihood

    return score


def boosted(lessons: Sequence[Lesson]) -> Scorer:
    examples = [lesson.link_examples() for lesson in lessons]
    x, truth, importance = (np.concatenate(part) for part in zip(*examples, strict=True))
    trees = HistGradientBoostingClassifier(
        max_iter=300, learning_rate=0.1, max_leaf_nodes=31, early_stopping=False, random_state=0
    )
    trees.fit(x, truth, sample_weight=importance)
    return in_blocks(lambda x, *_: trees.predict_proba(x)[:, 1])


def in_blocks(score: Callable[[np.ndarray, KnnGraph, int, int], np.ndarray]) -> Scorer:
    """From a scorer of features to one of a collection, 64 pivots at a time."""

    def score_all(features: LinkFeatures, graph: KnnGraph) -> np.ndarray:
        parts = []
        for start in range(0, graph.n_items, 64):
            stop = min(start + 64, graph.n_items)
            parts.append(score(features.of(np.arange(start, stop)), graph, start, stop))
        return np.concatenate(parts).reshape(graph.indices.shape).astype(np.float32)

    return score_all


class Convolutions(nn.Module):
    """Graph convolutions among the pivot's neighbours, whose features are their links'."""

    def __init__(self, mean: np.ndarray, scale: np.ndarray, width: int = 64) -> None:
        super().__init__()
        self.mean, self.scale = torch.from_numpy(mean), torch.from_numpy(scale)
        self.layers = nn.ModuleList(GraphConvolution(a, width) for a in (len(mean), width, width))
        self.output = nn.Linear(width, 1)

    def forward(self, features: torch.Tensor, batch: Batch) -> torch.Tensor:
        x = ((features - self.mean) * self.scale).clamp(-FARTHEST, FARTHEST)
        weights = 1 / batch.edge_starts.diff().to(x.dtype)[batch.targets]
        for layer in self.layers:
            x = layer(x, batch, weights, None)
        return self.output(x)[:, 0]


def convolutions(lessons: Sequence[Lesson]) -> Scorer:
    graphs = [lesson.graph for lesson in lessons]

    def batch_of(graph: KnnGraph, start: int, stop: int) -> Batch:
        context = Context((graph.k,), min(10, graph.k))
        return Batch.from_subgraphs(build_subgraphs(graph.indices, np.arange(start, stop), context))

    examples = [lesson.link_examples() for lesson in lessons]
    everything = np.concatenate([x for x, _, _ in examples])
    torch.manual_seed(0)
    network = Convolutions(everything.mean(axis=0), 1 / (everything.std(axis=0) + 1e-6))
    optimizer = torch.optim.AdamW(network.parameters(), 2e-3, weight_decay=0.01)
    step, at_once, epochs = 0, 25, 4
    total = epochs * sum(-(-min(PIVOTS, g.n_items) // at_once) for g in graphs)
    rng = np.random.default_rng(0)
    for _ in range(epochs):
        blocks = [
            (e, start)
            for e, graph in enumerate(graphs)
            for start in range(0, min(PIVOTS, graph.n_items), at_once)
        ]
        for place in rng.permutation(len(blocks)):
            e, start = blocks[place]
            graph = graphs[e]
            stop = min(start + at_once, PIVOTS, graph.n_items)
            part = slice(start * graph.k, stop * graph.k)
            x, truth, importance = (torch.from_numpy(a[part]) for a in examples[e])
            for group in optimizer.param_groups:
                group["lr"] = 2e-3 * min(1, (step + 1) / 100, 1.1 * (1 - step / total))
            logits = network(x, batch_of(graph, start, stop))
            loss = binary_cross_entropy_with_logits(logits, truth, importance)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1

    def score(x: np.ndarray, graph: KnnGraph, start: int, stop: int) -> np.ndarray:
        with torch.no_grad():
            logits = network(torch.from_numpy(x), batch_of(graph, start, stop))
            return torch.sigmoid(logits).numpy()

    return in_blocks(score)


LEARNERS: dict[str, Callable[[Sequence[Lesson]], Scorer]] = {
    "perceptron": perceptron,
    f"perceptron, {LOOKS} further looks": partial(perceptron, looks=LOOKS),
    "boosted trees": boosted,
    "graph convolutions": convolutions,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="DATA_DIR")
    parser.add_argument("--groups", nargs="+", default=["celebs800", "celeba", "lfw"])
    parser.add_argument("--episodes", type=int, default=150)
    options = parser.parse_args()
    torch.set_num_threads(1)
    collections = load(options.folder)
    rows: list[dict[str, object]] = []
    print(markdown([], COLUMNS))
    for group in options.groups:
        rest = [c for c in collections if c.people != group]
        made = make_episodes(rest, options.episodes, seed=0)
        lessons = [Lesson.of(replace(episode, times=1)) for episode in made]
        for name, learner in LEARNERS.items():
            scorer = learner(lessons)
            for collection in (c for c in collections if c.people == group):
                graph = facelink.knn_graph(collection.embeddings, K)
                features = LinkFeatures(graph, Background.of(UnitRows(collection.embeddings)))
                began = time.perf_counter()
                with threadpool_limits(1):
                    likelihood = scorer(features, graph)
                seconds = time.perf_counter() - began
                truth = collection.labels
                linked = truth[graph.indices] == truth[:, None]
                found = [
                    facelink.merge_links(Links(graph, likelihood), threshold=t) for t in THRESHOLDS
                ]
                best = max(found, key=lambda labels: bcubed(truth, labels).f)
                rows.append(
                    {
                        "collection": collection.name,
                        "learner": name,
                        "link AP": float(
                            average_precision_score(linked.ravel(), likelihood.ravel())
                        ),
                        "BCubed F": bcubed(truth, best).f,
                        "pairwise F": pairwise(truth, best).f,
                        "µs per link": round(1e6 * seconds / likelihood.size, 2),
                    }
                )
                print(markdown(rows[-1:], COLUMNS).splitlines()[-1], flush=True)
                save("universal_learners", rows, COLUMNS,
                     script="universal_learners.py DATA_DIR",
                     episodes=options.episodes)  # fmt: skip


if __name__ == "__main__":
    main()
