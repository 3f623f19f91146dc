"""Models: what is in them, and their files.

A model file is safetensors: arrays and a little text, nothing that could run.
Its metadata holds one entry, ``facelink``, with a JSON object.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from facelink.data.writing import is_there, write_aside
from facelink.errors import FileError, InputError, ModelError
from facelink.links.features import NAMES as LINK_FEATURES
from facelink.links.perceptron import Perceptron
from facelink.links.refinement import NAMES as SURROUNDINGS
from facelink.links.review import NAMES as MEMBERSHIPS
from facelink.subgraphs import Context

FORMAT = 1
MOST_NEIGHBORS = 10_000
SUFFIX = ".safetensors"
DEFAULT_MODEL = "universal"
DEFAULT_PRESET = "balanced"
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
class Preset:
    """How sure a model has to be.

    Attributes
    ----------
    threshold : float
        The likelihood from which links are merged.
    joining : float
        The likelihood from which two clusters are joined, where the model can
        judge clusters; 1 joins none.
    """

    threshold: float
    joining: float = 1.0

    def __post_init__(self) -> None:
        for name, value in (("threshold", self.threshold), ("joining", self.joining)):
            if not isinstance(value, int | float) or not 0 <= value <= 1:
                raise ModelError(f"{name} of a preset should be from 0 to 1, got {value!r}")


class Model(ABC):
    """What all models have.

    Attributes
    ----------
    weights : mapping of str to array
    context : Context
        What to read links from.
    presets : mapping of str to Preset
        How sure to be, by name.
    about : mapping
        What the file says of itself: name, training data, versions, results.
    """

    kind: ClassVar[str]
    weights: Mapping[str, NDArray[np.float32]]
    context: Context
    presets: Mapping[str, Preset]
    about: Mapping[str, Any]

    def __post_init__(self) -> None:
        for name, array in self.weights.items():
            if not np.isfinite(array).all():
                raise ModelError(f"the array {name} contains NaN or infinity")
        if DEFAULT_PRESET not in self.presets:
            raise ModelError(f"the preset {DEFAULT_PRESET!r} is missing")

    @property
    def name(self) -> str:
        return str(self.about.get("name", "unnamed"))

    @property
    def fingerprint(self) -> str:
        """A few letters that change with what the model computes."""
        digest = hashlib.sha256(json.dumps(self.description(), sort_keys=True).encode())
        for name in sorted(self.weights):
            digest.update(name.encode() + np.ascontiguousarray(self.weights[name]).tobytes())
        return digest.hexdigest()[:16]

    def preset(self, name: str) -> Preset:
        """The preset of this name, or an error that lists those there are."""
        if name not in self.presets:
            raise InputError(f"preset should be one of {', '.join(self.presets)}, got {name!r}.")
        return self.presets[name]

    @abstractmethod
    def check_dimension(self, dimension: int) -> None:
        """Refuse embeddings that the model cannot read, saying what to do."""

    @abstractmethod
    def description(self) -> dict[str, Any]:
        """What its file says beside the arrays, for `from_file`."""

    @classmethod
    @abstractmethod
    def from_file(
        cls,
        description: Mapping[str, Any],
        weights: Mapping[str, NDArray[np.float32]],
        about: Mapping[str, Any],
    ) -> Model:
        """The model again; KeyError, TypeError and ValueError if that cannot be."""

    def save(self, path: str | Path) -> None:
        """Write the model to a file that `load_model` reads. An existing file is replaced."""
        from safetensors.numpy import save

        description = {
            "kind": self.kind,
            "format": FORMAT,
            **self.description(),
            "about": dict(self.about),
        }
        arrays = {name: np.ascontiguousarray(array) for name, array in self.weights.items()}
        content = save(arrays, metadata={"facelink": json.dumps(description)})
        write_aside(Path(path), content)


@dataclass(frozen=True)
class GcnModel(Model):
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
    presets : mapping of str to Preset
        How sure to be, by name.
    views : tuple of (int, float)
        Dimension and weight of each view, where it was trained on several.
    """

    kind: ClassVar[str] = "gcn"

    architecture: Architecture
    weights: Mapping[str, NDArray[np.float32]] = field(repr=False)
    context: Context = field(default_factory=Context)
    about: Mapping[str, Any] = field(default_factory=dict)
    presets: Mapping[str, Preset] = field(
        default_factory=lambda: {"balanced": Preset(0.6), "purity": Preset(0.8)}
    )
    views: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        views = tuple((int(dimension), float(weight)) for dimension, weight in self.views)
        object.__setattr__(self, "views", views)
        if views and sum(d for d, _ in views) != self.architecture.dimension:
            raise ModelError(
                f"views of {' + '.join(str(d) for d, _ in views)} dimensions do not make up the "
                f"{self.architecture.dimension} of the network"
            )
        wanted = self.architecture.weight_shapes()
        shapes = {name: array.shape for name, array in self.weights.items()}
        for name in sorted(wanted.keys() | shapes.keys()):
            if shapes.get(name) != wanted.get(name):
                raise ModelError(
                    f"the array {name} should have the shape {wanted.get(name)}, got "
                    f"{shapes.get(name)}"
                )
        super().__post_init__()

    def check_dimension(self, dimension: int) -> None:
        if self.views and dimension != self.architecture.dimension:
            self.check_views([dimension])
        if dimension != self.architecture.dimension:
            raise ModelError(
                f"Model {self.name!r} takes embeddings of {self.architecture.dimension} "
                f"dimensions, got {dimension}.\n"
                "It is made for one embedder. The default model, 'universal', takes any; for a "
                "model of your own see: facelink train --help"
            )

    def check_views(self, dimensions: Sequence[int]) -> None:
        """Refuse views that are not those it was trained on."""
        if [d for d, _ in self.views] != list(dimensions):
            trained = " and ".join(str(d) for d, _ in self.views)
            raise ModelError(
                f"Model {self.name!r} was trained on "
                + (f"views of {trained} dimensions" if self.views else "embeddings of one kind")
                + f", got {' and '.join(map(str, dimensions))} dimensions. Pass the same views in "
                "the same order (views=, --view), or use the model that takes any, 'universal'."
            )

    def description(self) -> dict[str, Any]:
        return {
            "architecture": asdict(self.architecture),
            "context": asdict(self.context),
            "presets": _as_plain(self.presets),
            "views": [list(view) for view in self.views],
        }

    @classmethod
    def from_file(
        cls,
        description: Mapping[str, Any],
        weights: Mapping[str, NDArray[np.float32]],
        about: Mapping[str, Any],
    ) -> GcnModel:
        architecture = Architecture(**description["architecture"])
        views = tuple(tuple(view) for view in description.get("views", ()))
        model = cls(architecture, weights, _context(description), about, views=views)
        # Files of before presets have none, and those of before views no views.
        given = description.get("presets")
        return model if given is None else replace(model, presets=_presets(given))


