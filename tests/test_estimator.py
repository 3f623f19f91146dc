from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone, is_clusterer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer
from sklearn.utils.estimator_checks import parametrize_with_checks

import facelink
from facelink import LinkClusterer
from facelink.errors import InputError


def test_gives_what_the_function_gives(sample):
    x = sample.embeddings[:400]
    estimator = LinkClusterer()
    labels = estimator.fit_predict(x)
    found = facelink.cluster(x)
    np.testing.assert_array_equal(labels, found.labels)
    np.testing.assert_array_equal(estimator.confidence_, found.confidence)
    assert estimator.n_features_in_ == 128
    assert estimator.notes_ == ()


def test_works_in_a_pipeline_and_can_be_cloned(sample):
    x = sample.embeddings[:200].astype(np.float32)
    estimator = LinkClusterer(method="components", options={"threshold": 0.8})
    labels = make_pipeline(Normalizer(), estimator).fit_predict(x)
    copy = clone(estimator)
    assert copy.get_params() == estimator.get_params()
    assert not hasattr(copy, "labels_")
    np.testing.assert_array_equal(copy.fit(x).labels_, labels)
    assert is_clusterer(estimator)


def test_parameters_are_stored_untouched_and_checked_in_fit(sample):
    options = {"threshold": 5}
    estimator = LinkClusterer(options=options)
    assert estimator.options is options
    with pytest.raises(InputError, match="threshold should be"):
        estimator.fit(sample.embeddings[:50])
    estimator.set_params(options=None, method="magic")
    with pytest.raises(InputError, match="method should be one of"):
        estimator.fit(sample.embeddings[:50])


def test_errors_are_facelinks_own():
    with pytest.raises(InputError, match="2D"):
        LinkClusterer().fit(np.ones(128))
    with pytest.raises(InputError, match="string"):
        LinkClusterer().fit(np.array([["a"] * 128]))
    with pytest.raises(InputError, match="NaN"):
        LinkClusterer().fit(np.full((5, 8), np.nan))
    with pytest.raises(InputError, match="zero"):
        LinkClusterer().fit(np.zeros((5, 8)))


def test_a_row_of_zeros_is_alone(sample):
    x = sample.embeddings[:300].astype(np.float32)
    x[[3, 8]] = 0
    estimator = LinkClusterer().fit(x)
    assert (np.bincount(estimator.labels_)[estimator.labels_[[3, 8]]] == 1).all()
    assert (estimator.confidence_[[3, 8]] == 0).all()
    assert "2 rows of zeros are alone" in estimator.notes_[-1]
    others = np.delete(np.arange(300), [3, 8])
    np.testing.assert_array_equal(estimator.labels_[others], LinkClusterer().fit(x[others]).labels_)


@parametrize_with_checks([LinkClusterer()])
def test_it_is_an_estimator_as_scikit_learn_wants_them(estimator, check):
    check(estimator)
