"""Training the paper's network on labelled embeddings."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

import facelink
from facelink.embeddings import UnitRows
from facelink.errors import InputError
from facelink.labels import as_labels
from facelink.links.model import Architecture, GcnModel
from facelink.neighbors import knn_graph
from facelink.progress import Progress, silent
from facelink.subgraphs import Context, build_subgraphs
from facelink.training.checkpoint import Checkpoint
from facelink.training.network import Batch, LinkNetwork, weights_of
from facelink.views import as_views, check_weights, join

WEIGHT_DECAY = 0.01
WARM_UP = 0.1  # the share of all steps in which the learning rate rises
SCORED_AT_ONCE = 64
PART = 4  # pivots that go through the network together: their arrays stay small


@dataclass(frozen=True)
class Epoch:
    """How one pass over the training pivots went."""

    number: int
    loss: float
    validation_loss: float
    average_precision: float
    seconds: float


@dataclass(frozen=True)
class Collection:
    """Items, their identities, and their neighbours among themselves."""

    features: Tensor  # (n, d)
    identities: NDArray[np.int64]  # (n,)
    neighbors: NDArray[np.int32]  # (n, k)

    importance: NDArray[np.float32]  # (n,) of an item's links in the loss

    def batch(self, pivots: NDArray[np.int64], context: Context) -> tuple[Batch, Tensor, Tensor]:
        """The subgraphs of some pivots and, for each link, whether it is true and its
        importance: (links,).
        """
        subgraphs = build_subgraphs(self.neighbors, pivots, context)
        linked = self.neighbors[pivots, : subgraphs.n_links]
        truth = self.identities[linked] == self.identities[pivots, None]
        importance = np.repeat(self.importance[pivots], subgraphs.n_links)
        return (
            Batch.from_subgraphs(subgraphs),
            torch.from_numpy(truth.ravel()).long(),
            torch.from_numpy(importance),
        )

    def parts(
        self, pivots: NDArray[np.int64], context: Context
    ) -> list[tuple[Batch, Tensor, Tensor]]:
        """The same, a few pivots at a time."""
        return [self.batch(part, context) for part in _batches(pivots, PART)]


def train(
    embeddings: ArrayLike,
    labels: ArrayLike,
    *,
    views: Sequence[ArrayLike] = (),
    weights: Sequence[float] | None = None,
    aggregator: str = "mean",
    widths: Sequence[int] = (512, 512, 256, 256),
    symmetric: bool = False,
    similarity: bool = True,
    balanced: bool = True,
    hops: Sequence[int] = (200, 10),
    u: int = 10,
    include_pivot: bool = False,
    epochs: int = 4,
    batch_size: int = 16,
    learning_rate: float = 1e-3,
    validation: float = 0.1,
    seed: int = 0,
    name: str = "unnamed",
    checkpoint: str | Path | None = None,
    checkpoint_seconds: float = 60.0,
    progress: Progress = silent,
    on_epoch: Callable[[Epoch], None] | None = None,
) -> GcnModel:
    """Train the paper's network on a labelled collection.

    Parameters
    ----------
    embeddings : (n, d) array
    labels : (n,) array of int or str
        Who each item is.
    views : sequence of (n, d) arrays
        Further embeddings of the same items, joined to the first as the paper
        does; a row of NaN is an item that lacks the view.
    weights : sequence of float, optional
        How much each view counts, ``embeddings`` first; all alike by default.
    aggregator : {"mean", "weighted", "attention"}
        How a node sums up its neighbours (GCN-M, GCN-W and GCN-A in the paper).
    widths : sequence of int
        The output width of each graph convolution. Wider and deeper is slower.
    symmetric : bool
        Use the paper's symmetric form of the mean, whose rows do not sum to 1.
    similarity : bool
        Add the cosine similarity to the pivot to the residual as a node
        feature. The paper has the residual alone.
    balanced : bool
        Count every identity alike in the loss, however many items it has. The
        paper counts every link alike, so the few people with hundreds of
        photos decide; ``docs/accuracy.md`` shows what both differences give.
    hops, u, include_pivot
        The subgraphs to train in (see `Context`); narrower where the collection
        is small. The model scores links at (80, 5) and u = 5, as the paper
        does, or narrower wherever it was trained narrower.
    epochs : int
        How often every item is a pivot. The epoch with the best average
        precision on the validation links is kept.
    batch_size : int
        Pivots per step.
    learning_rate : float
        The highest one: it rises for a tenth of the steps, then falls to zero
        (AdamW, one cycle).
    validation : float
        The share of identities that are held back to choose the best epoch. 0
        holds none back and keeps the last epoch.
    seed : int
        The same data, options, seed and number of threads give the same model.
    name : str
        What the model calls itself in messages.
    checkpoint : path, optional
        A file to which the state is saved every ``checkpoint_seconds`` and
        after each epoch, and from which an interrupted training goes on, to
        the same result. Remove it when the model is saved.
    progress, on_epoch : callables, optional
        Called with (stage, done, total), and with an `Epoch` after each.

    Returns
    -------
    GcnModel

    Notes
    -----
    The loss is the cross-entropy over the 1-hop nodes of each pivot. Needs torch:
    ``pip install 'facelink[train]'``.

    Examples
    --------
    >>> import facelink
    >>> faces = facelink.load_sample()
    >>> model = facelink.train(
    ...     faces.embeddings[:500], faces.labels[:500], widths=(16, 8), hops=(10, 3), u=3, epochs=1)
    >>> model.architecture.dimension
    128
    """
    _check_options(epochs, batch_size, learning_rate, validation, seed)
    parts = as_views([embeddings, *views]) if len(views) else []
    shares = check_weights(weights, len(parts))
    rows = UnitRows(join(parts, shares) if parts else embeddings)
    identities = _as_identities(labels, len(rows))
    context = Context(tuple(hops), u, include_pivot)
    architecture = Architecture(
        rows.shape[1], aggregator, tuple(widths), symmetric=symmetric, similarity=similarity
    )
    held_back = _hold_back(identities, validation, seed)
    state = _Training(
        architecture, seed, learning_rate, epochs * _steps(int((~held_back).sum()), batch_size)
    )
    saved = Checkpoint(
        checkpoint,
        every=checkpoint_seconds,
        fingerprint={
            "architecture": asdict(architecture),
            "context": asdict(context),
            "balanced": balanced,
            "epochs": epochs,
            "batch size": batch_size,
            "learning rate": learning_rate,
            "validation": validation,
            "seed": seed,
            "data": _digest(rows, identities),
        },
    )
    saved.restore(state)

    k = context.k
    learned = _collection(rows, identities, ~held_back, k, balanced, progress)
    context = context.fitted_to(learned.neighbors.shape[1])
    scoring = Context(
        tuple(
            min(k, limit) for k, limit in zip(context.hops, chain((80,), repeat(5)), strict=False)
        ),
        min(context.u, 5),
        include_pivot,
    )
    watched = None
    if held_back.any():
        watched = _collection(rows, identities, held_back, k, balanced, progress)

    n_pivots = len(learned.identities)
    steps = _steps(n_pivots, batch_size)
    while state.epoch < epochs:
        began = time.monotonic()
        state.network.train()
        order = np.random.default_rng([seed, state.epoch]).permutation(n_pivots)
        for step, pivots in enumerate(_batches(order, batch_size)):
            if step < state.step:  # done before the interruption
                continue
            state.learn(learned.features, learned.parts(pivots, context))
            done = state.epoch * n_pivots + min((step + 1) * batch_size, n_pivots)
            stage = f"epoch {state.epoch + 1}/{epochs}, loss {state.mean_loss:.4f}"
            progress(stage, done, epochs * n_pivots)
            if step + 1 < steps:
                saved.save_sometimes(state)
        loss, precision = math.nan, math.nan
        if watched is not None:
            loss, precision = _validate(state.network, watched, scoring)
        report = Epoch(state.epoch + 1, state.mean_loss, loss, precision, time.monotonic() - began)
        state.finish_epoch(report)
        saved.save(state)
        if on_epoch is not None:
            on_epoch(report)

    best = state.history[state.best_epoch - 1]
    about = {
        "name": name,
        "facelink": facelink.__version__,
        "trained on": {
            "items": n_pivots,
            "identities": len(np.unique(learned.identities)),
            "hops": list(context.hops),
            "u": context.u,
        },
        "validated on": {"items": int(held_back.sum())} if watched else None,
        "epochs": epochs,
        "best epoch": best["number"],
        "link average precision": None if watched is None else round(best["average_precision"], 4),
        "seed": seed,
    }
    trained_on = tuple(zip((part.dimension for part in parts), shares, strict=False))
    return GcnModel(architecture, state.best_weights, scoring, about, views=trained_on)


class _Training:
    """What changes while training: all that a checkpoint has to hold."""

    def __init__(
        self, architecture: Architecture, seed: int, learning_rate: float, total_steps: int
    ) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.network = LinkNetwork(architecture)
        self.optimizer = torch.optim.AdamW(
            self.network.parameters(), lr=learning_rate, weight_decay=WEIGHT_DECAY
        )
        self.learning_rate = learning_rate
        self.total_steps = total_steps
        self.steps_done = 0  # in all epochs
        self.epoch = 0  # the epoch under way, from 0
        self.step = 0  # the next step in it
        self.loss_sum = 0.0  # over its steps so far
        self.history: list[dict[str, Any]] = []
        self.best_epoch = 0  # from 1
        self.best_weights: dict[str, NDArray[np.float32]] = {}

    @property
    def mean_loss(self) -> float:
        return self.loss_sum / max(self.step, 1)

    def learn(self, features: Tensor, parts: Sequence[tuple[Batch, Tensor, Tensor]]) -> None:
        """Take one step, with a batch in parts."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate * one_cycle(self.steps_done / self.total_steps)
        self.optimizer.zero_grad()
        loss = add_gradients(self.network, features, parts)
        if not math.isfinite(loss):
            raise InputError(
                "The loss is no longer a number: the training has diverged. Lower the learning "
                f"rate (--learning-rate), now {self.learning_rate:g}, and start anew."
            )
        self.optimizer.step()
        self.loss_sum += loss
        self.step += 1
        self.steps_done += 1

    def finish_epoch(self, report: Epoch) -> None:
        best = self.history[self.best_epoch - 1]["average_precision"] if self.history else -1.0
        self.history.append(asdict(report))
        # Without validation every comparison with NaN is false, and the last epoch is kept.
        if not report.average_precision < best:
            self.best_epoch = report.number
            self.best_weights = weights_of(self.network)
        self.epoch += 1
        self.step = 0
        self.loss_sum = 0.0


