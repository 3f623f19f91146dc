"""PAHC and DDC: how neighbourhoods are described, and how alike two of them are."""

from __future__ import annotations

import numpy as np
import pytest
from test_face_methods import on_circle

from conftest import make_faces
from facelink.baselines.ddc import cover, ddc, prepare_ddc
from facelink.baselines.neighborhoods import Views, mutual_similarity
from facelink.baselines.pahc import pahc, separate
from facelink.links import Pairs

# PAHC


@pytest.mark.parametrize("c", [0.1, 10.0])
def test_machines_agree_with_liblinear(faces, c):
    from sklearn.svm import LinearSVC

    examples = faces.embeddings[:120].reshape(8, 15, 32)
    n_positive = 4
    shares, offset = separate(examples, n_positive, c)
    y = np.arange(15) < n_positive
    costs = {True: 15 / 4, False: 15 / 11}
    for x, share, b in zip(examples, shares, offset, strict=True):
        svc = LinearSVC(C=c, class_weight=costs, tol=1e-8, max_iter=100_000, dual=True)
        svc.fit(x, y)
        np.testing.assert_allclose(share @ x, svc.coef_[0], atol=0.01)
        assert b == pytest.approx(svc.intercept_[0], abs=0.01)


def test_machine_without_negatives_and_of_copies():
    shares, offset = separate(np.ones((1, 4, 1), np.float32), 4, 1.0)
    # min ½ (w² + b²) + 4 (1 − w − b)²: w = b = 8 / 17
    assert shares.sum() == pytest.approx(8 / 17, abs=1e-3)
    assert offset[0] == pytest.approx(8 / 17, abs=1e-3)


# DDC


def test_spheres_agree_with_the_one_class_machine(faces):
    from sklearn.svm import OneClassSVM

    examples = faces.embeddings[:120].reshape(12, 10, 32)
    for softness in (0.15, 0.5, 0.9):
        for x, weights in zip(examples, cover(examples, softness), strict=True):
            svm = OneClassSVM(kernel="linear", nu=softness, tol=1e-8).fit(x)
            expected = svm.coef_[0] / svm.dual_coef_.sum()
            np.testing.assert_allclose(weights @ x, expected, atol=1e-3)


def test_spheres_meet_their_conditions():
    x = make_faces().embeddings[:40].reshape(2, 20, 32)
    cap = 1 / (0.3 * 20)
    for points, weights in zip(x, cover(x, 0.3), strict=True):
        assert weights.sum() == pytest.approx(1)
        assert weights.min() >= 0
        assert weights.max() <= cap
        distance = np.linalg.norm(points - weights @ points, axis=1)
        on_sphere = (weights > 0) & (weights < cap)
        radius = distance[on_sphere].mean()
        np.testing.assert_allclose(distance[on_sphere], radius, atol=1e-4)
        assert (distance[weights == 0] <= radius + 1e-4).all()
        assert (distance[weights == cap] >= radius - 1e-4).all()


def test_smallest_circle_by_hand():
    x = on_circle(-30, 0, 10, 30)[None]
    weights = cover(x, 0.25)[0]  # ν m = 1: all must be inside
    np.testing.assert_allclose(weights, [0.5, 0, 0, 0.5], atol=1e-4)
    np.testing.assert_allclose(cover(x, 1.0)[0], 0.25)


def test_mutual_similarity_is_the_mean_over_the_other_neighborhood():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, 5)).astype(np.float32)
    near = rng.integers(0, 12, (12, 3))
    weights, offset = rng.normal(size=(12, 5)), rng.normal(size=12)
    views = Views(weights.astype(np.float32), offset.astype(np.float32), x[near].mean(axis=1))
    pairs = Pairs(12, np.array([0, 2, 5]), np.array([3, 4, 9]), np.zeros(3, np.float32))
    expected = [
        (
            np.mean([weights[a] @ x[i] + offset[a] for i in near[b]])
            + np.mean([weights[b] @ x[i] + offset[b] for i in near[a]])
        )
        / 2
        for a, b in zip(pairs.first, pairs.second, strict=True)
    ]
    np.testing.assert_allclose(mutual_similarity(pairs, views), expected, atol=1e-5)


@pytest.mark.parametrize("method", [ddc, pahc])
def test_rows_that_are_read_piece_by_piece_give_the_same(method, faces, monkeypatch):
    whole = method(faces.embeddings, threshold=0.3)
    monkeypatch.setattr("facelink.baselines.neighborhoods.BLOCK_BYTES", 4096)
    np.testing.assert_array_equal(method(faces.embeddings, threshold=0.3), whole)


def test_ddc_of_pairs_by_hand():
    # One neighbour each: N = both of a pair, the centre their mean m (ν = 1). Within a
    # pair of angle φ the similarity is |m|² = (1 + cos φ) / 2.
    labels_at = prepare_ddc(on_circle(0, 60, 180, 200), k=1, n_near=1, softness=1.0)
    within = (1 + np.cos(np.radians([60, 20]))) / 2  # 0.75, 0.97
    assert labels_at(within[0] - 0.01).tolist() == [0, 0, 1, 1]
    assert labels_at(within[0] + 0.01).tolist() == [1, 2, 0, 0]
    assert labels_at(within[1] + 0.01).tolist() == [0, 1, 2, 3]
