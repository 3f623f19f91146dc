"""Saving a training's state, and going on from it.

Safetensors and JSON like the models, so that nothing in it can run.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from facelink.data.writing import make_folder, write_aside
from facelink.errors import FileError, InputError

if TYPE_CHECKING:
    from facelink.training.loop import _Training

COUNTERS = ("steps_done", "epoch", "step", "loss_sum", "history", "best_epoch")


class Checkpoint:
    """A file that holds the state of one training.

    Parameters
    ----------
    path : path or None
        None keeps nothing.
    every : float
        Seconds between two saves within an epoch.
    fingerprint : dict
        The data and the options. A checkpoint with another one is refused.
    """

    def __init__(self, path: str | Path | None, every: float, fingerprint: dict[str, Any]) -> None:
        self.path = None if path is None else Path(path)
        self.every = every
        self.fingerprint = json.loads(json.dumps(fingerprint))  # tuples become lists, as in a file
        self.saved_at = time.monotonic()

    def save_sometimes(self, training: _Training) -> None:
        """Save if the last time was long enough ago."""
        if time.monotonic() - self.saved_at >= self.every:
            self.save(training)

    def save(self, training: _Training) -> None:
        if self.path is None:
            return
        from safetensors.torch import save

        tensors = {f"network.{k}": v for k, v in training.network.state_dict().items()}
        for number, slots in training.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{number}.{slot}": value for slot, value in slots.items()}
        best = training.best_weights.items()
        tensors |= {f"best.{name}": torch.from_numpy(array.copy()) for name, array in best}
        counters = {name: getattr(training, name) for name in COUNTERS}
        description = {"fingerprint": self.fingerprint, "counters": counters}
        contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
        make_folder(self.path.parent)
        write_aside(self.path, save(contiguous, metadata={"facelink": json.dumps(description)}))
        self.saved_at = time.monotonic()

    def restore(self, training: _Training) -> None:
        """Bring a training to the saved state, if there is one."""
        if self.path is None or not self.path.exists():
            return
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self.path, framework="pt") as file:
                description = json.loads(file.metadata()["facelink"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            fingerprint, counters = description["fingerprint"], description["counters"]
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            raise FileError(
                f"Cannot go on from the checkpoint {str(self.path)!r}: it is not one, or is "
                f"damaged ({error}). Remove it to start anew."
            ) from None
        self._refuse_another(fingerprint)
        groups: dict[str, dict[str, torch.Tensor]] = {"network": {}, "optimizer": {}, "best": {}}
        for name, tensor in tensors.items():
            group, _, rest = name.partition(".")
            groups[group][rest] = tensor
        training.network.load_state_dict(groups["network"])
        optimizer = training.optimizer.state_dict()
        for name, tensor in groups["optimizer"].items():
            number, _, slot = name.partition(".")
            optimizer["state"].setdefault(int(number), {})[slot] = tensor
        training.optimizer.load_state_dict(optimizer)
        training.best_weights = {name: tensor.numpy() for name, tensor in groups["best"].items()}
        for name in COUNTERS:
            setattr(training, name, counters[name])

    def _refuse_another(self, fingerprint: dict[str, Any]) -> None:
        for name, wanted in self.fingerprint.items():
            found = fingerprint.get(name)
            if found != wanted:
                raise InputError(
                    f"The checkpoint {str(self.path)!r} is of another training: its {name} is "
                    f"{found}, now it is {wanted}. Remove it to start anew, or train as before to "
                    "go on from it."
                )
