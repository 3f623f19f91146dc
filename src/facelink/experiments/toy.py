"""Figure 3: what each layer makes of a subgraph as training goes on.

One pivot, three people, embeddings of two dimensions and a network of two graph
convolutions of width two, so that every layer can be drawn. Only the links of the 1-hop
nodes are learned from; the 2-hop nodes go along.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from facelink.experiments.bench import Bench, Cell, Row
from facelink.subgraphs import Context, build_subgraphs

STEPS = (0, 10, 40, 150)
PEOPLE, PHOTOS = 3, 22
CENTERS = np.array([[0, 0], [1.3, 0.2], [0.4, 1.2]])
SPREAD = 0.4  # people overlap a little
CONTEXT = Context((24, 5), 5)
LAYERS = ("input", "layer 1", "layer 2")


def cells(bench: Bench) -> list[Cell]:
    """A row for each step: the loss, and where every layer puts the nodes."""

    def state_at(step: int) -> Row:
        return bench.once("toy", partial(train_toy, bench.seed))[step]

    return [Cell({"step": step}, partial(state_at, step), (), "toy") for step in STEPS]


def train_toy(seed: int) -> dict[int, Row]:
    """Train on one subgraph; the loss, the accuracy and the nodes' places after some steps."""
    from facelink.training.network import Batch, LinkNetwork  # says so if torch is missing

    import torch  # isort: skip
    from torch.nn.functional import cross_entropy

    from facelink.links.model import Architecture

    rng = np.random.default_rng([seed, 3])
    people = np.repeat(np.arange(PEOPLE), PHOTOS)
    x = (CENTERS[people] + SPREAD * rng.normal(size=(len(people), 2))).astype(np.float32)
    apart = np.linalg.norm(x[:, None] - x, axis=2)  # the toy's points are no directions
    np.fill_diagonal(apart, np.inf)
    neighbors = np.argsort(apart, axis=1)[:, : CONTEXT.k].astype(np.int32)
    linked = people[neighbors[:, : CONTEXT.hops[0]]] == people[:, None]
    around = people[neighbors[:, : CONTEXT.hops[0]], None] == np.arange(PEOPLE)
    pivot = int(around.sum(axis=1).min(axis=1).argmax())  # with most of everybody around
    subgraph = build_subgraphs(neighbors, np.array([pivot]), CONTEXT)
    batch = Batch.from_subgraphs(subgraph)
    truth = torch.from_numpy(linked[pivot].astype(np.int64))

    with torch.random.fork_rng():
        torch.manual_seed(seed + 1)
        network = LinkNetwork(Architecture(2, widths=(2, 2)))
        for convolution in network.convolutions:  # ReLU of width two dies easily
            torch.nn.init.constant_(convolution.get_parameter("bias"), 0.5)
        optimizer = torch.optim.Adam(network.parameters(), 0.03)
        features = torch.from_numpy(x)
        found: dict[int, Row] = {}
        for step in range(max(STEPS) + 1):
            logits = network(features, batch)
            loss = cross_entropy(logits, truth)
            if step in STEPS:
                right = (logits.argmax(dim=1) == truth).double().mean()
                found[step] = {
                    "loss": round(loss.item(), 4),
                    "right": round(right.item(), 4),
                    "people": people[subgraph.nodes].tolist(),
                    "hop 1": np.isin(
                        np.arange(len(subgraph.nodes)), subgraph.link_nodes.ravel()
                    ).tolist(),
                    "of the pivot": int(people[pivot]),
                    **{
                        name: np.round(places.tolist(), 4).tolist()
                        for name, places in zip(LAYERS, layers_of(network, features, batch),
                                                strict=True)
                    },
                }  # fmt: skip
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return found


def layers_of(network: Any, features: Any, batch: Any) -> list[Any]:
    """The nodes as each layer sees them: (nodes, 2) each."""
    import torch

    with torch.no_grad():
        x = network.normalize(network.features(features, batch))
        layers = [x]
        weights = network.fixed_weights(features, batch)
        for convolution in network.convolutions:
            x = convolution(x, batch, weights, None)
            layers.append(x)
    return layers


def draw(rows: Sequence[Row], figure: Any) -> None:
    """A panel for each layer and step."""
    figure.set_size_inches(8, 6)
    panels = figure.subplots(len(LAYERS), len(rows))
    for column, row in enumerate(rows):
        people, near = np.array(row["people"]), np.array(row["hop 1"])
        for line, name in enumerate(LAYERS):
            panel = panels[line, column]
            places = np.array(row[name])
            for person in range(PEOPLE):
                mine = people == person
                color = (
                    "#d55e00"
                    if person == row["of the pivot"]
                    else ("#0072b2", "#009e73")[person % 2]
                )
                panel.scatter(*places[mine].T, s=np.where(near[mine], 28, 7), color=color,
                              alpha=0.75, linewidths=0)  # fmt: skip
            panel.set_xticks([])
            panel.set_yticks([])
            panel.margins(0.15)
            if line == 0:
                panel.set_title(f"step {row['step']}, loss {row['loss']:.2f}")
            if column == 0:
                panel.set_ylabel(name)
