from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import facelink  # noqa: E402
from conftest import make_faces  # noqa: E402
from facelink.compiled import THREADS_VARIABLE  # noqa: E402
from facelink.errors import InputError, ModelError  # noqa: E402
from facelink.links.model import Preset, UniversalModel, load_model  # noqa: E402
from facelink.links.perceptron import Perceptron  # noqa: E402
from facelink.links.review import NAMES  # noqa: E402
from facelink.links.universal import DRAFT  # noqa: E402
from facelink.progress import silent  # noqa: E402
from facelink.training import episodes, universal  # noqa: E402
from facelink.training.episodes import (  # noqa: E402
    Collection,
    Episode,
    _with_noise,
    make_episodes,
)
from facelink.training.universal import (  # noqa: E402
    DRAFTS,
    FAR,
    NEAR,
    Elsewhere,
    Lesson,
    fit_perceptrons,
    train_universal,
)

SIZES = (30, 12, 9, 7, 5, 5, 4, 4, 3, 2, 2) * 4 + (1,) * 40


def collections() -> list[Collection]:
    made = []
    for seed, dimension in ((1, 32), (2, 32), (3, 48)):
        x, labels = make_faces(SIZES, dimension, noise=0.55, seed=seed)
        made.append(Collection(f"made {seed}", x, labels, str(dimension), str(seed)))
    return made


@pytest.fixture(scope="module")
def model() -> UniversalModel:
    return train_universal(collections(), episodes=24, seed=1)


def test_it_clusters_what_it_has_not_seen(model):
    for dimension in (24, 64):
        x, truth = make_faces(SIZES, dimension, noise=0.5, seed=9)
        found = facelink.cluster(x, model=model)
        assert facelink.metrics.bcubed(truth, found.labels).f > 0.9


def test_the_same_seed_gives_the_same_model_on_any_number_of_threads(model, monkeypatch):
    torch.set_num_threads(2)
    monkeypatch.setenv(THREADS_VARIABLE, "1")
    again = train_universal(collections(), episodes=24, seed=1)
    for name, array in model.weights.items():
        np.testing.assert_array_equal(array, again.weights[name])
    assert torch.get_num_threads() == 2  # as it was


def test_a_file_gives_the_model_again(model, tmp_path):
    model.save(tmp_path / "m.safetensors")
    again = load_model(tmp_path / "m.safetensors")
    assert isinstance(again, UniversalModel)
    assert again.presets == model.presets
    assert again.context == model.context
    assert again.about["trained on"]["collections"] == ["made 1", "made 2", "made 3"]
    x = make_faces(dimension=20).embeddings
    before, after = (facelink.cluster(x, model=m) for m in (model, again))
    np.testing.assert_array_equal(before.labels, after.labels)
    np.testing.assert_array_equal(before.confidence, after.confidence)


def test_arrays_that_do_not_fit_are_refused(model):
    weights = dict(model.weights)
    matrix = weights["links.0.matrix"]
    for wrong in (matrix[:-1], matrix[:, :-1], matrix[0]):
        weights["links.0.matrix"] = wrong
        with pytest.raises(ModelError, match="links"):
            UniversalModel(weights, model.presets)
    del weights["links.0.matrix"]
    with pytest.raises(ModelError, match="missing"):
        UniversalModel(weights, model.presets)
    with pytest.raises(ModelError, match="balanced"):
        UniversalModel(model.weights, {"mine": Preset(0.5)})


def test_a_model_of_other_features_is_refused(model, tmp_path, monkeypatch):
    description = {**model.description(), "link features": ["shoe size"]}
    monkeypatch.setattr(UniversalModel, "description", lambda self: description)
    model.save(tmp_path / "m.safetensors")
    monkeypatch.undo()
    with pytest.raises(ModelError, match="other link features"):
        load_model(tmp_path / "m.safetensors")


