"""Training the model for any embedding (`facelink.links.universal`)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_array
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import facelink
from facelink.compiled import in_threads
from facelink.embeddings import UnitRows
from facelink.links import Links
from facelink.links.background import Background
from facelink.links.features import LinkFeatures
from facelink.links.model import Preset, UniversalModel
from facelink.links.perceptron import FARTHEST, Perceptron
from facelink.links.refinement import Surroundings
from facelink.links.review import Memberships
from facelink.links.universal import DRAFT, look
from facelink.links.variation import Whitened
from facelink.merging import merge_links
from facelink.merging.fragments import Fragments, join_all
from facelink.neighbors import KnnGraph, knn_graph
from facelink.progress import Progress, silent
from facelink.training.episodes import Collection, Episode, make_episodes
from facelink.training.loop import one_cycle

K = 80
LOOKS = 2  # at every link, after the first
PIVOTS = 96  # of each episode whose links are learned from
PIVOTS_AGAIN = 240  # the same for further looks, where most links are not worth one
CANDIDATES = 1500  # pairs of clusters of each episode and round that are learned from
MERGED = 0.55  # the likelihood from which links are merged into clusters to learn from
ROUNDS = 2
DRAFTS = (0.2, 0.6)  # the likelihoods from which links may be merged into what the review sees
BATCH = 4096
# Networks side by side, because no training gives the same twice: for the first look, at all links;
# for the later ones, at those in doubt; for clusters, of which there are few pairs to learn from.
MEMBERS, MEMBERS_AGAIN, JUDGES = 3, 6, 10
EVENNESS = 0.25  # a person of n photos has this power of n less weight per link
PRESETS = {"balanced": Preset(0.6, 0.6), "purity": Preset(0.85, 0.8)}

Floats = NDArray[np.float32]
Examples = tuple[Floats, Floats, Floats]  # features (m, f), truth (m,), importance (m,)


@dataclass(frozen=True)
class Elsewhere:
    """How wrong the looks may be in a collection that none of them has seen.

    Attributes
    ----------
    scale : float
        By which log-odds are multiplied or divided at most.
    shift : float
        Added to them: the standard deviation.
    bias : float
        The same by what items are like, and for single items.
    """

    scale: float
    shift: float
    bias: float


NEAR = Elsewhere(scale=1.25, shift=0.5, bias=0.4)
FAR = Elsewhere(scale=2.0, shift=1.5, bias=0.6)  # for the review, which can see it by the clusters


def train_universal(
    collections: Sequence[Collection],
    *,
    episodes: int = 1000,
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
        How sure to be, by name.
    seed : int
    name : str
        What the model calls itself in messages.
    progress : callable, optional

    Returns
    -------
    UniversalModel
    """
    made = make_episodes(collections, episodes, seed)
    lessons: list[Lesson] = []
    for done, episode in enumerate(made):
        progress("episodes", done, len(made))
        lessons.append(Lesson.of(episode))
    rng = np.random.default_rng([seed, 0x7EAC])
    weights: dict[str, Floats] = {}

    def learn(
        prefix: str, examples: list[Examples], width: int, epochs: int, members: int
    ) -> Perceptron:
        arrays = fit_perceptrons(
            prefix, examples, widths=(width, width), epochs=epochs, seed=seed, members=members,
            progress=progress,
        )  # fmt: skip
        weights.update(arrays)
        return Perceptron.from_arrays(arrays, prefix, arrays[f"{prefix}.mean"].size)

    network = learn("links", [lesson.link_examples() for lesson in lessons], 40, 2, MEMBERS)
    for done, lesson in enumerate(lessons):
        progress("first look", done, len(made))
        look(lesson.features, network, None, lesson.likelihood)
    for again in range(LOOKS):
        examples = [lesson.surrounding_examples(rng) for lesson in lessons]
        network = learn(f"again.{again}", examples, 32, 2, MEMBERS_AGAIN)
        for done, lesson in enumerate(lessons):
            progress(f"look {again + 2}", done, len(made))
            around = Surroundings(lesson.features, lesson.likelihood.copy())
            look(lesson.features, network, around, lesson.likelihood)

    examples = []
    for done, lesson in enumerate(lessons):
        progress("clusters", done, len(made))
        examples.append(lesson.fragment_examples(rng))
    fragments = learn("fragments", examples, 32, 12, JUDGES)

    examples = []
    n_items = sum(lesson.graph.n_items for lesson in lessons)
    lessons.reverse()
    while lessons:  # gigabytes, too: each goes when it has been seen for the last time
        progress("review", len(examples), len(made))
        examples.append(lessons.pop().membership_examples(fragments, rng))
    learn("review", examples, 32, 2, MEMBERS_AGAIN)

    about = {
        "name": name,
        "facelink": facelink.__version__,
        "trained on": {
            "collections": [collection.name for collection in collections],
            "episodes": len(made),
            "items": n_items,
        },
        "seed": seed,
    }
    return UniversalModel(weights, presets, about=about)


