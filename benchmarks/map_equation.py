"""The map equation of facelink beside the infomap package: code length and time.

    python benchmarks/map_equation.py DATA_DIR [--collections lfw-degraded-512 celeba-512]

Both get the same undirected links, those that the universal model gives from a
likelihood on, in turns in one run; the package's time is that of its search alone, with
the links already in it. Both modules' code length is computed by the same formula.
Saves results/map_equation.*. Needs the extra [bench].
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from infomap import Infomap

import facelink
from facelink.merging.map_equation import code_length, find_modules
from tables import markdown, save

COLUMNS = ["collection", "threshold", "links", "bits", "infomap bits", "more bits",
           "seconds", "infomap seconds", "times as fast"]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="DATA_DIR")
    parser.add_argument("--collections", nargs="+",
                        default=["lfw-degraded-512", "celeba-512", "glint24-128"])  # fmt: skip
    options = parser.parse_args()
    rows: list[dict[str, object]] = []
    print(markdown([], COLUMNS))
    for collection in options.collections:
        x = np.load(options.folder / f"{collection}.npz", allow_pickle=False)["x"]
        graph = facelink.knn_graph(x, 80)
        pairs = facelink.score_links(x, graph, "universal").pairs()
        find_modules(pairs.at_least(0.99).both_ways())  # compile
        for threshold in (0.3, 0.5, 0.7, 0.9):
            kept = pairs.at_least(threshold)
            links = kept.both_ways()
            began = time.perf_counter()
            _, bits = find_modules(links)
            seconds = time.perf_counter() - began

            solver = Infomap("--two-level --silent --seed 1")
            for item in range(pairs.n_items):
                solver.add_node(item)
            solver.add_links(
                list(zip(kept.first.tolist(), kept.second.tolist(), kept.likelihood.tolist(),
                         strict=True))
            )  # fmt: skip
            began = time.perf_counter()
            solver.run()
            their_seconds = time.perf_counter() - began
            modules = np.empty(pairs.n_items, np.int64)
            for node in solver.nodes:
                modules[node.node_id] = node.module_id
            _, modules = np.unique(modules, return_inverse=True)
            flow = (links / links.sum()).tocsr()
            visits = np.asarray(flow.sum(axis=1)).ravel()
            their_bits = code_length(flow, visits, modules)
            rows.append(
                {
                    "collection": collection,
                    "threshold": str(threshold),
                    "links": len(kept.likelihood),
                    "bits": f"{bits:.5f}",
                    "infomap bits": f"{their_bits:.5f}",
                    "more bits": f"{bits / their_bits - 1:+.4%}",
                    "seconds": f"{seconds:.2f}",
                    "infomap seconds": f"{their_seconds:.2f}",
                    "times as fast": f"{their_seconds / seconds:.1f}",
                }
            )
            print(markdown(rows[-1:], COLUMNS).splitlines()[-1], flush=True)
            save("map_equation", rows, COLUMNS, script="map_equation.py DATA_DIR")


if __name__ == "__main__":
    main()