def add_gradients(
    network: LinkNetwork, embeddings: Tensor, parts: Sequence[tuple[Batch, Tensor, Tensor]]
) -> float:
    """The loss of a batch, its gradients added to the network's.

    The parts of the batch are normalised together but go through the network one
    after the other, which is the same sum: the memory is that of one part.
    """
    features = torch.cat([network.features(embeddings, batch) for batch, _, _ in parts])
    normalized = network.normalize(features).split([batch.n_nodes for batch, _, _ in parts])
    total = torch.cat([importance for _, _, importance in parts]).sum()
    loss = 0.0
    for x, (batch, truth, importance) in zip(normalized, parts, strict=True):
        logits = network.classify(x, embeddings, batch)
        share = weighted_loss(logits, truth, importance / total)
        share.backward()
        loss += share.item()
    return loss


def weighted_loss(logits: Tensor, truth: Tensor, importance: Tensor) -> Tensor:
    """Cross-entropy, each link counting with its importance."""
    return (cross_entropy(logits, truth, reduction="none") * importance).sum()


def one_cycle(share: float) -> float:
    """The learning rate at this share of all steps, relative to the highest."""
    if share < WARM_UP:
        return 0.05 + 0.95 * share / WARM_UP
    return 0.5 + 0.5 * math.cos(math.pi * (share - WARM_UP) / (1 - WARM_UP))