@dataclass(frozen=True)
class UniversalModel(Model):
    """Small networks over features that do not depend on the embedding.

    Attributes
    ----------
    weights : mapping of str to array
        Those of the networks for links begin with ``links.``, ``again.0.``,
        ``again.1.`` and so on, of the one that knows the clusters with ``review.``, of
        that for pairs of clusters with ``fragments.``.
    presets : mapping of str to Preset
        How sure to be, by name.
    context : Context
        Its first hop is the neighbours per item whose links are scored.
    about : mapping
        What the file says of itself: name, training data, versions, results.
    """

    kind: ClassVar[str] = "universal"

    weights: Mapping[str, NDArray[np.float32]] = field(repr=False)
    presets: Mapping[str, Preset]
    context: Context = field(default_factory=lambda: Context((80,), 80))
    about: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.links, self.review, self.fragments  # refuses arrays that do not fit

    @cached_property
    def links(self) -> tuple[Perceptron, ...]:
        """The features of a link to its likelihood, one network for each look at it."""
        first = Perceptron.from_arrays(self.weights, "links", len(LINK_FEATURES))
        looks = {name.split(".")[1] for name in self.weights if name.startswith("again.")}
        return first, *(
            Perceptron.from_arrays(self.weights, f"again.{look}", len(SURROUNDINGS))
            for look in range(len(looks))
        )

    @cached_property
    def review(self) -> Perceptron:
        """The features of a link, the clusters known, to its likelihood."""
        return Perceptron.from_arrays(self.weights, "review", len(MEMBERSHIPS))

    @cached_property
    def fragments(self) -> Perceptron:
        """The features of two clusters to the likelihood that they are one person."""
        return Perceptron.from_arrays(self.weights, "fragments", len(_fragment_features()))

    def check_dimension(self, dimension: int) -> None:
        """Any dimension will do."""

    def description(self) -> dict[str, Any]:
        return {
            "context": asdict(self.context),
            "presets": _as_plain(self.presets),
            "link features": list(LINK_FEATURES),
            "surrounding features": list(SURROUNDINGS),
            "membership features": list(MEMBERSHIPS),
            "fragment features": list(_fragment_features()),
        }

    @classmethod
    def from_file(
        cls,
        description: Mapping[str, Any],
        weights: Mapping[str, NDArray[np.float32]],
        about: Mapping[str, Any],
    ) -> UniversalModel:
        for name, ours in (
            ("link", LINK_FEATURES),
            ("surrounding", SURROUNDINGS),
            ("membership", MEMBERSHIPS),
            ("fragment", _fragment_features()),
        ):
            if description.get(f"{name} features") != list(ours):
                raise ModelError(f"it reads other {name} features than this version computes")
        known = ("links.", "again.", "review.", "fragments.")
        unknown = [name for name in weights if not name.startswith(known)]
        if unknown:
            raise ModelError(f"nothing is known of the array {unknown[0]}")
        return cls(weights, _presets(description["presets"]), _context(description), about)