@dataclass(frozen=True)
class Lesson:
    """An episode, and what is thought of its links so far."""

    episode: Episode
    graph: KnnGraph
    features: LinkFeatures
    likelihood: Floats  # (n, k)

    @classmethod
    def of(cls, episode: Episode) -> Lesson:
        graph = knn_graph(episode.embeddings, min(K, len(episode.labels) - 1))
        features = LinkFeatures(graph, Background.of(UnitRows(episode.embeddings)))
        return cls(episode, graph, features, np.empty(graph.indices.shape, np.float32))

    def link_examples(self) -> Examples:
        """The links of some pivots as the first look sees them; the items are in random order."""
        n_pivots = self._pivots(PIVOTS)
        every_link = np.ones((n_pivots, self.graph.k), bool)
        return self._examples(every_link, self.features.of(np.arange(n_pivots)))

    def surrounding_examples(self, rng: np.random.Generator) -> Examples:
        """The links of some pivots as a further look sees them."""
        around = Surroundings(self.features, self.elsewhere(rng, NEAR))
        return self._examples(*around.of(np.arange(self._pivots(PIVOTS_AGAIN))))

    def _pivots(self, usually: int) -> int:
        """How many pivots to learn from."""
        return min(usually * self.episode.times, self.graph.n_items)

    def elsewhere(self, rng: np.random.Generator, how: Elsewhere) -> Floats:
        """What might be thought of the links if the collection were none of those trained on.

        There the looks are too sure or not sure enough: of all links alike, of those of items
        that are alike (blurred ones, say), of single items. What learns from them must not
        rely on it.
        """
        p = self.likelihood
        about = self.features.about_items
        about = (about - about.mean(axis=0)) / (about.std(axis=0) + 1e-6)
        items = np.clip(about, -3, 3) @ rng.normal(0, how.bias, about.shape[1])
        items += rng.normal(0, how.bias, len(items))
        log_odds = np.log(p + 1e-6) - np.log(1 - p + 1e-6)
        log_odds *= how.scale ** rng.uniform(-1, 1)
        log_odds += rng.normal(0, how.shift)
        log_odds += (items[:, None] + items[self.graph.indices]) / 2
        return np.where(p > 0, 1 / (1 + np.exp(-log_odds)), 0).astype(np.float32)

    def _examples(self, asked: NDArray[np.bool_], features: Floats) -> Examples:
        labels = self.episode.labels
        truth = labels[self.graph.indices[: len(asked)]] == labels[: len(asked), None]
        # Someone with many photos counts for more, but not as much more as they have links. Those
        # with one photo, of whom no link is true, count like others on average: if they counted
        # for most, they would make the model doubt everybody's.
        sizes = np.bincount(labels)[labels[: len(asked)]]
        weights = sizes ** -float(EVENNESS)
        several = sizes > 1
        weights[~several] = weights[several].mean() if several.any() else 1.0
        weights /= weights.mean()
        importance = np.repeat(weights, asked.sum(axis=1)).astype(np.float32)
        return features, truth[asked].astype(np.float32), importance

    def membership_examples(self, network: Perceptron, rng: np.random.Generator) -> Examples:
        """The links of some pivots as the review sees them; the network judges clusters."""
        links = Links(self.graph, self.elsewhere(rng, FAR))
        rows, background = UnitRows(self.episode.embeddings), self.features.background
        labels = merge_links(links, threshold=rng.uniform(*DRAFTS))
        fragments = Fragments(labels, links, rows, background, Whitened(rows, labels))
        labels = join_all(fragments, network, DRAFT.joining)
        whitened = Whitened(rows, labels)
        around = Memberships(self.features, links.likelihood, rows, labels, whitened)
        return self._examples(*around.of(np.arange(self._pivots(PIVOTS_AGAIN))))

    def fragment_examples(self, rng: np.random.Generator) -> Examples:
        """Pairs of the clusters that the links give, before and after some were joined rightly."""
        links = Links(self.graph, self.elsewhere(rng, NEAR))
        labels = merge_links(links, threshold=MERGED)
        background = self.features.background
        rows = UnitRows(self.episode.embeddings)
        fragments = Fragments(labels, links, rows, background, Whitened(rows, labels))
        nothing = np.empty(0, np.float32)
        examples = [(fragments.features(np.empty(0, np.int64)), nothing, nothing)]
        for _ in range(ROUNDS):
            candidates = fragments.candidates
            if not len(candidates):
                break
            first, second = fragments.first[candidates], fragments.second[candidates]
            truth = _shared(fragments, first, second, self.episode.labels)
            sizes = fragments.sizes[first], fragments.sizes[second]
            # What joining gives or costs. Clusters are not pure: whether it gives more than it
            # costs is the question, not which share of the pairs of items is one person.
            gain = 2 * sizes[0] * sizes[1] / (sizes[0] + sizes[1]) * np.abs(2 * truth - 1)
            chosen = rng.permutation(len(truth))[:CANDIDATES]
            importance = gain[chosen] * len(truth) / len(chosen) / self.graph.n_items
            importance *= self.episode.times
            examples.append(
                (
                    fragments.features(candidates)[chosen],
                    (truth[chosen] > 0.5).astype(np.float32),
                    importance.astype(np.float32),
                )
            )
            fragments.likelihood[:] = 0
            fragments.likelihood[candidates] = truth + 0.01 * rng.random(len(truth))
            fragments.join(0.6)
            fragments.likelihood[:] = np.nan
        features, truths, importances = zip(*examples, strict=True)
        return np.concatenate(features), np.concatenate(truths), np.concatenate(importances)


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


