"""What clustering costs beside the exact neighbour search alone.

    python benchmarks/cluster_speed.py DATA_DIR [--collection lfw-degraded-512]

In turns in one run, warm, on the same threads: faiss' exact search (IndexFlatIP, k = 80)
and `facelink.cluster` with its defaults, which searches, scores, merges and joins. Saves
results/cluster_speed.*. Needs the extra [bench].
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import faiss
import numpy as np

import facelink
from facelink.compiled import available_threads
from facelink.embeddings import UnitRows
from tables import markdown, save

COLUMNS = ["collection", "items", "dimension", "threads", "turn", "faiss seconds",
           "facelink.cluster seconds", "ratio"]  # fmt: skip
TURNS = 4


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="DATA_DIR")
    parser.add_argument("--collection", default="lfw-degraded-512")
    parser.add_argument("--items", type=int, default=20_000)
    options = parser.parse_args()
    arrays = np.load(options.folder / f"{options.collection}.npz", allow_pickle=False)
    x = UnitRows(arrays["x"][: options.items])[:]
    faiss.omp_set_num_threads(available_threads())
    rows: list[dict[str, object]] = []
    print(markdown([], COLUMNS))
    for turn in range(TURNS + 1):  # the first one compiles and warms up
        began = time.perf_counter()
        index = faiss.IndexFlatIP(x.shape[1])
        index.add(x)
        index.search(x, 81)  # the item itself is the first
        search = time.perf_counter() - began
        began = time.perf_counter()
        facelink.cluster(x)
        whole = time.perf_counter() - began
        if turn:
            rows.append(
                {
                    "collection": options.collection,
                    "items": len(x),
                    "dimension": x.shape[1],
                    "threads": available_threads(),
                    "turn": turn,
                    "faiss seconds": f"{search:.2f}",
                    "facelink.cluster seconds": f"{whole:.2f}",
                    "ratio": f"{whole / search:.2f}",
                }
            )
            print(markdown(rows[-1:], COLUMNS).splitlines()[-1], flush=True)
    save("cluster_speed", rows, COLUMNS, script="cluster_speed.py DATA_DIR")


if __name__ == "__main__":
    main()
