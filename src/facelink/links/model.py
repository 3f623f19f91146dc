"""Models of the paper's kind: what is in them, and their files.

A model file is safetensors: arrays and a little text, nothing that could run.
Its metadata holds one entry, ``facelink``, with a JSON object.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from facelink.data.writing import is_there, write_aside
from facelink.errors import FileError, InputError, ModelError
from facelink.subgraphs import Context

KIND = "gcn"
FORMAT = 1
SUFFIX = ".safetensors"
DEFAULT_MODEL = "mobileface-128"
AGGREGATORS = ("mean", "weighted", "attention")


@dataclass(frozen=True)
class Architecture:
    """The shape of the paper's network.

    Attributes
    ----------
    dimension : int
        Of the embeddings.
    aggregator : {"mean", "weighted", "attention"}
        How a node sums up its neighbours: all alike, by softmax of their cosine
        similarity to it, or by a learnt score of the two nodes' features.
    widths : tuple of int
        The output width of each graph convolution. Wider and deeper is slower.
    symmetric : bool
        For the mean: divide by the square roots of both nodes' degrees rather
        than by the node's own degree.
    similarity : bool
        Whether a node's features include, after the residual of the embeddings,
        the cosine similarity to the pivot. Not in the paper.
    """

    dimension: int
    aggregator: str = "mean"
    widths: tuple[int, ...] = (512, 512, 256, 256)
    symmetric: bool = False
    similarity: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "widths", tuple(int(width) for width in self.widths))
        if self.aggregator not in AGGREGATORS:
            raise InputError(
                f"aggregator should be one of {', '.join(AGGREGATORS)}, got {self.aggregator!r}."
            )
        if not self.widths or min(self.widths) < 1:
            raise InputError(f"widths should be whole numbers from 1, got {self.widths!r}.")
        if self.symmetric and self.aggregator != "mean":
            raise InputError(
                f"symmetric is a form of the mean aggregator, not of {self.aggregator!r}."
            )

    @property
    def n_features(self) -> int:
        """The features of a node."""
        return self.dimension + self.similarity

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """The name and shape of every array of the network."""
        shapes: dict[str, tuple[int, ...]] = {
            "normalize.mean": (self.n_features,),
            "normalize.scale": (self.n_features,),
        }
        dimensions = [self.n_features, *self.widths]
        for depth, (d_in, d_out) in enumerate(zip(dimensions, self.widths, strict=False)):
            prefix = f"convolutions.{depth}."
            shapes[prefix + "own"] = (d_in, d_out)
            shapes[prefix + "aggregated"] = (d_in, d_out)
            shapes[prefix + "bias"] = (d_out,)
            if self.aggregator == "attention":
                shapes[prefix + "attention.target"] = (d_in, ATTENTION_WIDTH)
                shapes[prefix + "attention.source"] = (d_in, ATTENTION_WIDTH)
                shapes[prefix + "attention.bias"] = (ATTENTION_WIDTH,)
                shapes[prefix + "attention.score"] = (ATTENTION_WIDTH,)
        last = self.widths[-1]
        return shapes | {
            "classifier.hidden": (last, last),
            "classifier.hidden_bias": (last,),
            "classifier.slope": (last,),
            "classifier.output": (last, 2),
            "classifier.output_bias": (2,),
        }


ATTENTION_WIDTH = 32


@dataclass(frozen=True)
class GcnModel:
    """A trained network of the paper's kind, for one embedding.

    Attributes
    ----------
    architecture : Architecture
    weights : mapping of str to array
        Names and shapes as `Architecture.weight_shapes` lists them.
    context : Context
        The subgraphs to score links in.
    about : mapping
        What the file says of itself: name, training data, versions, results.
    """

    architecture: Architecture
    weights: Mapping[str, NDArray[np.float32]] = field(repr=False)
    context: Context = field(default_factory=Context)
    about: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        wanted = self.architecture.weight_shapes()
        shapes = {name: array.shape for name, array in self.weights.items()}
        for name in sorted(wanted.keys() | shapes.keys()):
            if shapes.get(name) != wanted.get(name):
                raise ModelError(
                    f"the array {name} should have the shape {wanted.get(name)}, got "
                    f"{shapes.get(name)}"
                )
            if not np.isfinite(self.weights[name]).all():
                raise ModelError(f"the array {name} contains NaN or infinity")

    @property
    def name(self) -> str:
        return str(self.about.get("name", "unnamed"))

    def check_dimension(self, dimension: int) -> None:
        """Refuse embeddings of another dimension, saying what to do."""
        if dimension != self.architecture.dimension:
            raise ModelError(
                f"Model {self.name!r} takes embeddings of {self.architecture.dimension} "
                f"dimensions, got {dimension}.\n"
                "A model is made for one embedder; train one for yours: facelink train --help"
            )

    def save(self, path: str | Path) -> None:
        """Write the model to a file that `load_model` reads. An existing file is replaced."""
        from safetensors.numpy import save

        description = {
            "kind": KIND,
            "format": FORMAT,
            "architecture": asdict(self.architecture),
            "context": asdict(self.context),
            "about": dict(self.about),
        }
        arrays = {name: np.ascontiguousarray(array) for name, array in self.weights.items()}
        content = save(arrays, metadata={"facelink": json.dumps(description)})
        write_aside(Path(path), content)


def model_names() -> list[str]:
    """The models that come with facelink."""
    folder = files("facelink.links").joinpath("models")
    return sorted(
        entry.name.removesuffix(SUFFIX) for entry in folder.iterdir() if entry.name.endswith(SUFFIX)
    )


def load_model(name_or_path: str | Path) -> GcnModel:
    """Load a model that comes with facelink, by name, or a model file.

    Reading a file runs no code, whoever made it.

    Examples
    --------
    >>> import facelink
    >>> facelink.load_model("mobileface-128").architecture.dimension
    128
    """
    if str(name_or_path) in model_names():
        content = files("facelink.links").joinpath("models", f"{name_or_path}{SUFFIX}").read_bytes()
        return _parse(content, str(name_or_path))
    path = Path(name_or_path)
    if not is_there(path):
        raise FileError(
            f"There is no model {str(name_or_path)!r}: neither a file nor one of those that come "
            f"with facelink ({', '.join(model_names())})."
        )
    try:
        return _parse(path.read_bytes(), str(path))
    except OSError as error:
        raise FileError(f"Cannot read the model {str(path)!r}: {error.strerror}.") from None


def _parse(content: bytes, origin: str) -> GcnModel:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        weights = load(content)
        # safetensors gives the metadata only for files, so read it from the header:
        # eight bytes of length, then JSON.
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    except (SafetensorError, ValueError, KeyError, AttributeError) as error:
        raise ModelError(
            f"{origin!r} is not a complete safetensors file of float32 arrays ({error}). If it was "
            "copied or downloaded, do so again; models are written by: facelink train"
        ) from None
    try:
        description = json.loads(header["__metadata__"]["facelink"])
        kind, version = description["kind"], description["format"]
    except (KeyError, TypeError, ValueError):
        raise ModelError(
            f"{origin!r} is a safetensors file, but not a facelink model: it has no such metadata. "
            "Models are written by: facelink train"
        ) from None
    if kind != KIND or version != FORMAT:
        raise ModelError(
            f"{origin!r} is a facelink model of kind {kind!r}, format {version!r}; this version "
            f"reads kind {KIND!r}, format {FORMAT}. Update facelink, or train the model again."
        )
    try:
        architecture = Architecture(**description["architecture"])
        context = Context(**description["context"])
        about = {"name": Path(origin).stem, **description["about"]}
        weights = {name: np.asarray(array, np.float32) for name, array in weights.items()}
        return GcnModel(architecture, weights, context, about)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(
            f"{origin!r} says it is a facelink model, but it is damaged: {error}."
        ) from None
