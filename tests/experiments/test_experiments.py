"""The paper's tables and figures, on small collections."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from click.testing import CliRunner

import facelink
from conftest import make_faces
from facelink.cli import main
from facelink.data.layouts import LabelledCollection
from facelink.errors import InputError
from facelink.experiments import (
    EXPERIMENTS,
    Bench,
    Cell,
    find_experiments,
    run_experiment,
    upper_bound,
)
from facelink.experiments.bench import half_of_people, scores
from facelink.experiments.comparison import measure
from facelink.experiments.oracle import best_of
from facelink.experiments.tables import plain
from facelink.experiments.two_views import as_hard_as, pair_people

SIZES = (14,) * 10 + (3,) * 6 + (1,) * 8


def collection(name="some-32", seed=0, **options):
    faces = make_faces(options.pop("sizes", SIZES), seed=seed, **options)
    return LabelledCollection(name, faces.embeddings, faces.labels)


@pytest.fixture
def bench(tmp_path):
    collections = [
        collection("some-32"),
        collection("some-24", dimension=24),
        collection("voices-20", seed=5, dimension=20, sizes=(12,) * 9, noise=0.3),
    ]
    return Bench(collections, tmp_path / "out", quick=True, distractors=60)


def test_networks_are_trained_in_one_way(tmp_path):
    given = [collection("512")]
    assert Bench(given, tmp_path, narrow=True).recipe["widths"] == (64, 32, 32, 32)
    assert Bench(given, tmp_path, as_in_paper=True).recipe["widths"] == (512, 512, 256, 256)
    with pytest.raises(InputError, match="choose one"):
        Bench(given, tmp_path, quick=True, narrow=True)


def test_table1_is_the_upper_bound(bench):
    rows, files = run_experiment(EXPERIMENTS["table1"], bench)
    mine = [row["F"] for row in rows if row["collection"] == "some-32"]
    assert mine == sorted(mine)
    assert mine[-1] == 1.0  # every item lists everybody of its own
    assert [file.suffix for file in files] == [".csv", ".json", ".md"]
    with files[0].open() as file:
        assert len(list(csv.DictReader(file))) == len(EXPERIMENTS["table1"].cells(bench))
    assert json.loads(files[1].read_text())["about"]["quick"] is True


def test_the_upper_bound_by_hand(bench):
    """The nearest of 0 and 1 is the other; of 2 and 3 it is somebody else; of 4, person 1."""
    x = np.array([[1, 0], [0.99, 0.14], [0, 1], [0.14, 0.99], [-1, 0]])
    tiny = LabelledCollection("tiny", x, np.array([0, 0, 1, 2, 2]))
    row = upper_bound.measure(bench, tiny, 1)
    assert row["F"] == pytest.approx(2 * 0.8 / 1.8, abs=1e-4)  # 3 and 4 are apart: recall 0.8
    assert row["pairwise F"] == pytest.approx(2 * 0.5 / 1.5, abs=1e-4)
    assert upper_bound.measure(bench, tiny, 4)["F"] == 1


def test_a_graph_on_file_serves_those_who_read_no_more(tmp_path, bench):
    some = bench.collections[0]
    lists = np.arange(len(some))[:, None] + np.arange(21)
    np.save(tmp_path / "g.npy", lists % len(some))  # not the nearest, to be told apart
    filed = LabelledCollection("filed", some.embeddings, some.labels, tmp_path / "g.npy")
    narrow, wide = bench.graph(filed, 20)[0], bench.graph(filed, 30)[0]
    assert set(narrow.indices[0]) == set(range(1, 21))
    np.testing.assert_array_equal(wide.indices, facelink.knn_graph(some.embeddings, 30).indices)


def test_finished_rows_are_not_computed_again(bench):
    computed = []

    def compute():
        computed.append(1)
        return {"F": 0.5}

    cell = Cell({"method": "a"}, compute, ("data",), "kind")
    assert bench.row_of(cell) == {"method": "a", "F": 0.5}
    again = Bench(bench.collections, bench.folder, quick=True)
    assert again.row_of(cell) == {"method": "a", "F": 0.5}
    assert len(computed) == 1
    # Other data, another key or another seed is another row.
    again.row_of(Cell({"method": "a"}, compute, ("other",), "kind"))
    again.row_of(Cell({"method": "b"}, compute, ("data",), "kind"))
    Bench(bench.collections, bench.folder, quick=True, seed=1).row_of(cell)
    assert len(computed) == 4


def test_a_line_that_was_cut_off_costs_one_row_only(bench):
    def cell(name):
        return Cell({"method": name}, lambda: {"F": 0.5}, (), "kind")

    bench.row_of(cell("a"))
    bench.row_of(cell("b"))
    file = bench.folder / "cells.jsonl"
    file.write_bytes(file.read_bytes()[:-9])
    again = Bench(bench.collections, bench.folder, quick=True)
    again.row_of(cell("b"))
    third = Bench(bench.collections, bench.folder, quick=True)
    fail = Cell({"method": "b"}, lambda: pytest.fail("computed again"), (), "kind")
    assert third.row_of(fail)["F"] == 0.5
    assert len(third._rows) == 2


def test_halves_share_nobody():
    labels = np.repeat(np.arange(10), 3)
    first = half_of_people(labels, 0)
    assert len(np.unique(labels[first])) == len(np.unique(labels[~first])) == 5
    assert not set(labels[first]) & set(labels[~first])


def test_rows_depend_on_what_was_trained_on(tmp_path):
    cell = Cell({"method": "a"}, lambda: {"F": 0.5}, ("data",), "kind")
    Bench([collection("512")], tmp_path, quick=True).row_of(cell)
    other = Cell({"method": "a"}, lambda: {"F": 0.7}, ("data",), "kind")
    both = Bench([collection("CASIA"), collection("512")], tmp_path, quick=True)
    assert both.row_of(other)["F"] == 0.7


def test_rows_depend_on_the_universal_model_not_on_its_name(tmp_path):
    path = tmp_path / "mine.safetensors"
    facelink.load_model("universal").save(path)
    first = Bench([collection()], tmp_path, universal=str(path)).universal_digest
    model = facelink.load_model("universal")
    model.weights["links.0.bias"][0] += 1
    model.save(path)
    assert Bench([collection()], tmp_path, universal=str(path)).universal_digest != first


def test_what_is_too_large_is_said_in_its_row(bench, monkeypatch):
    monkeypatch.setattr("facelink.baselines.sizes.LIMIT", 1000)
    row = measure(bench, bench.tested[0], "affinity_propagation")
    assert row["F"] is None
    assert "would need about 0.0 GiB" in row["tuned"]


def test_an_error_names_the_row(tmp_path):
    broken = collection()
    broken.embeddings[3, 0] = np.nan
    with pytest.raises(InputError, match="some-32, 5: NaN or infinity in 1 row"):
        run_experiment(EXPERIMENTS["table1"], Bench([broken], tmp_path))


def test_nothing_to_test_on_is_said(tmp_path):
    with pytest.raises(InputError, match="nothing to test on: of train, all are there"):
        EXPERIMENTS["figure4"].cells(Bench([collection("train")], tmp_path))


def test_a_training_collection_of_another_dimension_is_not_used(tmp_path):
    bench = Bench([collection("CASIA", dimension=8), collection("512")], tmp_path, quick=True)
    learned, tested = bench.split(bench.tested[0])
    assert learned.embeddings.shape[1] == tested.embeddings.shape[1] == 32


def test_a_collection_for_training_is_trained_on(tmp_path):
    bench = Bench([collection("CASIA"), collection("512", seed=1)], tmp_path, quick=True)
    assert [c.name for c in bench.tested] == ["512"]
    learned, tested = bench.split(bench.tested[0])
    assert (learned.name, tested.name) == ("CASIA", "512")


@pytest.mark.slow
def test_table2_has_a_row_for_every_method(bench):
    rows, _ = run_experiment(EXPERIMENTS["table2"], bench)
    mine = {row["method"]: row for row in rows if row["collection"] == "some-32"}
    assert {"K-means", "AHC", "ARO", "DDC", "ConPaC", "GCN-M", "GCN-A", "facelink"} <= set(mine)
    assert all(row["F"] is not None for row in mine.values())
    assert mine["AHC"]["F"] > 0.9  # these people are easy to tell apart
    assert mine["AHC"]["tuned"].startswith("threshold")
    # Nothing is tuned by oracle for ours.
    assert mine["facelink"]["tuned"] == "nothing"


@pytest.mark.slow
def test_figures_are_drawn(bench):
    pytest.importorskip("matplotlib")
    for name in ("figure3", "figure4", "figure5"):
        rows, files = run_experiment(EXPERIMENTS[name], bench)
        assert rows
        png = next(file for file in files if file.suffix == ".png")
        assert png.read_bytes()[:4] == b"\x89PNG"
        assert "<svg" in next(file for file in files if file.suffix == ".svg").read_text()


def test_the_toy_learns_to_separate():
    pytest.importorskip("torch")
    from facelink.experiments.toy import STEPS, train_toy

    found = train_toy(0)
    assert found[STEPS[-1]]["loss"] < found[0]["loss"] / 2
    assert found[STEPS[-1]]["right"] > 0.8


def test_table4_ignores_the_distractors(bench):
    rows, _ = run_experiment(EXPERIMENTS["table4"], bench)
    _, tested = bench.split(bench.tested[0])
    assert [row["k1"] for row in rows] == [10, 40, 160]
    assert {row["items"] for row in rows} == {len(tested) + 60}
    embeddings, graph, _ = bench.once(("among", tested.digest, 60), lambda: pytest.fail("not kept"))
    model = bench.network("GCN-M", bench.split(bench.tested[0])[0])
    context = facelink.Context((10, 5), 5)
    links = facelink.score_links(embeddings, graph, model, context=context)
    labels = facelink.merge_links(links, threshold=model.preset("balanced").threshold)
    assert rows[0]["F"] == scores(tested.labels, labels[: len(tested)])["F"]
    assert rows[0]["F"] > 0


@pytest.mark.slow
def test_tables_5_and_6_pair_faces_with_voices(bench):
    few, _ = run_experiment(EXPERIMENTS["table5"], bench)
    many, _ = run_experiment(EXPERIMENTS["table6"], bench)
    assert few[0]["people"] < many[0]["people"]
    assert {row["view"] for row in many} == {"face", "voice", "both"}


def test_pairs_of_people_and_speakers():
    faces, voices = collection(seed=1), collection("voices", seed=2, sizes=(9,) * 6, dimension=12)
    learned, tested = pair_people(faces, voices, seed=0, most=5)
    assert len(np.unique(learned.labels)) + len(np.unique(tested.labels)) == 6
    assert np.bincount(tested.labels).max() <= 5
    assert len(tested.faces) == len(tested.voices) == len(tested.labels)


def test_noise_makes_voices_as_hard_as_faces():
    faces, voices = collection(noise=1.1, n_copies=0), collection(seed=3, noise=0.2, n_copies=0)
    order = np.argsort(faces.labels, kind="stable"), np.argsort(voices.labels, kind="stable")
    labels = faces.labels[order[0]]
    x, v = faces.embeddings[order[0]], voices.embeddings[order[1]]
    noise = as_hard_as(x, v, labels, 0)

    def score(rows):
        return facelink.metrics.bcubed(labels, best_of("ahc", rows, labels).labels).f

    from facelink.experiments.two_views import with_noise

    assert score(v) > score(x) + 0.02
    assert abs(score(with_noise(v, noise, 0)) - score(x)) < 0.06


def test_plain_tables_are_grouped_by_their_first_column():
    rows = [{"collection": c, "k": k, "F": 0.5 * k} for c in "ab" for k in (1, 2)]
    assert plain(rows).split("\n") == [
        "collection: a", "k    F", "1  0.5", "2  1.0", "",
        "collection: b", "k    F", "1  0.5", "2  1.0",
    ]  # fmt: skip


def test_plain_tables_fit_the_terminal():
    rows = [{"collection": "a", "method": "x" * 90, "F": 1.0}, {"collection": "a", "F": 0.25}]
    text = plain(rows)
    assert max(map(len, text.splitlines())) <= 80
    assert text.splitlines()[0] == "collection: a"


def test_other_embeddings_of_the_same_people_are_needed(tmp_path):
    with pytest.raises(InputError, match="expected two collections named NAME-EMBEDDER"):
        EXPERIMENTS["table3"].cells(Bench([collection("alone")], tmp_path))


def test_voices_are_needed(tmp_path):
    with pytest.raises(InputError, match="says that it holds voices, got alone"):
        EXPERIMENTS["table5"].cells(Bench([collection("alone")], tmp_path))


def test_unknown_experiments_are_named():
    with pytest.raises(InputError, match="no experiment 'table9'; there are table1"):
        find_experiments("table9")


def test_the_command(tmp_path):
    some = collection()
    np.savez(tmp_path / "some.npz", x=some.embeddings, y=some.labels)
    run = CliRunner()
    listed = run.invoke(main, ["bench", "--list"])
    assert listed.exit_code == 0
    assert all(name in listed.output for name in EXPERIMENTS)
    arguments = ["bench", "table1", "--data", str(tmp_path), "-o", str(tmp_path / "out")]
    done = run.invoke(main, arguments)
    assert done.exit_code == 0, done.output
    assert "pairwise F" in done.output
    as_json = run.invoke(main, [*arguments, "--json"])
    assert len(json.loads(as_json.stdout)["table1"]["rows"]) == 6
    wrong = run.invoke(main, [*arguments, "--collection", "other"])
    assert wrong.exit_code == 2
    assert "no collection 'other'; it holds some" in wrong.output
    nowhere = run.invoke(main, ["bench", "table1", "--data", str(tmp_path / "nowhere")])
    assert nowhere.exit_code == 2
