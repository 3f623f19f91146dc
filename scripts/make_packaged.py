"""Make what comes inside the package from a folder of labelled collections.

    python scripts/make_packaged.py DATA_DIR sample   writes data/sample.npz
    python scripts/make_packaged.py DATA_DIR model    trains links/models/mobileface-128

DATA_DIR holds .npz files with x (n, 128) and y (n,): lfw-128, lfw-degraded-128
(with photo, the row of lfw-128 that a face is a degraded copy of), celeba-128,
celebs800-128 and glint24-128. The sample is a part of LFW's people; the model is
trained on everybody else. Interrupted, the training goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

import facelink
from facelink.training import Epoch

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "src/facelink/data/sample.npz"
MODEL = ROOT / "src/facelink/links/models/mobileface-128.safetensors"
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


def training_collection(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Everybody who is not in the sample, all collections as one."""
    x, y, _ = load(folder, "lfw-128")
    held = in_sample(y)
    reserved = mean_embeddings(x[held], y[held])
    parts = [(x[~held], y[~held])]

    x_degraded, _, arrays = load(folder, "lfw-degraded-128")
    photo = arrays["photo"]
    parts.append((x_degraded[~held[photo]], y[photo][~held[photo]]))  # the same people as in LFW

    next_label = y.max() + 1
    for name in ("celeba-128", "celebs800-128", "glint24-128"):
        x, y, _ = load(folder, name)
        people, inverse = np.unique(y, return_inverse=True)
        alike = (mean_embeddings(x, y) @ reserved.T).max(axis=1) > SAME_PERSON
        keep = ~alike[inverse]
        print(f"{name}: {alike.sum()} of {len(people)} people may be in the sample, left out")
        parts.append((x[keep], inverse[keep] + next_label))
        next_label += len(people)
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
    MODEL.parent.mkdir(exist_ok=True)
    model.save(MODEL)
    checkpoint.unlink()
    print(f"wrote {MODEL.stat().st_size:,} bytes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="DATA_DIR")
    parser.add_argument("what", choices=("sample", "model"))
    arguments = parser.parse_args()
    sys.exit({"sample": make_sample, "model": make_model}[arguments.what](arguments.folder))
