import numpy as np
import pytest

import facelink
from facelink.data.synthetic import Crowd, Population
from facelink.errors import InputError


@pytest.fixture(scope="module")
def real():
    return facelink.load_sample()


@pytest.fixture(scope="module")
def people(real):
    return Population.of(real.embeddings, real.labels)


def similarities(x, labels):
    """Of photos of one person, then of strangers: means and deviations."""
    x = np.asarray(x, np.float32)
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    products = x @ x.T
    same = labels[:, None] == labels
    np.fill_diagonal(same, False)
    apart = products[labels[:, None] != labels]
    return products[same].mean(), products[same].std(), apart.mean(), apart.std()


def test_people_who_do_not_exist_look_like_real_ones(real, people):
    rows, owners = people.draw(3000, seed=0)
    wanted = similarities(real.embeddings[:3000], real.labels[:3000])
    np.testing.assert_allclose(similarities(rows, owners), wanted, atol=0.06)
    assert np.array_equal(rows, people.draw(3000, seed=0)[0])
    assert not np.array_equal(rows, people.draw(3000, seed=1)[0])


@pytest.mark.parametrize("dimension", [96, 200])
def test_they_look_alike_in_other_dimensions(people, dimension):
    nobody_often = Crowd(largest=10, junk=0)
    wanted = similarities(*people.draw(3000, seed=0, crowd=nobody_often))
    rows, labels = people.in_dimensions(dimension).draw(3000, seed=0, crowd=nobody_often)
    assert rows.shape == (3000, dimension)
    np.testing.assert_allclose(similarities(rows, labels), wanted, atol=0.03)


def test_a_crowd_is_made_up_as_asked(people):
    crowd = Crowd(largest=50, families=0.5, alike=0.8, junk=0.1, sessions=0.5)
    out = np.empty((5000, 128), np.float16)
    rows, labels = people.draw(5000, seed=0, crowd=crowd, out=out)
    assert rows is out
    sizes = np.bincount(labels)
    assert 30 < sizes.max() <= 50
    assert (sizes == 1).sum() > 500  # junk, and people with one photo

    def means(crowd):
        x, y = people.draw(5000, seed=0, crowd=crowd)
        many = np.flatnonzero(np.bincount(y) >= 10)
        found = np.stack([x[y == person].mean(axis=0) for person in many])
        return found / np.linalg.norm(found, axis=1, keepdims=True)

    def nearest(rows):
        products = rows @ rows.T
        np.fill_diagonal(products, -1)
        return products.max(axis=1).mean()

    strangers = Crowd(largest=50, families=0.0, junk=0.0)
    related = Crowd(largest=50, families=1.0, alike=0.8, junk=0.0)
    assert nearest(means(related)) > nearest(means(strangers)) + 0.05


def test_a_collection_without_pairs_cannot_be_imitated():
    with pytest.raises(InputError, match="at most one person twice"):
        Population.of(np.eye(4), np.arange(4))
