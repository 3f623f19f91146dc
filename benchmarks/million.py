"""A million faces: time, memory and accuracy of every stage, beside the peers on fewer.

    python benchmarks/million.py COLLECTION.npz [--n 1000000] [--dim 256] [--work FOLDER]

Nobody has a million labelled faces to give away, so they are made up: people who do not
exist, as similar to each other as those of COLLECTION (x and y), of 1 to 500 photos, with
look-alike families and junk (`facelink.data.synthetic`). In one run, each in a process of
its own, on two threads or as many as there are:

- n items, in a run folder: time, share and peak memory of every stage, recall, BCubed F;
- fewer items (--small, 100,000): the same, beside faiss' exact and HNSW search, EVoC and
  fast_hdbscan;
- people of the n with about as many items: with approximate and with exact neighbours;
- fewer items of 512 dimensions: facelink and EVoC.

Takes a quarter of an hour on two cores and 4 GB of disk in --work,
where the collections are kept for the next run. Saves results/million.json and .md, and
million_stages. Needs the extra [bench].
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import queue
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import facelink
from facelink.compiled import available_threads
from facelink.data.synthetic import Crowd, Population
from tables import markdown, save

K = 80
HNSW = {"M": 24, "efConstruction": 60, "efSearch": 100}
WARM = 3000  # items that everything is tried on first
PATIENCE = 300  # seconds for a peer
SEED = 0


def make(collection: Path, n_items: int, dimension: int, folder: Path) -> tuple[Path, Path]:
    """The files of a collection and its labels, made unless they are there."""
    stem = f"{collection.stem}-{n_items}-{dimension}"
    rows, labels = folder / f"{stem}.npy", folder / f"{stem}-labels.npy"
    if not labels.exists():
        arrays = np.load(collection, allow_pickle=False)
        people = Population.of(arrays["x"], arrays["y"]).in_dimensions(dimension)
        out = np.lib.format.open_memmap(rows, "w+", np.float16, (n_items, dimension))
        _, owners = people.draw(n_items, SEED, crowd=Crowd(), out=out)
        out.flush()
        np.save(labels, owners)
    return rows, labels


def whole_people(labels: np.ndarray, n_items: int) -> np.ndarray:
    """The items of some people who have about so many together."""
    people = np.random.default_rng(SEED).permutation(labels.max() + 1)
    sizes = np.bincount(labels)[people]
    return np.flatnonzero(np.isin(labels, people[np.cumsum(sizes) <= n_items]))


def peak() -> float:
    """The most memory this process has held, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def cluster(rows: Path, labels: Path, model: str, run: Path | None = None, sample: int = 0,
            neighbors: str = "auto") -> dict[str, Any]:  # fmt: skip
    """facelink, with the time of every stage."""
    x, truth = np.load(rows, mmap_mode="r"), np.load(labels)
    if sample:
        chosen = whole_people(truth, sample)
        x, truth = x[chosen], truth[chosen]
    way = "exact" if neighbors == "exact" else "approximate"
    facelink.cluster(x[:WARM], model=model, neighbors=way)
    stages: dict[str, dict[str, float]] = {}
    began = last = time.perf_counter()
    current = "reading"

    def watch(stage: str, done: int, total: int) -> None:
        nonlocal current, last
        if stage == current:
            return
        now = time.perf_counter()
        stages[current] = {"seconds": now - last, "peak GiB": peak()}
        current, last = stage, now

    found = facelink.cluster(x, model=model, neighbors=neighbors, run=run, progress=watch)
    watch("end", 0, 0)
    scores = (
        facelink.metrics.bcubed(truth, found.labels),
        facelink.metrics.pairwise(truth, found.labels),
    )
    return {
        "items": len(x),
        "dimension": x.shape[1],
        "seconds": last - began,
        "peak GiB": peak(),
        "stages": stages,
        "recall": found.recall,
        "BCubed F": scores[0].f,
        "pairwise F": scores[1].f,
        "notes": found.notes,
    }