def _as_plain(presets: Mapping[str, Preset]) -> dict[str, dict[str, float]]:
    return {name: asdict(preset) for name, preset in presets.items()}


def _presets(plain: Mapping[str, Mapping[str, float]]) -> dict[str, Preset]:
    return {name: Preset(**values) for name, values in plain.items()}


def _context(description: Mapping[str, Any]) -> Context:
    context = Context(**description["context"])
    if context.k > MOST_NEIGHBORS:  # a file should not ask for all the memory there is
        raise ModelError(f"it asks for {context.k:,} neighbours per item")
    return context


def _fragment_features() -> tuple[str, ...]:
    from facelink.merging.fragments import NAMES  # which needs links itself

    return NAMES


KINDS: dict[str, type[Model]] = {model.kind: model for model in (GcnModel, UniversalModel)}


def model_names() -> list[str]:
    """The models that come with facelink."""
    folder = files("facelink.links").joinpath("models")
    return sorted(
        entry.name.removesuffix(SUFFIX) for entry in folder.iterdir() if entry.name.endswith(SUFFIX)
    )


def load_model(name_or_path: str | Path) -> Model:
    """Load a model that comes with facelink, by name, or a model file.

    Reading a file runs no code, whoever made it.

    Examples
    --------
    >>> import facelink
    >>> facelink.load_model("mobileface-128").architecture.dimension
    128
    >>> sorted(facelink.load_model("universal").presets)
    ['balanced', 'purity']
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


def _parse(content: bytes, origin: str) -> Model:
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
    except (KeyError, TypeError, ValueError, RecursionError):
        raise ModelError(
            f"{origin!r} is a safetensors file, but not a facelink model: it has no such metadata. "
            "Models are written by: facelink train"
        ) from None
    if not isinstance(kind, str) or kind not in KINDS or version != FORMAT:
        raise ModelError(
            f"{origin!r} is a facelink model of kind {kind!r}, format {version!r}; this version "
            f"reads the kinds {', '.join(map(repr, KINDS))}, format {FORMAT}. Update facelink, or "
            "train the model again."
        )
    try:
        about = {"name": Path(origin).stem, **description["about"]}
        weights = {name: np.asarray(array, np.float32) for name, array in weights.items()}
        return KINDS[kind].from_file(description, weights, about)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, ModelError) as error:
        raise ModelError(
            f"{origin!r} says it is a facelink model, but it is damaged: {error}."
        ) from None
