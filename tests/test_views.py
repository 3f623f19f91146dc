"""Several embeddings of the same items."""

from __future__ import annotations

import numpy as np
import pytest

import facelink
from conftest import make_faces
from facelink.errors import InputError, ModelError
from facelink.links.universal import look_at_all
from facelink.links.views import score_views
from facelink.views import as_views, even_weights, join


def views_of_the_same(noise):
    """Two views of the same people, and who they are."""
    sizes = (20,) * 12 + (1,) * 20
    faces = make_faces(sizes, noise=noise, n_copies=0, seed=1)
    other = make_faces(sizes, dimension=24, noise=noise, n_copies=0, seed=3)
    # The same person in both: items of the second are put in the order of the first.
    place = np.empty(len(faces.labels), int)
    place[np.argsort(faces.labels, kind="stable")] = np.argsort(other.labels, kind="stable")
    return faces.embeddings.copy(), other.embeddings[place].copy(), faces.labels


@pytest.fixture(scope="module")
def two_views():
    """Two views of the same people, each of which shows half of the items badly."""
    x, v, labels = views_of_the_same(0.5)
    rng = np.random.default_rng(2)
    bad = rng.random(len(x)) < 0.5
    x[bad] += 0.5 * rng.normal(size=x[bad].shape)
    v[~bad] += 0.5 * rng.normal(size=v[~bad].shape)
    return x, v, labels


def test_join_views_by_hand():
    faces = np.array([[3, 4], [0, 2], [np.nan, np.nan]])
    voices = np.array([[5.0], [np.nan], [-1.0]])
    joined = facelink.join_views([faces, voices], weights=[1, 0.5])
    np.testing.assert_allclose(joined, [[0.6, 0.8, 0.5], [0, 1, 0], [0, 0, -0.5]], rtol=1e-6)


def test_similarity_of_joined_is_the_weighted_mean():
    rng = np.random.default_rng(0)
    x, v = rng.normal(size=(6, 4)), rng.normal(size=(6, 9))
    joined = facelink.join_views([x, v], weights=[2, 1])
    graph = facelink.knn_graph(joined, 5)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    v /= np.linalg.norm(v, axis=1, keepdims=True)
    wanted = (4 * x @ x.T + v @ v.T) / 5
    found = np.take_along_axis(wanted, graph.indices, axis=1)
    np.testing.assert_allclose(graph.similarities, found, atol=1e-6)


def test_two_views_are_better_than_either_and_as_good_as_joined(two_views):
    x, v, truth = two_views

    def score(labels):
        return facelink.metrics.bcubed(truth, labels).f

    both = score(facelink.cluster(x, views=[v]).labels)
    assert both > score(facelink.cluster(x).labels) + 0.03
    assert both > score(facelink.cluster(v).labels) + 0.03
    # Links of joined ones are all reviewed, those of single views are not: neither is always ahead.
    assert both > score(facelink.cluster(facelink.join_views([x, v])).labels) - 0.03


def test_items_may_lack_a_view():
    x, v, truth = views_of_the_same(0.5)
    x[::5], v[1::5] = np.nan, np.nan
    found = facelink.cluster(x, views=[v])
    assert np.isfinite(found.confidence).all()
    assert facelink.metrics.bcubed(truth, found.labels).f > 0.95
    # Who is only heard and who is only seen are in one cluster through those who are both.
    person = np.flatnonzero(truth == truth[0])
    assert len(np.unique(found.labels[person])) == 1


def test_the_order_of_views_hardly_matters(two_views):
    x, v, _ = two_views
    one, two = facelink.cluster(x, views=[v]), facelink.cluster(v, views=[x])
    assert facelink.metrics.bcubed(one.labels, two.labels).f > 0.97


@pytest.mark.parametrize("n_items", [1, 2, 5])
def test_few_items(two_views, n_items):
    x, v, _ = two_views
    found = facelink.cluster(x[:n_items], views=[v[:n_items]])
    assert len(found.labels) == n_items


def test_no_two_share_a_view():
    x = np.array([[1.0, 0], [np.nan, np.nan]])
    v = np.array([[np.nan], [1.0]])
    assert facelink.cluster(x, views=[v]).labels.tolist() == [0, 1]


def test_copies_in_every_view_are_one_person(two_views):
    x, v, _ = two_views
    x, v = np.concatenate([x, x[:1]]), np.concatenate([v, v[:1]])
    found = facelink.cluster(x, views=[v])
    assert found.labels[0] == found.labels[-1]


def test_links_are_the_surest_of_the_views(two_views):
    x, v, _ = two_views
    model = facelink.load_model("universal")
    views = as_views([x, v])
    joined = facelink.embeddings.UnitRows(join(views, even_weights(views)))
    found = score_views(views, joined, model)
    alone = [look_at_all(view.rows, facelink.knn_graph(view.rows, 80), model) for view in views]
    alone.append(facelink.score_links(joined, facelink.knn_graph(joined, 80), model))
    for item in (0, 7, 100):
        wanted: dict[int, float] = {}
        for links in alone:
            for other, p in zip(links.neighbors[item], links.likelihood[item], strict=True):
                wanted[int(other)] = max(wanted.get(int(other), 0), float(p))
        seen = dict(zip(found.neighbors[item].tolist(), found.likelihood[item], strict=True))
        assert len(seen) == found.graph.k
        for other, p in seen.items():
            assert p == pytest.approx(wanted[other], abs=1e-6)
        left_out = [p for other, p in wanted.items() if other not in seen]
        assert max(left_out, default=0) <= min(seen.values()) + 1e-6


