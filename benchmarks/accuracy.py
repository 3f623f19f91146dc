"""The paper's network beside untrained methods: train on half of the people, test on the others.

    python benchmarks/accuracy.py DATA_DIR [--collections lfw-degraded-128 ...]

For each collection (.npz with x and y) the identities are split in two halves by
a fixed seed. GCN-M, GCN-W and GCN-A are trained on the first and cluster the
second with facelink's defaults, nothing tuned there; "as in the paper" is GCN-M
with residuals alone as features and every link alike in the loss. The peers have
their knob set by oracle on the second half. Saves results/accuracy.{json,md}; the
models are kept in --models, and one that is there already is not trained again.
"""

from __future__ import annotations

import argparse
import sys
import zlib
from pathlib import Path

import numpy as np
from sklearn.metrics import average_precision_score

import facelink
from facelink.experiments.bench import NARROW, RECIPE, half_of_people
from peers import measure, oracle_rows
from tables import markdown, save

COLUMNS = [
    "collection", "method", "link AP", "BCubed F", "pairwise F", "NMI", "BCubed P", "BCubed R",
    "clusters", "knob",
]  # fmt: skip
VARIANTS = {
    "GCN-M": {"aggregator": "mean"},
    "GCN-W": {"aggregator": "weighted"},
    "GCN-A": {"aggregator": "attention"},
    "GCN-M, similarity only": {"balanced": False},
    "GCN-M, balance only": {"similarity": False},
    "GCN-M, as in the paper": {"similarity": False, "balanced": False},
    "GCN-M, the paper's widths": {"widths": (512, 512, 256, 256)},
    "GCN-M, narrow": NARROW,
}


def trained(x: np.ndarray, labels: np.ndarray, variant: str, folder: Path) -> facelink.GcnModel:
    """The model of a variant, from its file if it is there."""
    path = folder / f"{variant.replace(' ', '-')}.safetensors"
    if not path.exists():
        checkpoint = path.with_suffix(".checkpoint")
        folder.mkdir(parents=True, exist_ok=True)
        model = facelink.train(
            x,
            labels,
            **{**RECIPE, **VARIANTS[variant]},
            checkpoint=checkpoint,
            on_epoch=lambda epoch: print(epoch, file=sys.stderr, flush=True),
        )
        model.save(path)
        checkpoint.unlink()
    return facelink.load_model(path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="DATA_DIR")
    parser.add_argument("--collections", nargs="+",
                        default=["lfw-degraded-128", "lfw-degraded-512"])  # fmt: skip
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--without-peers", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--swap", action="store_true", help="train on the second half instead")
    parser.add_argument("--name", default="accuracy", help="of the saved table")
    parser.add_argument("--models", type=Path, default=Path("accuracy-models"), metavar="DIR")
    options = parser.parse_args()

    rows: list[dict[str, object]] = []

    def add(row: dict[str, object]) -> None:
        rows.append(row)
        print(markdown([row], COLUMNS).splitlines()[-1], flush=True)
        recipes = {name: {**RECIPE, **VARIANTS[name]} for name in options.variants}
        save(options.name, rows, COLUMNS, script="accuracy.py DATA_DIR", seed=options.seed,
             swap=options.swap, recipes=recipes)  # fmt: skip

    print(markdown([], COLUMNS))
    for collection in options.collections:
        arrays = np.load(options.folder / f"{collection}.npz", allow_pickle=False)
        x = arrays["x"].astype(np.float32)
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        train = half_of_people(arrays["y"], options.seed)
        test = ~train
        if options.swap:
            train, test = test, train
        truth = arrays["y"][test]
        graph = facelink.knn_graph(x[test], 80)
        linked = truth[graph.indices] == truth[:, None]
        plain = average_precision_score(linked.ravel(), graph.similarities.ravel())
        for row in () if options.without_peers else oracle_rows(x[test], truth):
            add({"collection": collection, "link AP": float(plain), **row})
        for variant in options.variants:
            recipe = zlib.crc32(repr((RECIPE, VARIANTS[variant])).encode())
            folder = options.models / f"{collection}-{options.seed}{options.swap:d}-{recipe:08x}"
            model = trained(x[train], arrays["y"][train], variant, folder)
            links = facelink.score_links(x[test], graph, model)
            precision = average_precision_score(linked.ravel(), links.likelihood.ravel())
            for method in ("map-equation", "propagation", "components"):
                labels = facelink.merge_links(links, method)
                scores = measure(truth, labels)
                add({"collection": collection, "method": f"{variant} + {method}",
                     "link AP": float(precision), **scores, "knob": "default"})  # fmt: skip


if __name__ == "__main__":
    main()