def timed(rows: Path, work: Callable[[np.ndarray], Any]) -> tuple[float, Any]:
    x = np.asarray(np.load(rows, mmap_mode="r"), np.float32)
    work(x[:WARM])
    began = time.perf_counter()
    found = work(x)
    return time.perf_counter() - began, found


def scored(rows: Path, labels: Path, work: Callable[[np.ndarray], Any]) -> dict[str, Any]:
    seconds, found = timed(rows, work)
    alone = np.flatnonzero(np.asarray(found) < 0)
    predicted = np.array(found, np.int64)
    predicted[alone] = predicted.max() + 1 + np.arange(len(alone))
    truth = np.load(labels)
    return {
        "seconds": seconds,
        "peak GiB": peak(),
        "BCubed F": facelink.metrics.bcubed(truth, predicted).f,
        "pairwise F": facelink.metrics.pairwise(truth, predicted).f,
    }


def faiss_exact(rows: Path) -> dict[str, Any]:
    import faiss

    def search(x: np.ndarray) -> None:
        index = faiss.IndexFlatIP(x.shape[1])
        index.add(x)
        index.search(x, K + 1)

    return {"seconds": timed(rows, search)[0], "peak GiB": peak()}


def faiss_hnsw(rows: Path) -> dict[str, Any]:
    import faiss

    parts = {}

    def search(x: np.ndarray) -> None:
        index = faiss.IndexHNSWFlat(x.shape[1], HNSW["M"], faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction, index.hnsw.efSearch = HNSW["efConstruction"], HNSW["efSearch"]
        began = time.perf_counter()
        index.add(x)
        parts["build"] = time.perf_counter() - began
        index.search(x, K + 1)

    return {"seconds": timed(rows, search)[0], **parts, "peak GiB": peak()}


def evoc(rows: Path, labels: Path) -> dict[str, Any]:
    from evoc import EVoC

    return scored(rows, labels, lambda x: EVoC(random_state=SEED).fit_predict(x))


def fast_hdbscan(rows: Path, labels: Path) -> dict[str, Any]:
    from fast_hdbscan import HDBSCAN

    return scored(rows, labels, lambda x: HDBSCAN(min_cluster_size=2).fit_predict(x))


def alone(work: Callable[..., dict[str, Any]], *arguments: Any, patience: float | None = None,
          **options: Any) -> dict[str, Any]:  # fmt: skip
    """Run in a process of its own, whose memory is nobody else's."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=_answer, args=(answers, work, arguments, options))
    process.start()
    waited = 0.0
    while process.is_alive() and answers.empty() and (patience is None or waited < patience):
        time.sleep(0.5)
        waited += 0.5
    try:
        found: dict[str, Any] = answers.get(timeout=1)
    except queue.Empty:  # it takes too long, or failed and has said why
        process.kill()
        found = {"seconds": None, "gave up after": round(waited)}
    process.join()
    return found


def _answer(answers: Any, work: Callable[..., Any], arguments: Any, options: Any) -> None:
    answers.put(work(*arguments, **options))


def stage_rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "items": f"{found['items']:,}",
            "stage": stage,
            "seconds": round(values["seconds"], 1),
            "share": f"{values['seconds'] / found['seconds']:.0%}",
            "peak GiB": round(values["peak GiB"], 2),
        }
        for stage, values in found["stages"].items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("collection", type=Path)
    parser.add_argument("--n", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--small", type=int, default=100_000)
    parser.add_argument("--model", default="universal")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "million")
    options = parser.parse_args()
    work = options.work
    work.mkdir(parents=True, exist_ok=True)

    def files(n_items: int, dimension: int) -> tuple[Path, Path]:
        return make(options.collection, n_items, dimension, work)

    large, small = files(options.n, options.dim), files(options.small, options.dim)
    wide = files(options.small, 512)
    found: dict[str, Any] = {}

    def measure(name: str, *arguments: Any, **named: Any) -> None:
        print(f"{name} …", file=sys.stderr, flush=True)
        found[name] = alone(*arguments, **named)
        seconds = found[name]["seconds"]
        print(f"{name}: {seconds and round(seconds, 1)} s", file=sys.stderr, flush=True)

    measure("HNSW", faiss_hnsw, small[0])
    run = work / "run"
    shutil.rmtree(run, ignore_errors=True)
    measure("facelink, small", cluster, *small, options.model, run=run)
    measure("exact search", faiss_exact, small[0])
    measure("EVoC, small", evoc, *small)
    measure("EVoC, 512-d", evoc, *wide)
    measure("facelink, 512-d", cluster, *wide, options.model)
    measure("people, approximate", cluster, *large, options.model, sample=options.small,
            neighbors="approximate")  # fmt: skip
    measure("people, exact", cluster, *large, options.model, sample=options.small,
            neighbors="exact")  # fmt: skip
    shutil.rmtree(run, ignore_errors=True)
    measure("facelink", cluster, *large, options.model, run=run)
    shutil.rmtree(run, ignore_errors=True)
    measure("fast_hdbscan, small", fast_hdbscan, *small, patience=PATIENCE)

    (work / "found.json").write_text(json.dumps(found, default=float))  # whatever comes of it
    whole, part = found["facelink"], found["facelink, small"]
    hnsw = found["HNSW"]["seconds"] * options.n / options.small

    def of(stages: str) -> float:
        return sum(v["seconds"] for s, v in whole["stages"].items() if s.startswith(stages))

    # Finding the cells is a part of the search.
    search = of("reading") + of("cells") + of("neighbours")
    rest = of("links") + of("draft") + of("merging")
    checks = {
        "peak GiB (≤ 6)": round(whole["peak GiB"], 2),
        "reading and search, as a share of HNSW's time, extrapolated (≤ 1)": round(
            search / hnsw, 2
        ),
        "links and merging, the same (≤ 1)": round(rest / hnsw, 2),
        "growth of time from the small collection (≤ 13 at ten times)": round(
            whole["seconds"] / part["seconds"], 1
        ),
        "BCubed F lost by approximate neighbours (≤ 0.01)": round(
            found["people, exact"]["BCubed F"] - found["people, approximate"]["BCubed F"], 4
        ),
        "time beside EVoC, 512-d (≤ 2)": round(
            found["facelink, 512-d"]["seconds"] / found["EVoC, 512-d"]["seconds"], 2
        ),
        "BCubed F beyond EVoC's, 512-d (≥ 0.1)": round(
            found["facelink, 512-d"]["BCubed F"] - found["EVoC, 512-d"]["BCubed F"], 3
        ),
    }
    stages = stage_rows(whole) + stage_rows(part)
    others = [
        {
            "measurement": name,
            "seconds": "gave up" if row["seconds"] is None else round(row["seconds"], 1),
            **{
                key: round(row[key], 3) for key in ("peak GiB", "recall", "BCubed F", "pairwise F")
                if row.get(key) is not None
            },
        }
        for name, row in found.items()
    ]  # fmt: skip
    columns = ["measurement", "seconds", "peak GiB", "recall", "BCubed F", "pairwise F"]
    print(markdown(stages, list(stages[0])), markdown(others, columns), sep="\n\n", end="\n\n")
    for check, value in checks.items():
        print(f"{check}: {value}")
    about = {
        "collection": options.collection.stem,
        "n": options.n,
        "dimensions": options.dim,
        "fewer": options.small,
        "threads": available_threads(),
        "model": options.model,
        "HNSW": HNSW,
    }
    save("million", others, columns, **about, **checks)
    save("million_stages", stages, list(stages[0]), **about)


if __name__ == "__main__":
    main()
