"""Make what comes inside the package from a folder of labelled collections.

    python scripts/make_packaged.py DATA_DIR sample      writes data/sample.npz
    python scripts/make_packaged.py DATA_DIR model       trains links/models/mobileface-128
    python scripts/make_packaged.py DATA_DIR universal   trains links/models/universal

DATA_DIR holds .npz files with x (n, d) and y (n,), named NAME-DIMENSION: lfw,
lfw-degraded (with photo, the row of lfw that a face is a degraded copy of), celeba,
celebs800 and glint24; the universal model takes all dimensions that there are, and
other collections too. The sample is a part of LFW's people in 128 dimensions; the
models are trained on everybody else. Interrupted, the training of the first model
goes on where it was; that of the second takes some minutes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

import facelink
from facelink.embeddings import UnitRows
from facelink.training import Epoch
from facelink.training.episodes import Collection
from facelink.training.universal import train_universal

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "src/facelink/data/sample.npz"
MODELS = ROOT / "src/facelink/links/models"
MODEL = MODELS / "mobileface-128.safetensors"
UNIVERSAL = MODELS / "universal.safetensors"
EPISODES = 900
SEED = 20190616
SAMPLE_SHARE = 0.3  # of LFW's people
SAME_PERSON = 0.5  # cosine of two people's mean embeddings above which they may be one


def load(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray, np.lib.npyio.NpzFile]:
    arrays = np.load(folder / f"{name}.npz", allow_pickle=False)
    return arrays["x"], arrays["y"], arrays


def in_sample(people: np.ndarray) -> np.ndarray:
    """Which of LFW's people are in the sample: True per item."""
    everyone = np.unique(people)
    rng = np.random.default_rng(SEED)
    chosen = rng.permutation(everyone)[: round(SAMPLE_SHARE * len(everyone))]
    return np.isin(people, chosen)


def make_sample(folder: Path) -> None:
    x, y, _ = load(folder, "lfw-128")
    chosen = np.flatnonzero(in_sample(y))
    rng = np.random.default_rng(SEED + 1)
    chosen = rng.permutation(chosen)
    _, anonymous = np.unique(y[chosen], return_inverse=True)
    anonymous = rng.permutation(anonymous.max() + 1)[anonymous]
    np.savez_compressed(SAMPLE, x=x[chosen].astype(np.float16), y=anonymous.astype(np.int32))
    print(
        f"{len(chosen):,} faces of {anonymous.max() + 1:,} people, {SAMPLE.stat().st_size:,} bytes"
    )


def mean_embeddings(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """One unit vector per person, in the order of np.unique(y)."""
    _, inverse = np.unique(y, return_inverse=True)
    sums = np.zeros((inverse.max() + 1, x.shape[1]), np.float32)
    np.add.at(sums, inverse, x.astype(np.float32))
    return sums / np.linalg.norm(sums, axis=1, keepdims=True)


def not_in_sample(folder: Path) -> dict[str, np.ndarray]:
    """Which items of each 128-d collection are of people who are not in the sample.

    The rows of a collection are the same photos in every dimension.
    """
    x, y, _ = load(folder, "lfw-128")
    held = in_sample(y)
    reserved = mean_embeddings(x[held], y[held])
    photo = load(folder, "lfw-degraded-128")[2]["photo"]
    kept = {"lfw": ~held, "lfw-degraded": ~held[photo]}
    for name in ("celeba", "celebs800", "glint24"):
        x, y, _ = load(folder, f"{name}-128")
        people, inverse = np.unique(y, return_inverse=True)
        alike = (mean_embeddings(x, y) @ reserved.T).max(axis=1) > SAME_PERSON
        print(f"{name}: {alike.sum()} of {len(people)} people may be in the sample, left out")
        kept[name] = ~alike[inverse]
    return kept


def training_collection(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Everybody who is not in the sample, all 128-d collections as one."""
    lfw_people = load(folder, "lfw-128")[1]
    parts = []
    next_label = lfw_people.max() + 1
    for name, kept in not_in_sample(folder).items():
        x, y, arrays = load(folder, f"{name}-128")
        if name == "lfw-degraded":
            y = lfw_people[arrays["photo"]]  # the same people as in LFW
        elif name != "lfw":
            y = np.unique(y, return_inverse=True)[1] + next_label
            next_label = y.max() + 1
        parts.append((x[kept], y[kept]))
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


def make_model(folder: Path) -> None:
    x, y = training_collection(folder)
    print(f"training on {len(x):,} faces of {len(np.unique(y)):,} people")

    def tell(epoch: Epoch) -> None:
        print(epoch, flush=True)

    checkpoint = MODEL.with_suffix(".checkpoint")
    model = facelink.train(
        x,
        y,
        widths=(256, 256, 128, 128),
        hops=(80, 5),
        u=5,
        epochs=4,
        batch_size=32,
        validation=0.05,
        seed=SEED,
        name="mobileface-128",
        checkpoint=checkpoint,
        on_epoch=tell,
    )
    model.save(MODEL)
    checkpoint.unlink()
    print(f"wrote {MODEL.stat().st_size:,} bytes")


def make_universal(folder: Path) -> None:
    kept = not_in_sample(folder)
    collections = []
    for path in sorted(folder.glob("*.npz")):
        name, _, embedder = path.stem.rpartition("-")
        x, y, _ = load(folder, path.stem)
        mask = kept.get(name, np.ones(len(y), bool))
        people = "lfw" if name in ("lfw", "lfw-degraded", "glint24") else name
        labels = y[mask].astype(np.int64)
        collections.append(Collection(path.stem, UnitRows(x[mask])[:], labels, embedder, people))
        print(f"{path.stem}: {mask.sum():,} items of {len(np.unique(labels)):,} people")
    model = train_universal(collections, episodes=EPISODES, seed=SEED)
    model.save(UNIVERSAL)
    print(f"wrote {UNIVERSAL.stat().st_size:,} bytes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="DATA_DIR")
    makers = {"sample": make_sample, "model": make_model, "universal": make_universal}
    parser.add_argument("what", choices=makers)
    arguments = parser.parse_args()
    sys.exit(makers[arguments.what](arguments.folder))
