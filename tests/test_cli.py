"""The command as people and scripts use it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from conftest import make_faces
from facelink.cli import main
from facelink.cli.interrupts import heard_in_time, is_delicate


def run(*arguments: object):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def some(sample, tmp_path) -> Path:
    np.save(tmp_path / "faces.npy", sample.embeddings[:400])
    (tmp_path / "truth.txt").write_text("".join(f"{y}\n" for y in sample.labels[:400]))
    return tmp_path / "faces.npy"


def refused(result, *said: str) -> None:
    assert result.exit_code == 2, result.output
    lines = result.stderr.strip().splitlines()
    assert 1 <= len(lines) <= 3, result.stderr
    assert "Traceback" not in result.output
    for words in said:
        assert words in result.stderr


def test_help_fits_a_terminal():
    for command in ((), ("demo",), ("cluster",), ("train",), ("evaluate",)):
        result = run(*command, "--help")
        assert result.exit_code == 0
        assert max(map(len, result.output.splitlines())) <= 80


def test_demo_writes_and_scores(tmp_path):
    result = run("demo", "-o", tmp_path / "demo")
    assert result.exit_code == 0, result.output
    for words in ("BCubed", "NMI", "labels.npy", "Singletons", "Next: facelink evaluate"):
        assert words in result.output
    assert run("demo", "-o", tmp_path / "demo").exit_code == 0  # may be run again
    for name in ("labels.npy", "truth.txt"):
        mine = tmp_path / f"with {name}"
        mine.mkdir()
        (mine / name).write_bytes(b"my work")
        refused(run("demo", "-o", mine), f"holds {name}, which facelink did not write")
        assert (mine / name).read_bytes() == b"my work"
    said = json.loads(run("demo", "-o", tmp_path / "demo", "--json").stdout)
    assert said["scores"]["bcubed"]["f"] > 0.97


def test_cluster_writes_its_three_files(some, tmp_path):
    folder = tmp_path / "deep" / "people"
    result = run("cluster", some, "-o", folder)
    assert result.exit_code == 0, result.output
    labels = np.load(folder / "labels.npy")
    summary = json.loads((folder / "summary.json").read_text())
    table = (folder / "clusters.csv").read_text().splitlines()
    sizes = np.bincount(labels)
    assert summary["items"] == 400
    assert summary["clusters"] == (sizes > 1).sum()
    assert summary["singletons"] == (sizes == 1).sum()
    assert summary["largest clusters"][0] == sizes[0]
    assert table[0] == "item,cluster,confidence"
    assert [int(line.split(",")[1]) for line in table[1:]] == labels.tolist()
    assert all(0 <= float(line.split(",")[2]) <= 1 for line in table[1:])
    assert sorted(p.name for p in folder.iterdir()) == [
        "clusters.csv",
        "labels.npy",
        "summary.json",
    ]
    assert "400" in result.stdout


def test_a_result_is_never_overwritten_unasked(some, tmp_path):
    folder = tmp_path / "people"
    assert run("cluster", some, "-o", folder).exit_code == 0
    before = (folder / "labels.npy").read_bytes()
    refused(
        run("cluster", some, "-o", folder, "--threshold", "1"), "already holds a result", "--force"
    )
    assert (folder / "labels.npy").read_bytes() == before
    assert run("cluster", some, "-o", folder, "--threshold", "1", "--force").exit_code == 0
    assert (folder / "labels.npy").read_bytes() != before
    # What is no result is not replaced by one.
    own = tmp_path / "own"
    own.mkdir()
    (own / "labels.npy").write_bytes(some.read_bytes())
    refused(
        run("cluster", own / "labels.npy", "-o", own, "--force"),
        "facelink did not write",
        "with -o",
    )
    assert (own / "labels.npy").read_bytes() == some.read_bytes()
    refused(run("demo", "-o", folder), "already holds a result", "another folder with -o.")


def test_a_result_is_replaced_whole_or_not_at_all(some, tmp_path, monkeypatch):
    folder = tmp_path / "people"
    assert run("cluster", some, "-o", folder).exit_code == 0
    (folder / "clusters.parquet").write_bytes(b"as of --parquet")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    (folder / ".clusters.csv.0123abcd.part").write_bytes(b"left by a process that was killed")

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("facelink.data.results._write_csv", interrupted)
        result = run("cluster", some, "-o", folder, "--threshold", "1", "--force")
    assert result.exit_code == 130
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert run("cluster", some, "-o", folder, "--threshold", "1", "--force").exit_code == 0
    assert {path.name for path in folder.iterdir()} == before.keys() - {"clusters.parquet"}


def test_json_is_all_that_machines_see(some, tmp_path):
    result = run("cluster", some, "-o", tmp_path / "people", "--json")
    assert json.loads(result.stdout)["items"] == 400


def test_a_file_name_that_is_no_text_is_no_obstacle(some, tmp_path):
    odd = tmp_path / os.fsdecode(b"f\xff.npy")
    odd.write_bytes(some.read_bytes())
    result = run("cluster", odd, "-o", tmp_path / os.fsdecode(b"out\xff"))
    assert result.exit_code == 0, result.output
    refused(run("cluster", str(odd) + ".npy", "-o", tmp_path / "out"), "There is no file")


@pytest.mark.parametrize("n_items", [1, 2, 5])
def test_a_handful_of_items_is_no_error(some, tmp_path, n_items):
    np.save(tmp_path / "few.npy", np.load(some)[:n_items])
    result = run("cluster", tmp_path / "few.npy", "-o", tmp_path / "people")
    assert result.exit_code == 0, result.output
    assert "little to go on" in result.stdout


def test_bad_input_is_a_plain_message_and_writes_nothing(some, tmp_path):
    x = np.load(some).astype(np.float32)
    holed = x.copy()
    holed[[3, 9], 5] = np.nan
    zeroed = x.copy()
    zeroed[11] = 0
    infinite = x.copy()
    infinite[2] = np.inf
    cases = {
        "empty": (x[:0], "empty"),
        "nan": (holed, "3, 9"),
        "inf": (infinite, ": 2 "),
        "zero": (zeroed, "11"),
        "text": (np.array([["a", "b"]]), "text"),
        "flat": (x.ravel(), "1-d"),
        "cube": (x.reshape(400, 2, 64), "3-d"),
    }
    for name, (array, said) in cases.items():
        np.save(tmp_path / f"{name}.npy", array)
        refused(run("cluster", tmp_path / f"{name}.npy", "-o", tmp_path / "out"), said)
    np.save(tmp_path / "object.npy", np.array([[1, None]], object), allow_pickle=True)
    refused(run("cluster", tmp_path / "object.npy", "-o", tmp_path / "out"), "Python objects")
    refused(run("cluster", tmp_path / "missing.npy", "-o", tmp_path / "out"), "There is no file")
    (tmp_path / "cut.npy").write_bytes(some.read_bytes()[:1000])
    refused(run("cluster", tmp_path / "cut.npy", "-o", tmp_path / "out"), "truncated")
    refused(run("cluster", some, "-o", tmp_path / "out", "--model", "nobody"), "no model 'nobody'")
    np.save(tmp_path / "narrow.npy", x[:, :64])
    narrow = ("cluster", tmp_path / "narrow.npy", "-o", tmp_path / "out")
    refused(run(*narrow, "--model", "mobileface-128"), "128 dimensions, got 64")
    assert run(*narrow, "--preset", "best").exit_code == 2
    refused(run("cluster", some, "-o", tmp_path / "out", "--threshold", "2"), "from 0 to 1")
    refused(run("cluster", some, "-o", tmp_path / "out", "--device", "cpu"), "on the CPU alone")
    paper = ("--model", "mobileface-128", "--device", "abacus")
    refused(run("cluster", some, "-o", tmp_path / "out", *paper), "abacus")
    refused(run("cluster", some, "-o", some), "is a file")
    refused(run("cluster", some, "-o", some / "inside"), "is a file")
    refused(run("cluster", some, "-o", tmp_path / "out", "--max-size", "5"), "'propagation'")
    refused(run("cluster", some, "-o", tmp_path / ("x" * 300)), "Cannot look for")
    refused(run("cluster", "x" * 300 + ".npy", "-o", tmp_path / "out"), "Cannot look for")
    refused(run("cluster", some, "-o", tmp_path / "out", "--model", "m" * 300), "Cannot look for")
    assert not (tmp_path / "out").exists()
    assert run("cluster", some).exit_code == 2  # no -o


def test_evaluate_in_the_order_of_scikit_learn(some, tmp_path):
    (tmp_path / "a.txt").write_text("0\n0\n1\n1\n")
    (tmp_path / "b.txt").write_text("0\n0\n0\n1\n")
    said = json.loads(run("evaluate", tmp_path / "a.txt", tmp_path / "b.txt", "--json").stdout)
    assert said["bcubed"]["precision"] == pytest.approx(2 / 3)
    assert said["bcubed"]["recall"] == pytest.approx(3 / 4)
    assert said["clusters"] == 2
    shown = run("evaluate", tmp_path / "a.txt", tmp_path / "b.txt").stdout
    assert "0.6667" in shown


def test_evaluate_takes_the_folder_that_cluster_wrote(some, tmp_path):
    assert run("cluster", some, "-o", tmp_path / "people").exit_code == 0
    folder = run("evaluate", tmp_path / "truth.txt", tmp_path / "people", "--json")
    table = run("evaluate", tmp_path / "truth.txt", tmp_path / "people" / "clusters.csv", "--json")
    assert folder.stdout == table.stdout
    assert json.loads(folder.stdout)["bcubed"]["f"] > 0.9


def test_evaluate_refuses_labels_of_another_length(tmp_path):
    (tmp_path / "a.txt").write_text("0\n0\n1\n")
    (tmp_path / "b.txt").write_text("0\n0\n")
    refused(run("evaluate", tmp_path / "a.txt", tmp_path / "b.txt"), "got 3 and 2")


def test_train_and_cluster_with_the_model(tmp_path):
    pytest.importorskip("torch")
    faces = make_faces((30, 20, 15, 10, 8, 6, 5, 5, 4, 3, 3, 2, 2), seed=2)
    np.save(tmp_path / "x.npy", faces.embeddings)
    np.save(tmp_path / "y.npy", faces.labels)
    model = tmp_path / "models" / "mine.safetensors"
    options = ("--hops", "15,3", "-u", "3", "--widths", "16,8", "--epochs", "2")
    result = run("train", tmp_path / "x.npy", tmp_path / "y.npy", "-o", model, *options)
    assert result.exit_code == 0, result.output
    assert "Link AP" in result.stdout
    assert "epoch 2: loss" in result.stderr
    assert [p.name for p in model.parent.iterdir()] == ["mine.safetensors"]  # no checkpoint left
    refused(run("train", tmp_path / "x.npy", tmp_path / "y.npy", "-o", model, *options), "--force")
    found = run("cluster", tmp_path / "x.npy", "-o", tmp_path / "out", "--model", model)
    assert found.exit_code == 0, found.output


def test_train_refuses_what_it_cannot_use(tmp_path):
    pytest.importorskip("torch")
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(20, 8)))
    (tmp_path / "y.txt").write_text("1\n2\n")
    model = tmp_path / "m.safetensors"
    refused(run("train", tmp_path / "x.npy", tmp_path / "y.txt", "-o", model), "got 2")
    refused(run("train", tmp_path / "x.npy", tmp_path / "y.txt", "-o", tmp_path / "m.pt"),
            "should end in .safetensors")  # fmt: skip
    bad = run("train", tmp_path / "x.npy", tmp_path / "y.txt", "-o", model, "--hops", "a,b")
    assert bad.exit_code == 2
    assert "whole numbers with commas" in bad.stderr
    (tmp_path / "y.txt").write_text("".join(f"{i % 5}\n" for i in range(20)))
    new = tmp_path / "new" / "m.safetensors"
    refused(
        run("train", tmp_path / "x.npy", tmp_path / "y.txt", "-o", new, "--epochs", 0), "epochs"
    )
    refused(run("train", tmp_path / "x.npy", tmp_path / "y.txt", "-o", new, "--seed", -1), "seed")
    assert not new.parent.exists()
    (tmp_path / "d.safetensors").mkdir()
    refused(run("train", tmp_path / "x.npy", tmp_path / "y.txt", "-o", tmp_path / "d.safetensors",
                "--force"), "is a folder")  # fmt: skip
    assert not model.exists()


def interrupt(
    arguments: list[str], wait_for: str, seconds: float = 0
) -> subprocess.CompletedProcess:
    """Send Ctrl-C to the command some time after it has written something to stderr."""
    # Whoever runs these tests in the background ignores Ctrl-C, and so would the command.
    listen = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = f"{listen}; from facelink.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", command, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "FACELINK_THREADS": "1"},
    )
    assert process.stderr is not None
    heard = ""
    if wait_for:
        while wait_for not in heard:
            line = process.stderr.readline()
            assert line, heard
            heard += line
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=240)
    return subprocess.CompletedProcess(arguments, process.returncode, out, heard + err)


def test_ctrl_c_in_the_middle_leaves_nothing_half_written(tmp_path):
    x = np.random.default_rng(0).normal(size=(60_000, 128)).astype(np.float32)
    for n_items, said, wait_for in (
        (45_000, "nothing was left", ""),
        (60_000, "the same command goes on", "on disk"),
    ):
        np.save(tmp_path / "x.npy", x[:n_items])
        arguments = ["cluster", str(tmp_path / "x.npy"), "-o", str(tmp_path / "out")]
        done = interrupt(arguments, wait_for, seconds=2.5)
        assert done.returncode == 130, done.stderr
        assert f"interrupted; {said}" in done.stderr
        assert "Traceback" not in done.stderr
        left = list((tmp_path / "out").iterdir()) if (tmp_path / "out").exists() else []
        assert [path.name for path in left] == ([] if n_items == 45_000 else ["run"])


def test_ctrl_c_in_training_keeps_the_checkpoint_and_goes_on(tmp_path):
    pytest.importorskip("torch")
    faces = make_faces((30, 20, 15, 10, 8, 6, 5, 5, 4, 3, 3, 2, 2), seed=2)
    np.save(tmp_path / "x.npy", faces.embeddings)
    np.save(tmp_path / "y.npy", faces.labels)
    model = tmp_path / "m.safetensors"
    arguments = ["train", str(tmp_path / "x.npy"), str(tmp_path / "y.npy"), "-o", str(model),
                 "--hops", "15,3", "-u", "3", "--widths", "16,8", "--epochs", "300"]  # fmt: skip
    done = interrupt(arguments, "epoch 2:")
    assert done.returncode == 130, done.stderr
    assert not model.exists()
    assert (tmp_path / "m.checkpoint").exists()
    again = interrupt(arguments, "epoch 5:")
    assert "Going on from" in again.stderr
    assert "epoch 1:" not in again.stderr


def test_ctrl_c_waits_for_delicate_code_and_is_not_lost():
    """While numba works an interruption would be another error, or a lock kept for good."""
    scope = {"__name__": "numba.core.caching", "os": os, "signal": signal, "time": time}
    exec(  # a function of that module
        "def load():\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(0.1)\n"
        "    return 'loaded'\n",
        scope,
    )
    done = []

    def work():
        done.append(scope["load"]())
        time.sleep(10)
        done.append("slept")

    with pytest.raises(KeyboardInterrupt), heard_in_time():
        work()
    assert done == ["loaded"]

    # Whoever calls a command while importing may interrupt it all the same.
    calls = {"__name__": "importlib._bootstrap"}, {"__name__": "facelink.cli"}
    exec("def call(inner):\n    return inner()", calls[0])
    exec("def call(inner):\n    return inner()", calls[1])
    importing, command = (scope["call"] for scope in calls)
    assert is_delicate(importing(sys._getframe)) is True
    assert is_delicate(importing(lambda: command(sys._getframe))) is False
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_parts_in_several_files_and_parquet_both_ways(some, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    x = np.load(some)
    np.save(tmp_path / "a.npy", x[:150])
    rows = pyarrow.array(list(x[150:].astype(np.float32)))
    parquet.write_table(
        pyarrow.table({"embedding": rows}), tmp_path / "b.parquet", row_group_size=70
    )
    assert run("cluster", some, "-o", tmp_path / "one").exit_code == 0
    result = run(
        "cluster", tmp_path / "a.npy", tmp_path / "b.parquet", "-o", tmp_path / "two", "--parquet"
    )
    assert result.exit_code == 0, result.output
    labels = np.load(tmp_path / "one" / "labels.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "two" / "labels.npy"), labels)
    table = parquet.read_table(tmp_path / "two" / "clusters.parquet")
    assert table.column_names == ["item", "cluster", "confidence"]
    np.testing.assert_array_equal(table["cluster"].to_numpy(), labels)
    lines = (tmp_path / "two" / "clusters.csv").read_text().splitlines()
    assert lines[0] == "item,cluster,confidence"
    written = np.array([line.split(",") for line in lines[1:]], float)
    np.testing.assert_allclose(written[:, 2], table["confidence"].to_numpy(), atol=5.1e-5)
    refused(run("cluster", some, "-o", tmp_path / "two"), "already holds a result")


def test_work_is_kept_until_the_result_is_written(some, tmp_path, monkeypatch):
    from facelink.data import results

    def fail(*_, **__):
        raise OSError(28, "No space left on device", str(tmp_path / "people"))

    monkeypatch.setattr(results, "write_result", fail)
    monkeypatch.setattr("facelink.neighbors.EXACT_UP_TO", 300)
    arguments = ("cluster", some, "-o", tmp_path / "people")
    refused(run(*arguments), "No space left on device")
    assert (tmp_path / "people" / "run" / "manifest.json").exists()
    monkeypatch.undo()
    monkeypatch.setattr("facelink.neighbors.EXACT_UP_TO", 300)
    refused(run(*arguments, "--preset", "purity"), "preset was 'balanced' and is now 'purity'")
    # A result that was being written is ours to finish.
    (tmp_path / "people" / "labels.npy").write_bytes(b"the beginning")
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    assert "about" in result.stderr
    assert "where work was begun" in result.stderr
    assert not (tmp_path / "people" / "run").exists()
    assert len(np.load(tmp_path / "people" / "labels.npy")) == 400
    # A run elsewhere is no leave to replace what is here.
    refused(run(*arguments, "--run", tmp_path / "run"), "already holds a result")
    refused(
        run("cluster", some, "-o", tmp_path / "a", "--run", tmp_path / "a"), "folder of its own"
    )


def test_large_collections_have_a_run_of_their_own(some, tmp_path, monkeypatch):
    monkeypatch.setattr("facelink.neighbors.EXACT_UP_TO", 300)
    result = run("cluster", some, "-o", tmp_path / "people")
    assert result.exit_code == 0, result.output
    assert "400 items of 128 dimensions: about 0.3 GiB of memory" in result.stderr
    assert "of those that matter were found" in result.output
    summary = json.loads((tmp_path / "people" / "summary.json").read_text())
    assert 0.9 < summary["recall"] <= 1
    assert not (tmp_path / "people" / "run").exists()


def test_an_interrupted_run_says_how_to_go_on(some, tmp_path, monkeypatch):
    import facelink

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(facelink, "cluster", interrupt)
    result = run("cluster", some, "-o", tmp_path / "people", "--run", tmp_path / "run")
    assert result.exit_code == 130
    assert "the same command goes on from here" in result.stderr