def test_the_perceptron_is_the_mean_of_the_networks_that_were_trained():
    rng = np.random.default_rng(0)
    firsts = [torch.nn.Linear(5, 7) for _ in range(3)]
    seconds = [torch.nn.Linear(7, 1) for _ in range(3)]
    arrays = {
        "p.mean": rng.normal(size=5).astype(np.float32),
        "p.scale": rng.random(5).astype(np.float32),
    }
    for depth, layers in enumerate((firsts, seconds)):
        arrays[f"p.{depth}.matrix"] = np.stack([a.weight.detach().numpy().T for a in layers])
        arrays[f"p.{depth}.bias"] = np.stack([a.bias.detach().numpy() for a in layers])
    features = 10 * rng.normal(size=(50, 5)).astype(np.float32)
    x = torch.from_numpy((features - arrays["p.mean"]) * arrays["p.scale"]).clamp(-6, 6)
    with torch.no_grad():
        pairs = zip(firsts, seconds, strict=True)
        log_odds = [second(torch.relu(first(x)))[:, 0] for first, second in pairs]
        wanted = torch.sigmoid(torch.stack(log_odds).mean(dim=0)).numpy()
    found = Perceptron.from_arrays(arrays, "p", 5).probabilities(features)
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_networks_side_by_side_learn_the_same_from_other_weights():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 3)).astype(np.float32)
    above = (x[:, 0] > 0).astype(np.float32)
    examples = [(part.copy(), truth, np.ones(200, np.float32)) for part, truth in
                zip(x.reshape(10, 200, 3), above.reshape(10, 200), strict=True)]  # fmt: skip
    arrays = fit_perceptrons(
        "p", examples, widths=(8,), epochs=500, seed=0, members=4, progress=silent
    )
    assert len(arrays["p.0.matrix"]) == 4
    alone = [
        {name: array if array.ndim == 1 else array[[member]] for name, array in arrays.items()}
        for member in range(4)
    ]
    networks = [Perceptron.from_arrays(mine, "p", 3) for mine in alone]
    for network in networks:
        assert ((network.probabilities(x) > 0.5) == above).mean() > 0.95
    assert len({network.probabilities(x[:1]).item() for network in networks}) == 4


def test_episodes_are_collections_of_other_kinds():
    given = collections()
    made = make_episodes(given, 60, seed=0)
    assert len(made) == 60
    for collection, episode in zip(given, made, strict=False):  # first as they are
        assert len(episode.labels) == len(collection.labels)
    for episode in made:
        lengths = np.linalg.norm(episode.embeddings.astype(np.float32), axis=1)
        np.testing.assert_allclose(lengths, 1, atol=2e-2)
        assert len(episode.embeddings) == len(episode.labels)
    sizes = [np.unique(e.labels, return_counts=True)[1] for e in made]
    assert max(s.max() for s in sizes) > 200  # nobody has that many photos to begin with
    assert min(s.mean() for s in sizes) < 2  # most of them alone; four photos each to begin with
    dimensions = {e.embeddings.shape[1] for e in made}
    assert len(dimensions) > 2  # other embedders
    again = make_episodes(given, 60, seed=0)
    np.testing.assert_array_equal(made[-1].embeddings, again[-1].embeddings)


def test_some_collections_are_of_strangers_alone():
    given, rng = collections()[0], np.random.default_rng(0)
    made = [episodes._resample(given.embeddings, given.labels, rng)[1] for _ in range(40)]
    alone = [len(np.unique(labels)) == len(labels) for labels in made]
    assert 1 <= sum(alone) < 20


def test_collections_of_strangers_alone_teach_nothing():
    alone = [replace(c, labels=np.arange(len(c.labels))) for c in collections()]
    with pytest.raises(InputError, match="some of them of one person"):
        make_episodes(alone, 10, seed=0)


def test_some_collections_belong_to_one_person(monkeypatch):
    monkeypatch.setattr(episodes, "OWNED", 1.0)
    rng = np.random.default_rng(0)
    for _ in range(50):
        sizes = episodes._sizes(rng)
        if len(sizes) > 20:  # a person more or less is no matter
            assert 0.08 < sizes[0] / sizes.sum() < 0.52


def lesson_of(sizes: tuple[int, ...]) -> Lesson:
    x, labels = make_faces(sizes, dimension=32, noise=0.4, n_copies=0)
    order = np.random.default_rng(0).permutation(len(labels))
    lesson = Lesson.of(Episode(x[order].astype(np.float16), labels[order]))
    lesson.likelihood[:] = labels[order][lesson.graph.indices] == labels[order][:, None]
    return lesson


def test_a_person_of_many_photos_counts_for_more_but_not_as_much_more():
    lesson = lesson_of((60,) + (4,) * 30 + (1,) * 30)
    _, truth, importance = lesson.link_examples()
    sizes = np.repeat(np.bincount(lesson.episode.labels)[lesson.episode.labels], lesson.graph.k)
    sizes = sizes[: len(importance)]
    of = {size: np.unique(importance[sizes == size]) for size in (1, 4, 60)}
    assert all(len(weights) == 1 for weights in of.values())
    assert of[4] / of[60] == pytest.approx(15**0.25, rel=1e-4)
    assert of[60] < of[1] < of[4]
    assert importance.mean() == pytest.approx(1, rel=1e-4)
    assert set(np.unique(truth)) == {0, 1}


