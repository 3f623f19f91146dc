"""Networks side by side."""

from itertools import pairwise

import numpy as np

from facelink.links.perceptron import FARTHEST, SETTLED, Perceptron


def side_by_side(members: int, seed: int = 1) -> Perceptron:
    rng = np.random.default_rng(seed)
    widths = (6, 8, 1)
    layers = tuple(
        (
            rng.normal(0, 2, (members, a, b)).astype(np.float32),
            rng.normal(0, 1, (members, b)).astype(np.float32),
        )
        for a, b in pairwise(widths)
    )
    return Perceptron(np.zeros(6, np.float32), np.ones(6, np.float32), layers)


def test_log_odds_are_the_mean_of_those_of_the_members():
    network = side_by_side(3)
    features = np.random.default_rng(1).uniform(-FARTHEST, FARTHEST, (500, 6)).astype(np.float32)
    alone = []
    for member in range(3):
        layers = tuple((matrices[member], biases[member]) for matrices, biases in network.layers)
        x = np.maximum(features @ layers[0][0] + layers[0][1], 0)
        alone.append((x @ layers[1][0] + layers[1][1])[:, 0])
    asked = np.abs(alone[0]) < SETTLED
    assert asked.any()
    assert {-1, 1} == set(np.sign(alone[0][~asked]))  # some are settled either way
    found = network.log_odds(features)
    np.testing.assert_allclose(found[asked], np.mean(alone, axis=0)[asked], rtol=1e-4, atol=1e-4)
    # What the first is sure of, the others are not asked about.
    np.testing.assert_allclose(found[~asked], alone[0][~asked], rtol=1e-4, atol=1e-4)


def test_no_pairs_and_none_worth_a_question():
    network = side_by_side(3)
    assert network.probabilities(np.empty((0, 6), np.float32)).shape == (0,)
    network.layers[-1][1][0] = -1000.0
    assert (network.probabilities(np.zeros((4, 6), np.float32)) < 1e-9).all()