def test_models_of_the_papers_kind_take_the_views_they_were_trained_on(two_views, tmp_path):
    x, v, truth = two_views
    model = facelink.train(x, truth, views=[v], weights=[1, 0.5], widths=(8, 8), hops=(10, 3), u=3,
                           epochs=1)  # fmt: skip
    assert model.views == ((x.shape[1], 1.0), (v.shape[1], 0.5))
    model.save(tmp_path / "both.safetensors")
    again = facelink.load_model(tmp_path / "both.safetensors")
    assert again.views == model.views
    found = facelink.cluster(x, views=[v], model=again)
    joined = facelink.join_views([x, v], weights=[1, 0.5])
    np.testing.assert_array_equal(found.labels, facelink.cluster(joined, model=model).labels)
    with pytest.raises(ModelError, match="views of 32 and 24 dimensions, got 24 and 32"):
        facelink.cluster(v, views=[x], model=again)
    with pytest.raises(ModelError, match="views of 32 and 24 dimensions, got 32"):
        facelink.cluster(x, model=again)


def test_a_model_of_one_view_refuses_two():
    with pytest.raises(ModelError, match="embeddings of one kind"):
        facelink.cluster(np.ones((5, 64)), views=[np.ones((5, 64))], model="mobileface-128")


@pytest.mark.parametrize(
    ("views", "message"),
    [
        ([np.ones((3, 2)), np.ones((4, 2))], "expected 3 rows in view 2, as in the first, got 4"),
        ([np.ones((2, 2)), np.full((2, 2), np.nan)], "View 2 is missing of every item"),
        ([[[1.0, 0], [np.nan, 1]], np.ones((2, 2))], "View 1: NaN or infinity in 1 row"),
        ([[[1.0], [np.nan]], [[1.0], [np.nan]]], "Every view is missing of 1 of the items: 1"),
        ([np.ones((2, 2)), np.zeros((2, 2))], "View 2: Zero vectors"),
    ],
)
def test_what_is_wrong_with_views_is_said(views, message):
    with pytest.raises(InputError, match=message):
        facelink.cluster(views[0], views=views[1:])


@pytest.mark.parametrize("weights", [[1], [1, 0], [1, -1], [1, np.inf], ["a", 1], 3])
def test_weights_are_checked(weights):
    with pytest.raises(InputError, match="2 weights above 0"):
        facelink.join_views([np.ones((3, 2)), np.ones((3, 2))], weights=weights)


def test_weights_without_views_are_refused():
    with pytest.raises(InputError, match="several views"):
        facelink.cluster(np.eye(3), weights=[1])


def test_rows_are_counted_as_the_user_counts_them():
    x = np.ones((9, 2))
    x[3], x[7, 0] = np.nan, np.nan
    with pytest.raises(InputError, match=r"View 2: NaN or infinity in 1 row of the embeddings: 7 "):
        facelink.cluster(np.ones((9, 2)), views=[x])


def test_a_placeholder_joins_nobody(two_views):
    x, v, truth = (part.copy() for part in two_views)
    silence = np.arange(len(v)) % 3 == 0
    v[silence] = v[0]
    found = facelink.cluster(x, views=[v])
    assert "looks like a placeholder" in " ".join(found.notes)
    assert facelink.metrics.bcubed(truth, found.labels).precision > 0.9
    v[:] = 1
    alone = facelink.cluster(x, views=[v])
    assert facelink.metrics.bcubed(truth, alone.labels).precision > 0.9


def test_a_view_of_little_weight_does_not_decide(two_views):
    x, v, truth = two_views
    rng = np.random.default_rng(0)
    strangers = v[rng.permutation(len(v))]  # sure of links that are wrong
    alike = facelink.cluster(x, views=[strangers])
    less = facelink.cluster(x, views=[strangers], weights=[1, 0.2])

    def precision(found):
        return facelink.metrics.bcubed(truth, found.labels).precision

    assert precision(less) > precision(alike) + 0.05


def test_the_context_counts_with_views_too(two_views):
    x, v, _ = two_views
    views = as_views([x, v])
    joined = facelink.embeddings.UnitRows(join(views, [1, 1]))
    model = facelink.load_model("universal")
    assert score_views(views, joined, model, context=facelink.Context((7,), 7)).graph.k == 7


def test_views_may_be_one_array(two_views):
    x, v, _ = two_views
    one = facelink.cluster(x, views=v[None])
    np.testing.assert_array_equal(one.labels, facelink.cluster(x, views=[v]).labels)
