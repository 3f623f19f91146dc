"""The universal model on collections, people and embedders that it was not trained on.

    python benchmarks/universal.py DATA_DIR [--parts groups embedders weaker halves peers]

- groups: leave out all collections that may share people, train on the rest, cluster
  the ones left out, with nothing tuned;
- embedders: the same with all collections of one embedder left out;
- weaker: the collections of WEAKER with noise added to every embedding, as a weaker
  embedder might see them, by the models of groups, beside the peers;
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
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

import facelink
from facelink.embeddings import UnitRows
from facelink.experiments.bench import half_of_people
from facelink.experiments.two_views import with_noise
from facelink.links.model import DEFAULT_PRESET, DRAFT
from facelink.training.episodes import Collection
from facelink.training.universal import PRESETS, train_universal
from peers import MORE_PEERS, measure, oracle_rows
from tables import RESULTS, markdown, save

COLUMNS = [
    "collection", "method", "BCubed F", "pairwise F", "NMI", "BCubed P", "BCubed R",
    "clusters", "knob",
]  # fmt: skip
PEOPLE = {  # collections of one group may share people
    "lfw": "lfw", "lfw-degraded": "lfw", "glint24": "lfw", "celeba": "celeba",
    "celebs800": "celebs800", "voices": "voices",
}  # fmt: skip
PARTS = ("groups", "embedders", "weaker", "halves", "peers")
WEAKER = ("celeba-128", "celebs800-128", "voices-256")
NOISE = (0.3, 0.6, 0.9)  # the length of what is added to unit vectors
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


def weaker(collection: Collection, noise: float) -> Collection:
    """The collection as a weaker embedder might see it."""
    name = f"{collection.name}, noise {noise}"
    rows = UnitRows(with_noise(collection.embeddings, noise, seed=0))[:]
    return replace(collection, name=name, embeddings=rows)


def tests(
    part: str, collections: list[Collection], models: Path, episodes: int
) -> Iterator[tuple[facelink.UniversalModel, Collection]]:
    """Models, and collections that each was not trained on."""
    if part in ("groups", "weaker"):
        for group in dict.fromkeys(c.people for c in collections):
            tested = [c for c in collections if c.people == group]
            if part == "weaker":
                tested = [c for c in tested if c.name in WEAKER]
            if not tested:
                continue
            rest = [c for c in collections if c.people != group]
            model = trained(rest, f"without-{group}", models, episodes)
            if part == "weaker":
                tested = [weaker(c, noise) for c in tested for noise in NOISE]
            yield from ((model, c) for c in tested)
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
        there = [row for row in known if row["collection"] == collection.name]
        if len(there) >= len(peers):
            yield from there
            continue
        for row in oracle_rows(collection.embeddings, collection.labels, peers):
            yield {"collection": collection.name, **row}


def rows_of_models(
    part: str, collections: list[Collection], models: Path, episodes: int
) -> Iterator[dict[str, object]]:
    reliabilities = []
    for model, collection in tests(part, collections, models, episodes):
        for preset in model.presets:
            found = facelink.cluster(collection.embeddings, model=model, preset=preset)
            name = "facelink" if preset == DEFAULT_PRESET else f"facelink, {preset}"
            scores = measure(collection.labels, found.labels)
            yield {"collection": collection.name, "method": name, **scores}
        if part == "weaker":
            for row in oracle_rows(collection.embeddings, collection.labels):
                yield {"collection": collection.name, **row}
        if part == "groups":
            reliabilities.append(reliability(model, collection))
            path = RESULTS / "universal_reliability.json"
            path.write_text(json.dumps(reliabilities, indent=1) + "\n")


def reliability(model: facelink.UniversalModel, collection: Collection) -> dict[str, object]:
    """For each tenth of the likelihood, how many links there are and which share is true."""
    x = collection.embeddings
    graph = facelink.knn_graph(x, model.context.k)
    links = facelink.score_links(x, graph, model)
    draft = facelink.merge_links(links, threshold=DRAFT.threshold)
    draft = facelink.join_fragments(draft, links, x, model, threshold=DRAFT.joining)
    likelihood = facelink.review_links(links, draft, x, model).likelihood
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
        if part == "peers":
            saved = RESULTS / "universal_peers.json"
            known = json.loads(saved.read_text())["rows"] if options.resume else []
            made = rows_of_peers(collections, known)
        else:
            made = rows_of_models(part, collections, options.models, options.episodes)
        rows = []
        for row in made:
            rows.append(row)
            print(markdown([row], COLUMNS).splitlines()[-1], flush=True)
            save(f"universal_{part}", rows, COLUMNS, script=f"universal.py DATA_DIR --parts {part}",
                 episodes=options.episodes)  # fmt: skip


if __name__ == "__main__":
    main()
