"""The universal model on collections, people and embedders that it was not trained on.

    python benchmarks/universal.py DATA_DIR [--parts groups embedders made-up halves peers]

- groups: leave out all collections that may share people, train on the rest, cluster
  the ones left out, with nothing tuned;
- embedders: the same with all collections of one embedder left out;
- made-up: some collections as embedders that do not exist might see them (MADE_UP), by
  the models of groups, and the sample by the packaged model, beside the peers;
- halves: one half of the people of lfw-degraded is trained on, the other clustered
  (the halves of accuracy.py), with the other groups but nobody else of LFW;
- peers: oracle-tuned Infomap, AHC, DBSCAN, threshold components, Chinese Whispers and
  HDBSCAN, and EVoC as it comes, on every collection and both test halves.

DATA_DIR holds NAME-DIMENSION.npz files with x and y. Saves results/universal_PART.json
and .md for each part. Trained models are kept in --models, and one that is there
already is not trained again. Needs the extras [train] and [bench].
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

import facelink
from facelink.embeddings import UnitRows
from facelink.experiments.bench import half_of_people
from facelink.experiments.two_views import with_noise
from facelink.links.model import DEFAULT_PRESET
from facelink.training.episodes import Collection
from facelink.training.universal import PRESETS, train_universal
from peers import MORE_PEERS, PEERS, Peer, measure, oracle_rows
from tables import RESULTS, markdown, save

COLUMNS = [
    "collection", "method", "BCubed F", "pairwise F", "NMI", "BCubed P", "BCubed R",
    "clusters", "knob",
]  # fmt: skip
PEOPLE = {  # collections of one group may share people
    "lfw": "lfw", "lfw-degraded": "lfw", "glint24": "lfw", "celeba": "celeba",
    "celebs800": "celebs800", "voices": "voices",
}  # fmt: skip
PARTS = ("groups", "embedders", "made-up", "halves", "peers")
SEEN_ANEW = ("celeba-128", "celebs800-128", "lfw-128", "voices-256")
HDBSCAN_ITEMS = 12_000  # it takes ten minutes on 20,000


def load(folder: Path) -> list[Collection]:
    """All collections of the folder."""
    found = []
    for path in sorted(folder.glob("*.npz")):
        name, _, embedder = path.stem.rpartition("-")
        arrays = np.load(path, allow_pickle=False)
        rows = UnitRows(arrays["x"])[:]
        labels = arrays["y"].astype(np.int64)
        found.append(Collection(path.stem, rows, labels, embedder, PEOPLE.get(name, name)))
    return found


def trained(
    collections: list[Collection], name: str, folder: Path, episodes: int
) -> facelink.UniversalModel:
    """A model trained on these collections, from its file if it is there."""
    path = folder / f"{name}-{episodes}.safetensors"
    if not path.exists():
        print(f"training {name} on {[c.name for c in collections]}", file=sys.stderr, flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        train_universal(collections, episodes=episodes, name=name).save(path)
    model = facelink.load_model(path)
    assert isinstance(model, facelink.UniversalModel)
    return replace(model, presets=PRESETS)


def half(collection: Collection, which: int) -> Collection:
    """The first or second half of the people of a collection."""
    first = half_of_people(collection.labels, 0)
    mask = ~first if which else first
    x, labels = collection.embeddings[mask], collection.labels[mask]
    return Collection(collection.name, x, labels, collection.embedder, collection.people)


def projected(x: np.ndarray, dimension: int) -> np.ndarray:
    """In random directions."""
    return x @ np.random.default_rng(0).normal(size=(x.shape[1], dimension))


def steeper(x: np.ndarray, power: float) -> np.ndarray:
    """With fewer directions that count: singular values to a power."""
    centered = x - x.mean(axis=0)
    _, scales, axes = np.linalg.svd(centered[:5000], full_matrices=False)
    return (centered @ axes.T) * (scales / scales[0]) ** power


MADE_UP: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    # Noise of this length beside unit vectors, as of a weaker embedder.
    "noise 0.3": lambda x: with_noise(x, 0.3, seed=0),
    "noise 0.6": lambda x: with_noise(x, 0.6, seed=0),
    "noise 0.9": lambda x: with_noise(x, 0.9, seed=0),
    # Strangers' similarities spread farther, or lie elsewhere.
    "32 dimensions": lambda x: projected(x, 32),
    "spectrum 1.5": lambda x: steeper(x, 1.5),
    "spectrum 2": lambda x: steeper(x, 2),
    "rectified": lambda x: np.maximum(projected(x, 256), 0),
    "signs": lambda x: np.sign(projected(x, 256)),
}


def seen_anew(collection: Collection) -> Iterator[Collection]:
    """The collection as embedders that do not exist might see it."""
    for name, see in MADE_UP.items():
        rows = UnitRows(see(collection.embeddings).astype(np.float32))[:]
        yield replace(collection, name=f"{collection.name}, {name}", embeddings=rows)


def tests(
    part: str, collections: list[Collection], models: Path, episodes: int
) -> Iterator[tuple[facelink.UniversalModel, Collection]]:
    """Models, and collections that each was not trained on."""
    if part in ("groups", "made-up"):
        for group in dict.fromkeys(c.people for c in collections):
            tested = [c for c in collections if c.people == group]
            if part == "made-up":
                tested = [new for c in tested if c.name in SEEN_ANEW for new in seen_anew(c)]
            rest = [c for c in collections if c.people != group]
            model = trained(rest, f"without-{group}", models, episodes)
            yield from ((model, c) for c in tested)
        if part == "made-up":
            sample = facelink.load_sample()
            whole = Collection("sample", UnitRows(sample.embeddings)[:], sample.labels, "128", "")
            packaged = facelink.load_model("universal")
            assert isinstance(packaged, facelink.UniversalModel)
            yield from ((packaged, new) for new in seen_anew(whole))
    elif part == "embedders":
        for embedder in ("128", "512"):
            rest = [c for c in collections if c.embedder != embedder]
            model = trained(rest, f"without-{embedder}", models, episodes)
            yield from ((model, c) for c in collections if c.embedder == embedder)
    elif part == "halves":
        degraded = [c for c in collections if c.name.startswith("lfw-degraded-")]
        rest = [c for c in collections if c.people != "lfw"] + [half(c, 0) for c in degraded]
        model = trained(rest, "half-of-lfw-degraded", models, episodes)
        yield from ((model, half(c, 1)) for c in degraded)


def rows_of_peers(
    collections: list[Collection], known: list[dict[str, object]]
) -> Iterator[dict[str, object]]:
    tested = list(collections)
    for collection in collections:
        if collection.name.startswith("lfw-degraded-"):
            second = half(collection, 1)
            tested.append(replace(second, name=f"{second.name}, half"))
    for collection in sorted(tested, key=lambda c: len(c.labels)):
        peers = dict(MORE_PEERS)
        if len(collection.labels) > HDBSCAN_ITEMS:
            del peers["HDBSCAN"]
        yield from rows_of_tuned(collection, peers, known)


def rows_of_tuned(
    collection: Collection, peers: dict[str, Peer], known: list[dict[str, object]]
) -> Iterator[dict[str, object]]:
    """Of the peers on a collection, those that are known as they are."""
    there = [
        row for row in known
        if row["collection"] == collection.name and not str(row["method"]).startswith("facelink")
    ]  # fmt: skip
    if len(there) >= len(peers):
        yield from there
        return
    for row in oracle_rows(collection.embeddings, collection.labels, peers):
        yield {"collection": collection.name, **row}


def rows_of_models(
    part: str,
    collections: list[Collection],
    models: Path,
    episodes: int,
    known: list[dict[str, object]],
) -> Iterator[dict[str, object]]:
    reliabilities = []
    for model, collection in tests(part, collections, models, episodes):
        for preset in model.presets:
            found = facelink.cluster(collection.embeddings, model=model, preset=preset)
            name = "facelink" if preset == DEFAULT_PRESET else f"facelink, {preset}"
            scores = measure(collection.labels, found.labels)
            yield {"collection": collection.name, "method": name, **scores}
        if part == "made-up":
            yield from rows_of_tuned(collection, PEERS, known)
        if part == "groups":
            reliabilities.append(reliability(model, collection))
            path = RESULTS / "universal_reliability.json"
            path.write_text(json.dumps(reliabilities, indent=1) + "\n")


def reliability(model: facelink.UniversalModel, collection: Collection) -> dict[str, object]:
    """For each tenth of the likelihood, how many links there are and which share is true."""
    x = collection.embeddings
    graph = facelink.knn_graph(x, model.context.k)
    likelihood = facelink.score_links(x, graph, model).likelihood
    true = collection.labels[graph.indices] == collection.labels[:, None]
    tenth = np.minimum((likelihood * 10).astype(int), 9)
    counts = np.bincount(tenth.ravel(), minlength=10)
    shares = np.bincount(tenth.ravel(), weights=true.ravel(), minlength=10) / np.maximum(counts, 1)
    means = np.bincount(tenth.ravel(), weights=likelihood.ravel(), minlength=10)
    return {
        "collection": collection.name,
        "links": counts.tolist(),
        "likelihood": (means / np.maximum(counts, 1)).round(4).tolist(),
        "true": shares.round(4).tolist(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="DATA_DIR")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--episodes", type=int, default=900)
    parser.add_argument("--models", type=Path, default=Path("universal-models"), metavar="DIR")
    parser.add_argument("--resume", action="store_true",
                        help="keep the rows of peers that were saved before")  # fmt: skip
    options = parser.parse_args()
    collections = load(options.folder)

    for part in options.parts:
        print(f"\n{part}\n{markdown([], COLUMNS)}")
        file = f"universal_{part.replace('-', '_')}"
        known = json.loads((RESULTS / f"{file}.json").read_text())["rows"] if options.resume else []
        if part == "peers":
            made = rows_of_peers(collections, known)
        else:
            made = rows_of_models(part, collections, options.models, options.episodes, known)
        rows = []
        for row in made:
            rows.append(row)
            print(markdown([row], COLUMNS).splitlines()[-1], flush=True)
            script = f"universal.py DATA_DIR --parts {part}"
            save(file, rows, COLUMNS, script=script, episodes=options.episodes)


if __name__ == "__main__":
    main()
