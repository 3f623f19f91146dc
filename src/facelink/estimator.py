"""The scikit-learn shell over `facelink.cluster`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils.validation import validate_data

from facelink.embeddings import as_embeddings
from facelink.links import GcnModel
from facelink.links.model import DEFAULT_MODEL
from facelink.pipeline import cluster
from facelink.subgraphs import Context

EMBEDDING_TYPES = [np.float64, np.float32, np.float16]


class LinkClusterer(ClusterMixin, BaseEstimator):
    """Group items by identity, as a scikit-learn estimator.

    Parameters
    ----------
    model : GcnModel or str
        A trained network, or the name or path of one.
    context : Context, optional
        The subgraphs to read links from; the model's own by default.
    method : {"map-equation", "propagation", "components"}
        How links are merged; see `facelink.merge_links`.
    options : mapping, optional
        Options of the method, such as ``{"threshold": 0.6}``.
    n_threads : int, optional
        All cores of the process by default.

    Attributes
    ----------
    labels_ : (n,) int array
        0 for the largest cluster and so on; an item alone has its own label.
    confidence_ : (n,) float32 array
        How sure each item is of its place, from 0 to 1.
    notes_ : tuple of str
        What the user should know about this result.
    n_features_in_ : int
        The dimension of the embeddings.

    See Also
    --------
    facelink.cluster : The same as a function.

    Examples
    --------
    >>> import facelink
    >>> faces = facelink.load_sample()
    >>> clusterer = facelink.LinkClusterer(method="components", options={"threshold": 0.8})
    >>> clusterer.fit_predict(faces.embeddings[:1000]).shape
    (1000,)
    """

    def __init__(
        self,
        *,
        model: GcnModel | str = DEFAULT_MODEL,
        context: Context | None = None,
        method: str = "map-equation",
        options: Mapping[str, Any] | None = None,
        n_threads: int | None = None,
    ) -> None:
        self.model = model
        self.context = context
        self.method = method
        self.options = options
        self.n_threads = n_threads

    def fit(self, X: ArrayLike, y: object = None) -> LinkClusterer:
        """Cluster the embeddings X (n, d); y is ignored."""
        as_embeddings(X)  # its messages say what to do
        X = validate_data(self, X, dtype=EMBEDDING_TYPES, ensure_all_finite=False)
        found = cluster(
            X,
            model=self.model,
            context=self.context,
            method=self.method,
            options=self.options,
            n_threads=self.n_threads,
        )
        self.labels_ = found.labels
        self.confidence_ = found.confidence
        self.notes_ = found.notes
        return self
