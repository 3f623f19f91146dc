from __future__ import annotations

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from conftest import make_faces
from facelink.embeddings import UnitRows
from facelink.links import variation
from facelink.links.variation import Whitened, _directions, _some_clusters


def people_who_age(n_people: int = 40, n_photos: int = 20, dimension: int = 32):
    """Everybody's photos differ along the same three directions, far more than elsewhere."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(n_people), n_photos)
    x = rng.normal(size=(n_people, dimension))[labels] + 0.3 * rng.normal(
        size=(len(labels), dimension)
    )
    x[:, :3] += 4 * rng.normal(size=(len(labels), 3))
    return UnitRows(x), labels


def separation(rows, labels):
    """How far the similarities of one person's photos lie above strangers', in deviations."""
    products = rows[:] @ rows[:].T
    same = labels[:, None] == labels
    strangers = products[~same]
    np.fill_diagonal(same, False)
    return (products[same].mean() - strangers.mean()) / strangers.std()


def test_what_photos_of_one_person_differ_in_counts_for_less():
    rows, labels = people_who_age()
    whitened = Whitened(rows, labels)
    assert separation(whitened, labels) > 3 * separation(rows, labels)
    np.testing.assert_allclose(np.linalg.norm(whitened[:], axis=1), 1, rtol=1e-5)


def test_pieces_of_people_show_it_as_well():
    """Nobody has to be found whole for it."""
    rows, labels = people_who_age()
    pieces = 5 * labels + np.random.default_rng(1).integers(0, 5, len(labels))
    assert separation(Whitened(rows, pieces), labels) > 2 * separation(rows, labels)


def test_where_all_are_alone_nothing_changes():
    rows = UnitRows(make_faces(dimension=24).embeddings)
    whitened = Whitened(rows, np.arange(len(rows)))
    np.testing.assert_allclose(whitened[:] @ whitened[:].T, rows[:] @ rows[:].T, atol=1e-5)


def test_the_variation_is_alike_in_all_directions(monkeypatch):
    monkeypatch.setattr(variation, "EVEN", 0.0)
    monkeypatch.setattr(variation, "FEW", 0.0)
    rows, labels = people_who_age(n_photos=100)
    sizes = np.bincount(labels)
    x = rows[:]
    matrix = _directions(x, labels, sizes, np.ones(len(x), np.float32))
    seen = x @ matrix
    residuals = seen - (np.eye(len(sizes))[labels].T @ seen / sizes[:, None])[labels]
    values = np.linalg.eigvalsh(residuals.T @ residuals)
    assert values[-1] < 1.2 * values[0]


@pytest.mark.parametrize(("n", "d"), [(1, 5), (2, 3), (5, 600), (40, 700), (900, 600)])
def test_any_number_of_items_and_dimensions(n, d):
    x = np.random.default_rng(0).normal(size=(n, d))
    whitened = Whitened(UnitRows(x), np.arange(n) // 3)
    assert whitened.shape == whitened.array.shape == (n, min(n, d, variation.DIRECTIONS))
    assert len(whitened) == n
    assert np.isfinite(whitened.array).all()
    assert np.isfinite(whitened.background.center).all()
    assert (whitened.background.spreads > 0).all()


def test_wide_rows_are_seen_in_what_some_of_them_span(monkeypatch):
    rows, labels = people_who_age()
    wanted = separation(Whitened(rows, labels), labels)
    monkeypatch.setattr(variation, "WIDEST", 24)
    assert separation(Whitened(rows, labels), labels) > 0.7 * wanted


def test_it_does_not_depend_on_threads(monkeypatch):
    monkeypatch.setattr(variation, "BLOCK_ROWS", 100)
    rows, labels = people_who_age(dimension=200)
    found = []
    for n_threads in (1, 2):
        with threadpool_limits(n_threads):
            found.append(Whitened(rows, labels, n_threads=n_threads))
    np.testing.assert_array_equal(*(whitened.array for whitened in found))
    np.testing.assert_array_equal(*(whitened.background.spreads for whitened in found))


def test_few_photos_show_as_much_variation_as_many(monkeypatch):
    """A mean of two lies between them."""
    monkeypatch.setattr(variation, "EVEN", 0.0)
    monkeypatch.setattr(variation, "FEW", 0.0)
    rng = np.random.default_rng(0)
    labels = np.r_[np.repeat(np.arange(1000), 2), np.repeat(np.arange(1000, 1100), 20)]
    sizes = np.bincount(labels)
    x = rng.normal(size=(len(sizes), 8))[labels] + 0.1 * rng.normal(size=(len(labels), 8))
    x[:2000, 0] += rng.normal(size=2000)  # people of two photos differ in one direction
    x[2000:, 1] += rng.normal(size=2000)  # and those of twenty in another
    matrix = _directions(x.astype(np.float32), labels, sizes, np.ones(len(x), np.float32))
    within = np.linalg.inv((matrix @ matrix.T).astype(np.float64))
    assert within[0, 0] == pytest.approx(within[1, 1], rel=0.15)


def test_items_are_drawn_by_the_cluster(monkeypatch):
    """Items drawn one by one would seldom meet another of their cluster."""
    monkeypatch.setattr(variation, "SAMPLE", 90)
    monkeypatch.setattr(variation, "LARGE_SAMPLE", 50)
    labels = np.random.default_rng(0).permutation(np.r_[np.repeat(np.arange(400), 3), [400] * 900])
    chosen = _some_clusters(labels)
    assert len(chosen) == len(np.unique(chosen)) == 90
    counts = np.bincount(labels[chosen])
    assert counts.max() <= 50
    assert np.isin(np.sort(counts[(counts > 0) & (np.arange(len(counts)) < 400)])[1:], [3]).all()


def test_strangers_are_where_their_moments_say():
    rows, labels = people_who_age(n_people=200, n_photos=3)
    whitened = Whitened(rows, labels)
    products = whitened[:] @ whitened[:].T
    strangers = np.where(labels[:, None] != labels, products, np.nan)
    center, spread = np.nanmean(strangers, axis=1), np.nanstd(strangers, axis=1)
    np.testing.assert_allclose(whitened.background.center, center, atol=0.05)
    np.testing.assert_allclose(whitened.background.spreads[:, 0], spread, rtol=0.15)
