from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone, is_clusterer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer

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
    with pytest.raises(InputError, match="2-d"):
        LinkClusterer().fit(np.ones(128))
    with pytest.raises(InputError, match="text"):
        LinkClusterer().fit(np.array([["a"] * 128]))
