"""The methods that the paper compares with, and a few more: one file each.

Each file has a function of the method's name, ``labels = method(embeddings, *,
knob, graph=None, ...)``, and ``prepare_method``, which does what does not depend
on the knob once and returns the labels as a function of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facelink.baselines.pairs import similarity_pairs
from facelink.baselines.sizes import check_size
from facelink.embeddings import UnitRows
from facelink.neighbors import KnnGraph

__all__ = ["BASELINES", "Baseline", "check_size", "similarity_pairs"]

# Of the true number of people, for methods that have to be told how many there are. The
# most first: of their eigenvectors the others can be served.
SHARES = (1.5, 1.2, 1.0, 0.85, 0.7, 0.5)


@dataclass(frozen=True)
class Baseline:
    """A method to compare with, and how to tune it.

    Attributes
    ----------
    name : str
        As in the tables.
    module : str
        The file in this folder, and the function in it. It is imported when
        first needed.
    knob : str
        The parameter that is tuned.
    n_neighbors : int
        The width of the kNN graph it reads; 0 if it reads none.
    variants : tuple of dict
        Values of its other parameters to try, the usual ones first.

    Examples
    --------
    >>> import facelink
    >>> from facelink.baselines import BASELINES
    >>> faces = facelink.load_sample()
    >>> ahc = BASELINES["ahc"]
    >>> labels_at = ahc.prepare(faces.embeddings)
    >>> n_people = len(set(faces.labels))
    >>> scores = [facelink.metrics.bcubed(faces.labels, labels_at(threshold)).f
    ...           for threshold in ahc.grid(n_people)]
    >>> max(scores) > 0.9
    True
    """

    name: str
    module: str
    knob: str
    n_neighbors: int = 80
    variants: tuple[Mapping[str, int], ...] = ({},)

    def prepare(
        self, embeddings: ArrayLike | UnitRows, *, graph: KnnGraph | None = None, **variant: int
    ) -> Callable[[Any], NDArray[np.int64]]:
        """Do what does not depend on the knob; returns the labels as a function of it.

        A graph wider than the method reads is cut to its width first.
        """
        if graph is not None and self.n_neighbors:
            graph = graph.narrowed(self.n_neighbors)
        return self._part(f"prepare_{self.module}")(embeddings, graph=graph, **variant)

    def grid(self, n_people: int) -> Sequence[float]:
        """The knob's values to try, in this order, when tuned on so many people by oracle."""
        if self.knob == "n_clusters":
            return tuple(max(1, round(share * n_people)) for share in SHARES)
        return self._part("GRID")

    def _part(self, name: str) -> Any:
        return getattr(import_module(f"facelink.baselines.{self.module}"), name)


BASELINES: dict[str, Baseline] = {
    method.module: method
    for method in (
        Baseline("K-means", "kmeans", "n_clusters", 0),
        Baseline("Spectral", "spectral", "n_clusters"),
        Baseline("AHC", "ahc", "threshold"),
        Baseline("Affinity Propagation", "affinity_propagation", "preference", 0),
        Baseline("DBSCAN", "dbscan", "eps", 80, tuple({"min_samples": m} for m in (4, 2, 8))),
        Baseline("Rank-Order", "rank_order", "threshold"),
        # Its authors' k is 200, for a million faces.
        Baseline("ARO", "aro", "threshold", 200, tuple({"k": k} for k in (20, 10, 50, 200))),
        Baseline("CDP", "cdp", "threshold", 15),
        Baseline("PAHC", "pahc", "threshold", 200),
        Baseline("DDC", "ddc", "threshold", 200),
        Baseline("ConPaC", "conpac", "threshold", 40),
        Baseline("Threshold components", "components", "threshold"),
        Baseline("Chinese Whispers", "chinese_whispers", "threshold"),
        Baseline("Map equation", "map_equation", "threshold"),
    )
}
