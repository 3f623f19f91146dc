from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

import facelink
from conftest import make_faces
from facelink.errors import FileError, InputError
from facelink.links.model import load_model

torch = pytest.importorskip("torch")
from facelink.training import Epoch, train  # noqa: E402
from facelink.training import loop as training_loop  # noqa: E402

SMALL = {"widths": (16, 16, 8), "hops": (20, 4), "u": 4, "epochs": 3, "batch_size": 8}
SIZES = (30, 20, 15, 10, 8, 8, 6, 6, 5, 5, 4, 4, 3, 3, 3, 3, 2, 2, 2, 2) + (1,) * 20


@pytest.fixture(scope="module")
def training_faces():
    return make_faces(SIZES, noise=0.7, seed=5)


def same_weights(a, b) -> bool:
    return all(np.array_equal(a.weights[name], b.weights[name]) for name in a.weights)


@pytest.mark.parametrize("aggregator", ["mean", "weighted", "attention"])
def test_learns_to_link_people_it_has_not_seen(training_faces, aggregator):
    epochs: list[Epoch] = []
    options = {**SMALL, "epochs": 5, "balanced": False, "learning_rate": 5e-3}
    model = train(*training_faces, aggregator=aggregator, on_epoch=epochs.append, **options)
    assert epochs[-1].loss < 0.8 * epochs[0].loss
    others = make_faces(SIZES, noise=0.7, seed=6)
    graph = facelink.knn_graph(others.embeddings, 20)
    likelihood = facelink.score_links(others.embeddings, graph, model).likelihood
    true = others.labels[graph.indices] == others.labels[:, None]
    assert true.mean() < 0.5
    assert average_precision_score(true.ravel(), likelihood.ravel()) > 0.9


def test_the_same_seed_gives_the_same_model_and_another_another(training_faces):
    first, second = (train(*training_faces, **{**SMALL, "epochs": 1}) for _ in range(2))
    other = train(*training_faces, seed=1, **{**SMALL, "epochs": 1})
    assert same_weights(first, second)
    assert not same_weights(first, other)


def test_training_leaves_torchs_random_numbers_alone(training_faces):
    torch.manual_seed(3)
    wanted = torch.rand(1)
    torch.manual_seed(3)
    train(*training_faces, **{**SMALL, "epochs": 1})
    assert torch.rand(1) == wanted


class Killed(Exception):
    pass


@pytest.mark.parametrize("after", [1, 9, 13, 22, 30])
def test_a_killed_run_goes_on_to_the_same_result(training_faces, tmp_path, after):
    wanted = train(*training_faces, **SMALL)
    path = tmp_path / "m.checkpoint"
    calls = 0

    def kill(stage: str, done: int, total: int) -> None:
        nonlocal calls
        calls += stage.startswith("epoch")
        if calls == after:
            raise Killed

    options = {**SMALL, "checkpoint": path, "checkpoint_seconds": 0}
    with pytest.raises(Killed):
        train(*training_faces, progress=kill, **options)
    assert path.exists() == (after > 1)
    resumed_at = []
    found = train(
        *training_faces, progress=lambda stage, done, _: resumed_at.append((stage, done)), **options
    )
    assert same_weights(found, wanted)
    assert found.about == wanted.about
    assert same_weights(train(*training_faces, **options), wanted)  # nothing left to do
    steps = [done for stage, done in resumed_at if stage.startswith("epoch")]
    if after > 1:
        assert steps[0] > SMALL["batch_size"]  # it did not start anew


def test_a_checkpoint_of_another_training_is_refused_with_the_difference(training_faces, tmp_path):
    path = tmp_path / "m.checkpoint"

    def kill(epoch: Epoch) -> None:
        raise Killed

    options = {**SMALL, "checkpoint": path}
    with pytest.raises(Killed):
        train(*training_faces, on_epoch=kill, **options)
    with pytest.raises(InputError, match="its seed is 0, now it is 7"):
        train(*training_faces, seed=7, **options)
    with pytest.raises(InputError, match="its data is"):
        train(training_faces.embeddings[::-1], training_faces.labels, **options)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(FileError, match="Remove it to start anew"):
        train(*training_faces, **options)


def test_the_best_epoch_is_kept(training_faces, monkeypatch):
    precisions = iter([0.5, 0.9, 0.7])
    after_each = []

    def validate(network, watched, context):
        after_each.append(training_loop.weights_of(network))
        return 0.0, next(precisions)

    monkeypatch.setattr(training_loop, "_validate", validate)
    model = train(*training_faces, **SMALL)
    assert model.about["best epoch"] == 2
    for name, array in after_each[1].items():
        np.testing.assert_array_equal(model.weights[name], array)


