"""Collections that look like real ones."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

SIZES = (40, 25, 16, 12, 9, 7, 5, 4, 4, 3, 3, 2, 2, 2) + (1,) * 30


class Faces(NamedTuple):
    embeddings: np.ndarray
    labels: np.ndarray


def make_faces(
    sizes: tuple[int, ...] = SIZES,
    dimension: int = 32,
    noise: float = 0.6,
    n_copies: int = 3,
    seed: int = 0,
) -> Faces:
    """Unit vectors around long-tailed identities, with singletons and a few exact copies."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    centres = rng.normal(size=(len(sizes), dimension))
    x = centres[labels] + noise * rng.normal(size=(len(labels), dimension))
    copied = rng.choice(len(labels), n_copies, replace=False)
    x, labels = np.concatenate([x, x[copied]]), np.concatenate([labels, labels[copied]])
    order = rng.permutation(len(labels))
    x = x[order].astype(np.float32)
    return Faces(x / np.linalg.norm(x, axis=1, keepdims=True), labels[order])


def random_network(architecture):
    """A torch network in which every weight and statistic matters."""
    import torch

    from facelink.training.network import LinkNetwork

    torch.manual_seed(0)
    network = LinkNetwork(architecture).eval()
    for parameter in network.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    network.normalize.running_mean.normal_(0, 0.1)
    network.normalize.running_var.uniform_(0.01, 0.1)
    return network


@pytest.fixture(scope="session")
def faces() -> Faces:
    return make_faces()


@pytest.fixture(scope="session")
def sample() -> Faces:
    import facelink

    return Faces(*facelink.load_sample())


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread():
    """Networks as small as the tests' only wait for each other on two threads."""
    try:
        import torch
    except ImportError:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
