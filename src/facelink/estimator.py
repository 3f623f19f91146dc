"""The scikit-learn shell over `facelink.cluster`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils.validation import validate_data

from facelink.errors import InputError
from facelink.links import Model
from facelink.links.model import DEFAULT_MODEL, DEFAULT_PRESET
from facelink.pipeline import cluster
from facelink.subgraphs import Context

EMBEDDING_TYPES = [np.float64, np.float32, np.float16]


class LinkClusterer(ClusterMixin, BaseEstimator):
    """Group items by identity, as a scikit-learn estimator.

    Parameters
    ----------
    model : Model or str
        The name or path of a model, or one from `facelink.train` or
        `facelink.load_model`. The default takes any embedding.
    preset : {"balanced", "purity"}
        ``"purity"`` makes fewer wrong merges and splits more people.
    context : Context, optional
        What to read links from; the model's own by default.
    method : {"map-equation", "propagation", "components"}
        How links are merged; see `facelink.merge_links`.
    options : mapping, optional
        Options of the method, for experts: ``{"threshold": 0.6}`` instead of
        the preset's likelihood.
    neighbors : {"auto", "exact", "approximate"}
        How neighbours are searched; by size by default.
    device : str, optional
        A device of torch's for a model of the paper's kind, like ``"cuda"``. By
        default the CPU, without torch.
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
        model: Model | str = DEFAULT_MODEL,
        preset: str = DEFAULT_PRESET,
        context: Context | None = None,
        method: str = "map-equation",
        options: Mapping[str, Any] | None = None,
        neighbors: str = "auto",
        device: str | None = None,
        n_threads: int | None = None,
    ) -> None:
        self.model = model
        self.preset = preset
        self.context = context
        self.method = method
        self.options = options
        self.neighbors = neighbors
        self.device = device
        self.n_threads = n_threads

    def fit(self, X: ArrayLike, y: object = None) -> LinkClusterer:
        """Cluster the embeddings X (n, d); y is ignored.

        A row of zeros, which `facelink.cluster` refuses because it points
        nowhere, is alone here, with confidence 0: estimators are expected to
        take any finite numbers.
        """
        try:
            checked: NDArray[np.floating] = validate_data(
                self, X, dtype=EMBEDDING_TYPES, ensure_all_finite=False
            )
        except ValueError as error:
            raise InputError(str(error)) from error
        somewhere = checked.any(axis=1)
        if not somewhere.any():
            raise InputError("All rows of X are zero: there is nothing to compare.")
        found = cluster(
            checked if somewhere.all() else checked[somewhere],
            model=self.model,
            preset=self.preset,
            context=self.context,
            method=self.method,
            options=self.options,
            neighbors=self.neighbors,
            device=self.device,
            n_threads=self.n_threads,
        )
        n_alone = int((~somewhere).sum())
        self.labels_ = np.empty(len(checked), np.int64)
        self.labels_[somewhere] = found.labels
        self.labels_[~somewhere] = found.labels.max() + 1 + np.arange(n_alone)
        self.confidence_ = np.zeros(len(checked), np.float32)
        self.confidence_[somewhere] = found.confidence
        self.notes_ = found.notes
        if n_alone:
            rows = "1 row of zeros is" if n_alone == 1 else f"{n_alone:,} rows of zeros are"
            self.notes_ += (f"{rows} alone: a zero vector points nowhere.",)
        return self