def test_validation_identities_are_not_trained_on(training_faces, monkeypatch):
    seen = {}
    collect = training_loop._collection

    def spy(rows, identities, mask, *rest):
        seen[len(seen)] = set(identities[mask])
        return collect(rows, identities, mask, *rest)

    monkeypatch.setattr(training_loop, "_collection", spy)
    train(*training_faces, validation=0.25, **{**SMALL, "epochs": 1})
    assert not seen[0] & seen[1]
    assert len(seen[1]) == round(0.25 * len(SIZES))


def test_balanced_counts_every_identity_alike(training_faces):
    rows = training_loop.UnitRows(training_faces.embeddings)
    everyone = np.ones(len(rows), bool)
    for balanced in (True, False):
        made = training_loop._collection(
            rows, training_faces.labels, everyone, 5, balanced, facelink.progress.silent
        )
        totals = np.bincount(training_faces.labels, made.importance)
        np.testing.assert_allclose(totals, 1 if balanced else np.bincount(training_faces.labels))


def test_small_collections_narrow_the_subgraphs():
    few = make_faces((6, 5, 4, 3), n_copies=0)
    model = train(*few, validation=0, epochs=1, widths=(4, 4), batch_size=16)
    assert model.about["trained on"]["hops"] == [17, 10]
    assert model.context.hops == (17, 5)
    assert model.about["link average precision"] is None


def test_the_model_is_scored_no_wider_than_it_was_trained():
    few = make_faces((6, 5, 4, 3, 3), n_copies=0)
    options = {"validation": 0, "epochs": 1, "widths": (4, 4), "batch_size": 16}
    for hops, u, wanted in (((5, 3), 3, (5, 3)), ((9,), 2, (9,)), ((9, 9, 9), 9, (9, 5, 5))):
        model = train(*few, hops=hops, u=u, **options)
        assert model.context.hops == wanted
        assert model.context.u == min(u, 5)


def test_someone_with_two_items_is_among_those_held_back():
    labels = np.concatenate([np.repeat(np.arange(3), 6), np.arange(3, 20)])
    for seed in range(30):
        held = training_loop._hold_back(labels, 0.1, seed)
        assert np.bincount(labels[held]).max() > 1
        assert np.bincount(labels[~held]).max() > 1


def test_training_that_diverges_says_so(training_faces):
    with pytest.raises(InputError, match="Lower the learning rate"):
        train(*training_faces, learning_rate=1e30, **SMALL)


def test_a_last_batch_of_one_joins_the_one_before():
    assert [len(b) for b in training_loop._batches(np.arange(17), 16)] == [17]
    assert [len(b) for b in training_loop._batches(np.arange(18), 16)] == [16, 2]
    assert [len(b) for b in training_loop._batches(np.arange(1), 16)] == [1]


def test_names_are_labels_too_and_the_model_can_be_saved(training_faces, tmp_path):
    names = np.array([f"person {label}" for label in training_faces.labels])
    model = train(training_faces.embeddings, names, name="mine", **{**SMALL, "epochs": 1})
    model.save(tmp_path / "mine.safetensors")
    again = load_model(tmp_path / "mine.safetensors")
    assert same_weights(model, again)
    assert again.name == "mine"
    assert facelink.cluster(training_faces.embeddings, model=again).labels.shape == names.shape


@pytest.mark.parametrize(
    ("labels", "options", "said"),
    [
        (np.arange(5), {}, "one label for each of the 20 embeddings, got 5"),
        (np.zeros((20, 1)), {}, "an array of 2 axes"),
        (np.array([1.0, np.nan] * 10), {}, "contain NaN"),
        (np.array([1, None] * 10, object), {}, "whole numbers or text"),
        (np.arange(20) % 5, {"seed": -1}, "seed should be"),
        (np.zeros(20), {}, "at least two identities"),
        (np.arange(20), {}, "two items of one of them"),
        (np.arange(20) % 2, {}, "validation=0"),
        (np.arange(20) % 5, {"epochs": 0}, "epochs should be"),
        (np.arange(20) % 5, {"batch_size": 1.5}, "batch_size should be"),
        (np.arange(20) % 5, {"learning_rate": 0}, "learning_rate should be"),
        (np.arange(20) % 5, {"validation": 1}, "validation should be"),
        (np.arange(20) % 5, {"aggregator": "max"}, "aggregator should be"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(labels, options, said):
    x = np.random.default_rng(0).normal(size=(20, 8))
    with pytest.raises(InputError, match=said):
        train(x, labels, **options)