def _validate(network: LinkNetwork, watched: Collection, context: Context) -> tuple[float, float]:
    """Cross-entropy and average precision over all links of the held-back identities."""
    from sklearn.metrics import average_precision_score

    network.eval()
    parts = []
    with torch.no_grad():
        for pivots in _batches(np.arange(len(watched.identities)), SCORED_AT_ONCE):
            batch, truth, importance = watched.batch(pivots, context)
            parts.append((network(watched.features, batch), truth, importance))
    logits, truth, importance = map(torch.cat, zip(*parts, strict=True))
    loss = float(weighted_loss(logits, truth, importance / importance.sum()))
    if not truth.any():
        return loss, 0.0
    margin = logits[:, 1] - logits[:, 0]
    return loss, float(average_precision_score(truth.numpy(), margin.numpy()))


def _collection(
    rows: UnitRows,
    identities: NDArray[np.int64],
    mask: NDArray[np.bool_],
    k: int,
    balanced: bool,
    progress: Progress,
) -> Collection:
    features = rows[np.flatnonzero(mask)]
    mine = identities[mask]
    graph = knn_graph(features, k, progress=progress)
    importance = 1 / np.bincount(mine)[mine] if balanced else np.ones(len(mine))
    return Collection(
        torch.from_numpy(features), mine, graph.indices, importance.astype(np.float32)
    )


