from __future__ import annotations

import numpy as np
import pytest

import facelink
from conftest import make_faces
from facelink.embeddings import UnitRows
from facelink.links.background import LEVELS, Background


def test_it_is_that_of_strangers():
    """People with many photos do not move it."""
    x, labels = make_faces(sizes=(40,) * 12, dimension=64, n_copies=0)
    products = x @ x.T
    strangers = products[labels[:, None] != labels]
    background = Background.of(UnitRows(x))
    assert background.typical_center == pytest.approx(np.median(strangers), abs=0.03)
    assert background.typical_spreads == pytest.approx([strangers.std()] * 3, rel=0.3)


def test_what_resembles_its_like_has_a_wide_upper_side():
    """Bad photos of different people are alike, as far as nobody else is."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 64)) / 8
    blurred = np.arange(400)
    x[blurred] = 0.6 * x[blurred] + 0.4 * rng.normal(size=64) / 8 * 2
    background = Background.of(UnitRows(x))
    below, _, far_above = (background.spreads / background.typical_spreads).T
    assert np.median(far_above[blurred]) > 2
    assert np.median(far_above[len(blurred) :]) < 1.2
    assert np.median(below[blurred]) < 1.5


def test_how_many_others_are_so_similar_is_counted():
    x, _ = make_faces(sizes=(40,) * 12, dimension=64, n_copies=0)
    background = Background.of(UnitRows(x))
    item = 7
    similarity = (x @ x[item] - background.center[item]) / (1 - background.center[item])
    for level, log_share in enumerate(background.above[item]):
        wanted = np.count_nonzero(similarity >= level / LEVELS - 1e-5)  # the item itself, too
        assert np.exp(log_share) * (len(x) + 1) == pytest.approx(wanted + 0.5, abs=1.01)


def test_between_somebody_with_many_photos_and_strangers_there_is_nobody():
    """As many are far above the middle as among blurred faces, but none half as far."""
    rng = np.random.default_rng(0)
    strangers = rng.normal(size=(1000, 64)) / 8
    some, others = strangers[:120], strangers[120:]
    blur = rng.uniform(0, 0.6, (120, 1))
    blurred = (1 - blur) * some + blur * rng.normal(size=64) / 8
    photos = rng.normal(size=64) / 8 + 0.5 * some

    def growth(some):
        """By how much more are half as similar as the usual one than three quarters as."""
        background = Background.of(UnitRows(np.concatenate([some, others])))
        levels = np.linspace(0, 1, LEVELS + 1)
        shares = []
        for above in background.above[: len(some)]:
            usual = np.interp(np.log(0.06), above[::-1], levels[::-1])
            shares.append(np.interp([0.5 * usual, 0.75 * usual], levels, above))
        half, three_quarters = np.median(shares, axis=0)
        return half - three_quarters

    assert growth(photos) < 0.1
    assert growth(blurred) > 0.4


def test_items_without_a_spread_are_given_some():
    x = np.eye(40)[np.repeat(np.arange(20), 2)] + 1e-9
    background = Background.of(UnitRows(x))
    assert (background.spreads > 0).all()
    assert background.spread > 0


@pytest.mark.parametrize("difference", [1e-3, 1e-5, 1e-7])
def test_items_that_are_all_but_identical_can_be_clustered(difference):
    rng = np.random.default_rng(0)
    x = rng.normal(size=64) + difference * rng.normal(size=(200, 64))
    found = facelink.cluster(x.astype(np.float32))
    assert np.isfinite(found.confidence).all()
    assert len(found.labels) == 200
