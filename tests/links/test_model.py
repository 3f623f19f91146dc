from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from safetensors.numpy import save as save_safetensors

from facelink import Context, load_model
from facelink.errors import FileError, InputError, ModelError
from facelink.links.model import Architecture, GcnModel, model_names


@pytest.fixture
def model() -> GcnModel:
    architecture = Architecture(6, "attention", (5, 4), similarity=True)
    rng = np.random.default_rng(0)
    weights = {
        name: rng.normal(size=shape).astype(np.float32)
        for name, shape in architecture.weight_shapes().items()
    }
    return GcnModel(architecture, weights, Context((7, 3), 2, True), {"name": "mine", "seed": 4})


def test_a_saved_model_comes_back_whole(model, tmp_path):
    model.save(tmp_path / "m.safetensors")
    again = load_model(tmp_path / "m.safetensors")
    assert again.architecture == model.architecture
    assert again.context == model.context
    assert again.about == model.about
    assert again.weights.keys() == model.weights.keys()
    for name, array in model.weights.items():
        np.testing.assert_array_equal(again.weights[name], array)
    assert list(tmp_path.iterdir()) == [tmp_path / "m.safetensors"]  # nothing left beside it


def test_the_packaged_model_fits_the_sample():
    assert model_names() == ["mobileface-128", "universal"]
    model = load_model("mobileface-128")
    assert model.architecture.dimension == 128
    assert model.name == "mobileface-128"


def test_a_model_that_is_not_there_names_those_that_are():
    with pytest.raises(FileError, match=r"no model 'nobody'.*mobileface-128"):
        load_model("nobody")


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_a_truncated_file_says_so(model, tmp_path, keep):
    path = tmp_path / "m.safetensors"
    model.save(path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ModelError, match="not a complete safetensors file"):
        load_model(path)


def test_a_pickle_is_not_run(tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "trapped"), "w"))

    path = tmp_path / "m.safetensors"
    path.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ModelError, match="not a complete safetensors file"):
        load_model(path)
    assert not (tmp_path / "trapped").exists()


def test_somebody_elses_safetensors_says_so(tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_bytes(save_safetensors({"weight": np.zeros(3, np.float32)}))
    with pytest.raises(ModelError, match="not a facelink model"):
        load_model(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "oracle"}, "of kind 'oracle'"),
        ({"kind": "universal"}, "is damaged"),
        ({"format": 99}, "format 99"),
        ({"architecture": {"dimension": 7}}, "is damaged"),
        ({"architecture": {"depth": 7}}, "is damaged"),
        ({"context": {"hops": []}}, "is damaged"),
        ({"context": {"hops": [10**12]}}, "is damaged"),
        ({"presets": []}, "is damaged"),
        ({"presets": {"balanced": {"threshold": 7}}}, "is damaged"),
        ({"presets": {"balanced": {"threshold": "0.7"}}}, "is damaged"),
        ({"kind": ["gcn"]}, "of kind"),
        ({"architecture": {"dimension": 6, "widths": [float("inf")]}}, "is damaged"),
        ({"architecture": {"dimension": 6, "widths": ["wide"]}}, "is damaged"),
    ],
)
def test_another_kind_or_damaged_content_says_so(model, tmp_path, change, said):
    path = tmp_path / "m.safetensors"
    model.save(path)
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    described = json.loads(header["__metadata__"]["facelink"]) | change
    arrays = {name: np.ascontiguousarray(array) for name, array in model.weights.items()}
    path.write_bytes(save_safetensors(arrays, metadata={"facelink": json.dumps(described)}))
    with pytest.raises(ModelError, match=said):
        load_model(path)


def test_weights_of_another_shape_are_refused(model):
    weights = dict(model.weights)
    weights["classifier.slope"] = np.zeros(9, np.float32)
    with pytest.raises(ModelError, match=r"classifier.slope should have the shape \(4,\)"):
        GcnModel(model.architecture, weights)


def test_weights_that_are_no_numbers_are_refused(model):
    weights = dict(model.weights)
    weights["classifier.slope"] = np.full(4, np.nan, np.float32)
    with pytest.raises(ModelError, match="contains NaN"):
        GcnModel(model.architecture, weights)


def test_a_file_of_another_precision_says_so(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    path = tmp_path / "m.safetensors"
    save_file({"weight": torch.zeros(3, dtype=torch.bfloat16)}, path)
    with pytest.raises(ModelError, match=r"not a .*"):
        load_model(path)


def test_saving_into_a_folder_that_is_not_there_says_so(model, tmp_path):
    with pytest.raises(FileError, match="Cannot write"):
        model.save(tmp_path / "nowhere" / "m.safetensors")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"aggregator": "max"}, "one of mean, weighted, attention"),
        ({"widths": ()}, "widths should be"),
        ({"widths": (4, 0)}, "widths should be"),
        ({"aggregator": "weighted", "symmetric": True}, "a form of the mean"),
    ],
)
def test_impossible_architectures_are_refused(options, said):
    with pytest.raises(InputError, match=said):
        Architecture(8, **options)