def _hold_back(identities: NDArray[np.int64], share: float, seed: int) -> NDArray[np.bool_]:
    """Which items belong to the identities that are only validated on."""
    n_identities = int(identities.max()) + 1
    if share == 0:
        return np.zeros(len(identities), bool)
    n_held = max(1, round(share * n_identities))
    several = np.bincount(identities) > 1
    order = np.random.default_rng([seed, 0xFACE]).permutation(n_identities)
    # Someone with two items has to be among them: there must be a link to find.
    place = int(np.argmax(several[order]))
    order = np.concatenate([order[place : place + 1], np.delete(order, place)])
    held, learned = order[:n_held], order[n_held:]
    if len(learned) < 2 or not several[learned].any():
        raise InputError(
            f"Holding back {n_held} of {n_identities} identities for validation leaves too few to "
            "train on. Give more identities, a smaller share, or validation=0 (--validation 0)."
        )
    return np.isin(identities, held)


def _as_identities(labels: ArrayLike, n_items: int) -> NDArray[np.int64]:
    array = as_labels(labels)
    if len(array) != n_items:
        raise InputError(
            f"Expected one label for each of the {n_items:,} embeddings, got {len(array):,}."
        )
    _, identities, sizes = np.unique(array, return_inverse=True, return_counts=True)
    if len(sizes) < 2 or sizes.max() < 2:
        raise InputError(
            f"Training needs at least two identities, and two items of one of them; got "
            f"{n_items:,} items of {len(sizes):,} identities."
        )
    return identities


def _check_options(
    epochs: int, batch_size: int, learning_rate: float, validation: float, seed: int
) -> None:
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise InputError(f"seed should be a whole number from 0, got {seed!r}.")
    for name, value in (("epochs", epochs), ("batch_size", batch_size)):
        if not isinstance(value, int | np.integer) or value < 1:
            raise InputError(f"{name} should be a whole number from 1, got {value!r}.")
    if not learning_rate > 0:
        raise InputError(f"learning_rate should be above 0, got {learning_rate!r}.")
    if not 0 <= validation < 1:
        raise InputError(f"validation should be a share from 0 to below 1, got {validation!r}.")


def _digest(rows: UnitRows, identities: NDArray[np.int64]) -> str:
    digest = hashlib.sha256(np.ascontiguousarray(identities).tobytes())
    for start in range(0, len(rows), 8192):
        digest.update(np.ascontiguousarray(rows[slice(start, start + 8192)]).tobytes())
    return digest.hexdigest()[:16]


def _steps(n_pivots: int, batch_size: int) -> int:
    return sum(1 for _ in _batches(np.empty(n_pivots), batch_size))


def _batches(pivots: NDArray, size: int) -> Iterator[NDArray]:
    """Cut into batches; a last one of a single pivot joins the one before.

    A batch of one node has no variance to normalise by.
    """
    starts = list(range(0, len(pivots), size))
    if len(starts) > 1 and len(pivots) - starts[-1] == 1:
        starts.pop()
    for start, stop in zip(starts, [*starts[1:], len(pivots)], strict=True):
        yield pivots[start:stop]