def fit_perceptrons(
    prefix: str,
    examples: list[Examples],
    *,
    widths: tuple[int, ...],
    epochs: int,
    seed: int,
    members: int,
    progress: Progress,
    learning_rate: float = 2e-3,
) -> dict[str, Floats]:
    """Fit several perceptrons by cross-entropy, each from other weights; their arrays.

    ``examples`` are those of each episode; the list is empty afterwards, because there are
    gigabytes of them.
    """
    truth, importance = (np.concatenate([part[i] for part in examples]) for i in (1, 2))
    features = np.empty((len(truth), examples[0][0].shape[1]), np.float32)
    end = len(features)
    while examples:
        part = examples.pop()[0]
        features[end - len(part) : end] = part
        end -= len(part)
    importance = np.minimum(importance / importance.mean(), 50)
    mean, scale = features.mean(axis=0), 1 / (features.std(axis=0) + 1e-6)
    features -= mean
    features *= scale
    x = torch.from_numpy(features).clamp_(-FARTHEST, FARTHEST)
    target, weight = torch.from_numpy(truth), torch.from_numpy(importance)
    begun = []
    for member in range(members):
        with torch.random.fork_rng():
            torch.manual_seed(seed + member)
            layers = [nn.Linear(a, b) for a, b in pairwise([x.shape[1], *widths, 1])]
            order = torch.Generator()
            order.set_state(torch.get_rng_state())
        begun.append((layers, order))

    def fit(network: tuple[list[nn.Linear], torch.Generator]) -> list[nn.Linear]:
        layers, order = network
        _fit(layers, (x, target, weight), epochs, learning_rate, order)
        return layers

    networks = []
    progress(f"fitting {prefix}", 0, members)
    with _one_torch_thread():
        for layers in in_threads(fit, begun):
            networks.append(layers)
            progress(f"fitting {prefix}", len(networks), members)
    arrays = {f"{prefix}.mean": mean, f"{prefix}.scale": scale}
    for depth, side_by_side in enumerate(zip(*networks, strict=True)):
        matrices = torch.stack([layer.weight.T for layer in side_by_side])
        biases = torch.stack([layer.bias for layer in side_by_side])
        arrays[f"{prefix}.{depth}.matrix"] = matrices.detach().numpy()
        arrays[f"{prefix}.{depth}.bias"] = biases.detach().numpy()
    return {name: np.ascontiguousarray(array, np.float32) for name, array in arrays.items()}


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    """A thread for each network: they are too small for one to be shared by several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # of the threads begun from now on, too
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _fit(
    layers: Sequence[nn.Linear],
    examples: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    epochs: int,
    learning_rate: float,
    order: torch.Generator,
) -> None:
    """Fit one perceptron to the examples."""
    x, target, weight = examples
    modules: list[nn.Module] = [layers[0]]
    for layer in layers[1:]:
        modules += [nn.ReLU(), layer]
    network = nn.Sequential(*modules)
    optimizer = torch.optim.AdamW(network.parameters(), learning_rate, weight_decay=0.01)
    steps = epochs * math.ceil(len(x) / BATCH)
    step = 0
    for _ in range(epochs):
        for batch in torch.randperm(len(x), generator=order).split(BATCH):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate * one_cycle(step / steps)
            logits = network(x.index_select(0, batch))[:, 0]
            loss = binary_cross_entropy_with_logits(logits, target[batch], weight[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
