"""Training the model for any embedding (`facelink.links.universal`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_array
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import facelink
from facelink.embeddings import UnitRows
from facelink.links import Links
from facelink.links.features import LinkFeatures
from facelink.links.model import Preset, UniversalModel
from facelink.links.perceptron import FARTHEST, Perceptron
from facelink.merging import merge_links
from facelink.merging.fragments import Fragments
from facelink.neighbors import KnnGraph, knn_graph
from facelink.progress import Progress, silent
from facelink.training.episodes import Collection, Episode, make_episodes
from facelink.training.loop import one_cycle

K = 80
PIVOTS = 200  # of each episode whose links are learned from
CANDIDATES = 4000  # pairs of clusters of each episode and round that are learned from
ROUNDS = 2
BATCH = 4096
PRESETS = {"balanced": Preset(0.7, 0.25), "purity": Preset(0.9, 0.8)}

Floats = NDArray[np.float32]


def train_universal(
    collections: Sequence[Collection],
    *,
    episodes: int = 500,
    presets: Mapping[str, Preset] = PRESETS,
    seed: int = 0,
    name: str = "universal",
    progress: Progress = silent,
) -> UniversalModel:
    """Train a model for any embedding on labelled collections.

    Parameters
    ----------
    collections : sequence of Collection
        The more different ones, and the more embedders, the better.
    episodes : int
        How many collections to make of them; see `facelink.training.episodes`.
    presets : mapping of str to Preset
        The balanced one's threshold is that of the clusters that the second
        network learns to join.
    seed : int
    name : str
        What the model calls itself in messages.
    progress : callable, optional

    Returns
    -------
    UniversalModel
    """
    made = make_episodes(collections, episodes, seed)
    graphs, examples = [], []
    for done, episode in enumerate(made):
        progress("link features", done, len(made))
        graphs.append(knn_graph(episode.embeddings, min(K, len(episode.labels) - 1)))
        examples.append(link_examples(episode, graphs[-1]))
    weights = fit_perceptron(
        "links", examples, widths=(64, 64), epochs=4, seed=seed, progress=progress
    )
    links = Perceptron.from_arrays(weights, "links", weights["links.mean"].size)

    examples = []
    for done, (episode, graph) in enumerate(zip(made, graphs, strict=True)):
        progress("cluster features", done, len(made))
        threshold = presets["balanced"].threshold
        examples += _fragment_examples(episode, graph, links, threshold, seed)
    weights |= fit_perceptron(
        "fragments", examples, widths=(32, 32), epochs=12, seed=seed, progress=progress
    )

    about = {
        "name": name,
        "facelink": facelink.__version__,
        "trained on": {
            "collections": [collection.name for collection in collections],
            "episodes": len(made),
            "items": sum(len(episode.labels) for episode in made),
        },
        "seed": seed,
    }
    return UniversalModel(weights, presets, about=about)


Examples = tuple[Floats, Floats, Floats]  # features (m, f), truth (m,), importance (m,)


def link_examples(episode: Episode, graph: KnnGraph) -> Examples:
    """The links of some pivots; every person counts alike, whatever their number of photos."""
    features = LinkFeatures(UnitRows(episode.embeddings), graph)
    pivots = slice(0, min(PIVOTS, graph.n_items))  # the items are in random order
    _, person, sizes = np.unique(episode.labels, return_inverse=True, return_counts=True)
    truth = person[graph.indices[pivots]] == person[pivots, None]
    importance = np.repeat(1 / sizes[person[pivots]], graph.k)
    return (
        features.of(pivots.start, pivots.stop),
        truth.ravel().astype(np.float32),
        (importance / importance.mean()).astype(np.float32),
    )


def _fragment_examples(
    episode: Episode, graph: KnnGraph, network: Perceptron, threshold: float, seed: int
) -> list[Examples]:
    """Pairs of the clusters that the links give, before and after some were joined rightly."""
    rng = np.random.default_rng([seed, graph.n_items])
    rows = UnitRows(episode.embeddings)
    features = LinkFeatures(rows, graph)
    likelihood = np.concatenate(
        [
            network.probabilities(features.of(start, min(start + 256, len(rows))))
            for start in range(0, len(rows), 256)
        ]
    ).reshape(graph.indices.shape)
    links = Links(graph, likelihood)
    labels = merge_links(links, threshold=threshold)
    fragments = Fragments(labels, links, rows, features.background)
    examples = []
    for _ in range(ROUNDS):
        candidates = fragments.candidates
        if not len(candidates):
            break
        first, second = fragments.first[candidates], fragments.second[candidates]
        truth = _shared(fragments, first, second, episode.labels)
        sizes = fragments.sizes[first], fragments.sizes[second]
        gain = 2 * sizes[0] * sizes[1] / (sizes[0] + sizes[1])
        chosen = rng.permutation(len(truth))[:CANDIDATES]
        importance = gain[chosen] * len(truth) / len(chosen) / len(rows)
        examples.append(
            (
                fragments.features(candidates)[chosen],
                truth[chosen].astype(np.float32),
                importance.astype(np.float32),
            )
        )
        fragments.likelihood[:] = 0
        fragments.likelihood[candidates] = truth + 0.01 * rng.random(len(truth))
        fragments.join(0.6)
        fragments.likelihood[:] = np.nan
    return examples


def _shared(
    fragments: Fragments, first: NDArray, second: NDArray, labels: NDArray
) -> NDArray[np.float64]:
    """The share of item pairs between two clusters that are one person: (pairs of clusters,)."""
    _, person = np.unique(labels, return_inverse=True)
    shape = (len(fragments.sizes), person.max() + 1)
    counts = coo_array((np.ones(len(person)), (fragments.labels, person)), shape=shape).tocsr()
    shared = np.empty(len(first))
    for start in range(0, len(shared), 1 << 15):
        part = slice(start, start + (1 << 15))
        product = counts[first[part]].multiply(counts[second[part]])
        shared[part] = product.sum(axis=1)
    return shared / (fragments.sizes[first] * fragments.sizes[second])


def fit_perceptron(
    prefix: str,
    examples: Sequence[Examples],
    *,
    widths: tuple[int, ...],
    epochs: int,
    seed: int,
    progress: Progress,
    learning_rate: float = 2e-3,
) -> dict[str, Floats]:
    """Fit a perceptron by cross-entropy; its arrays."""
    features, truth, importance = (np.concatenate(part) for part in zip(*examples, strict=True))
    importance = np.minimum(importance / importance.mean(), 50)
    mean, scale = features.mean(axis=0), 1 / (features.std(axis=0) + 1e-6)
    x = torch.from_numpy((features - mean) * scale).clamp_(-FARTHEST, FARTHEST)
    target, weight = torch.from_numpy(truth), torch.from_numpy(importance)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        sizes = [x.shape[1], *widths, 1]
        layers = [nn.Linear(a, b) for a, b in pairwise(sizes)]
        modules: list[nn.Module] = [layers[0]]
        for layer in layers[1:]:
            modules += [nn.ReLU(), layer]
        network = nn.Sequential(*modules)
        optimizer = torch.optim.AdamW(network.parameters(), learning_rate, weight_decay=0.01)
        steps = epochs * math.ceil(len(x) / BATCH)
        step = 0
        for _ in range(epochs):
            for batch in torch.randperm(len(x)).split(BATCH):
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate * one_cycle(step / steps)
                loss = binary_cross_entropy_with_logits(
                    network(x[batch])[:, 0], target[batch], weight[batch]
                )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                if step % 50 == 0:
                    progress(f"fitting {prefix}", step, steps)
    arrays = {f"{prefix}.mean": mean, f"{prefix}.scale": scale}
    for depth, layer in enumerate(layers):
        arrays[f"{prefix}.{depth}.matrix"] = layer.weight.detach().numpy().T.copy()
        arrays[f"{prefix}.{depth}.bias"] = layer.bias.detach().numpy().copy()
    return {name: np.ascontiguousarray(array, np.float32) for name, array in arrays.items()}
