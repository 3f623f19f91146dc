"""Group faces by identity: embeddings in, people out.

>>> import facelink
>>> faces = facelink.load_sample()
>>> people = facelink.cluster(faces.embeddings)
>>> people.labels.shape
(4484,)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Where each public name lives: imported when first used, so that `import facelink` and
# `facelink --help` do not wait for numba, scikit-learn or torch.
_HOMES = {
    "Clustering": "facelink.pipeline",
    "Context": "facelink.subgraphs",
    "GcnModel": "facelink.links",
    "KnnGraph": "facelink.neighbors",
    "LinkClusterer": "facelink.estimator",
    "Links": "facelink.links",
    "Model": "facelink.links",
    "UniversalModel": "facelink.links",
    "cluster": "facelink.pipeline",
    "errors": "facelink.errors",
    "join_fragments": "facelink.merging",
    "join_views": "facelink.views",
    "knn_graph": "facelink.neighbors",
    "load_model": "facelink.links",
    "load_sample": "facelink.data.sample",
    "merge_links": "facelink.merging",
    "metrics": "facelink.metrics",
    "score_links": "facelink.links",
    "train": "facelink.training",
}

__all__ = [
    "Clustering",
    "Context",
    "GcnModel",
    "KnnGraph",
    "LinkClusterer",
    "Links",
    "Model",
    "UniversalModel",
    "cluster",
    "errors",
    "join_fragments",
    "join_views",
    "knn_graph",
    "load_model",
    "load_sample",
    "merge_links",
    "metrics",
    "score_links",
    "train",
]

if TYPE_CHECKING:
    from facelink import errors, metrics
    from facelink.data.sample import load_sample
    from facelink.estimator import LinkClusterer
    from facelink.links import GcnModel, Links, Model, UniversalModel, load_model, score_links
    from facelink.merging import join_fragments, merge_links
    from facelink.neighbors import KnnGraph, knn_graph
    from facelink.pipeline import Clustering, cluster
    from facelink.subgraphs import Context
    from facelink.training import train
    from facelink.views import join_views


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'facelink' has no attribute {name!r}")
    from facelink.errors import MissingExtraError

    try:
        module = import_module(_HOMES[name])
    except MissingExtraError as error:  # said to whoever calls it, not to whoever looks around
        return _lacking(error)
    value = module if _HOMES[name] == f"facelink.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def _lacking(error: Exception) -> Any:
    def lacking(*_: object, **__: object) -> None:
        raise error

    return lacking


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