def test_clusters_are_one_person_if_joining_them_gives_more_than_it_costs():
    """Whether or not they are pure."""
    lesson = lesson_of((12,) * 20)
    likely = lesson.likelihood == 1
    rng = np.random.default_rng(0)
    wrong = rng.random(likely.shape) < 0.02
    lesson.likelihood[:] = np.where(likely, rng.uniform(0.1, 0.7, likely.shape), 0.05)
    lesson.likelihood[wrong] = 0.9
    features, truth, importance = lesson.fragment_examples(rng)
    assert len(features) == len(truth) == len(importance) > 50
    assert set(np.unique(truth)) == {0, 1}
    assert importance.max() > 5 * np.median(importance)  # large ones count for more


def test_the_review_sees_strict_drafts_and_loose_ones(monkeypatch, model):
    strictness = []

    def merged(links, threshold):
        strictness.append(threshold)
        return facelink.merge_links(links, threshold=threshold)

    monkeypatch.setattr(universal, "merge_links", merged)
    lesson, rng = lesson_of((12,) * 20), np.random.default_rng(0)
    likely = lesson.likelihood == 1
    lesson.likelihood[:] = np.where(likely, rng.uniform(0, 0.6, likely.shape), 0.02)
    sizes = []
    for _ in range(12):
        features, *_ = lesson.membership_examples(model.fragments, rng)
        sizes.append(features[0, NAMES.index("usual size")])
    assert min(strictness) < 0.3
    assert max(strictness) > 0.5
    assert DRAFTS[0] <= DRAFT.threshold <= DRAFTS[1]
    assert len(np.unique(sizes)) > 1


def test_elsewhere_all_links_of_an_item_may_be_doubted():
    """But none is taken for certain that was ruled out, and nearly all keep their side."""
    lesson = lesson_of((12,) * 20)
    likely = lesson.likelihood == 1
    lesson.likelihood[:] = np.where(likely, 0.9, 0.1)
    lesson.likelihood[0, :3] = 0
    seen = lesson.elsewhere(np.random.default_rng(0), NEAR)
    assert (seen[0, :3] == 0).all()
    assert seen[likely].mean() > 0.7
    assert seen[~likely].mean() < 0.3
    by_item = np.array([seen[i][likely[i]].mean() for i in range(len(seen)) if likely[i].any()])
    within = np.mean([seen[i][likely[i]].std() for i in range(len(seen)) if likely[i].sum() > 1])
    assert by_item.std() > 0.5 * within  # what an item is like shows in all its links

    def usual(how: Elsewhere, seed: int) -> float:
        return float(lesson.elsewhere(np.random.default_rng(seed), how)[likely].mean())

    near, far = (np.array([usual(how, seed) for seed in range(20)]) for how in (NEAR, FAR))
    assert far.std() > 1.5 * near.std()  # where it is far, they may be thought of otherwise


def test_grown_photos_belong_to_their_person():
    """Most items of an episode are nearest to one of their own, if they have one."""
    shares = []
    for episode in make_episodes(collections(), 30, seed=3)[3:]:
        _, person, counts = np.unique(episode.labels, return_inverse=True, return_counts=True)
        nearest = facelink.knn_graph(episode.embeddings, 1).indices[:, 0]
        several = counts[person] > 1
        if several.any():  # some are collections of strangers
            shares.append((person[nearest] == person)[several].mean())
    assert len(shares) > 20
    assert np.median(shares) > 0.8


def test_a_weaker_embedder_blurs_but_keeps_people_apart():
    rng = np.random.default_rng(0)
    faces = make_faces((30,) * 8, dimension=64, noise=0.3, n_copies=0)
    for _ in range(10):
        weaker = _with_noise(faces.embeddings, rng)
        np.testing.assert_allclose(np.linalg.norm(weaker, axis=1), 1, rtol=1e-5)
        kept = (weaker * faces.embeddings).sum(axis=1)
        assert kept.min() > 0.5
        assert kept.mean() < 1
        same = faces.labels[:, None] == faces.labels
        products = weaker @ weaker.T
        assert products[same].mean() > products[~same].mean() + 0.3
