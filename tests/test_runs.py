from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

import facelink
from facelink import runs
from facelink.errors import FileError, InputError, TooLargeError
from facelink.links.model import GcnModel
from facelink.runs import RunFolder, read_manifest, remove_run

# A clustering in many small shards: prints when it begins, writes the labels when it is done.
PROGRAM = """
    import sys
    import numpy as np
    import facelink
    from facelink import runs

    runs.SHARD = 200
    folder, result, model = sys.argv[1:]
    faces = facelink.load_sample().embeddings[:1500]
    print("begun", flush=True)
    found = facelink.cluster(faces, model=model, neighbors="approximate", run=folder)
    np.savez(result, labels=found.labels, confidence=found.confidence)
"""


def start(folder, result, model="universal") -> subprocess.Popen:
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(folder), str(result), model]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "begun\n", process.stderr.read()
    return process


def finish(process: subprocess.Popen) -> None:
    _, complaint = process.communicate(timeout=300)
    assert process.returncode == 0, complaint


def test_killed_at_twenty_moments_it_ends_with_the_same_labels(tmp_path):
    finish(start(tmp_path / "whole", tmp_path / "whole.npz"))  # compiles
    shutil.rmtree(tmp_path / "whole")
    process = start(tmp_path / "whole", tmp_path / "whole.npz")
    began = time.monotonic()
    finish(process)
    needed = time.monotonic() - began
    wanted = np.load(tmp_path / "whole.npz")

    rng = np.random.default_rng()
    folder, result = tmp_path / "run", tmp_path / "result.npz"
    kills = compared = resumed = 0
    while kills < 20 or compared == 0:
        resumed += read_manifest(folder) is not None
        process = start(folder, result)
        while kills % 2 and process.poll() is None and read_manifest(folder) is None:
            time.sleep(0.01)  # every other kill comes after the work has begun
        try:
            process.wait(rng.uniform(0, needed / 2) if kills < 20 else 300)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            kills += 1
            continue
        finish(process)
        found = np.load(result)
        np.testing.assert_array_equal(found["labels"], wanted["labels"])
        np.testing.assert_array_equal(found["confidence"], wanted["confidence"])
        compared += 1
        shutil.rmtree(folder)
    assert resumed > 5


@pytest.mark.parametrize(
    ("model", "stop_at"),
    [
        ("universal", "links, look 2"),
        ("universal", "links, reviewed"),
        ("mobileface-128", "links"),
    ],
)
def test_what_is_finished_is_not_done_again(tmp_path, monkeypatch, sample, model, stop_at):
    monkeypatch.setattr(runs, "SHARD", 128)
    x = sample.embeddings[:600]
    wanted = facelink.cluster(x, model=model)
    worked: list[tuple[str, int]] = []

    def interrupt(stage, done, total):
        worked.append((stage, done))
        if stage == stop_at and done >= 300:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        facelink.cluster(x, model=model, run=tmp_path / "run", progress=interrupt)
    finished = read_manifest(tmp_path / "run")["finished"]
    assert finished[stop_at] == [0, 1]
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "run").iterdir()}
    seen: list[tuple[str, int]] = []
    found = facelink.cluster(
        x,
        model=model,
        run=tmp_path / "run",
        progress=lambda stage, done, _: seen.append((stage, done)),
    )
    np.testing.assert_array_equal(found.labels, wanted.labels)
    again = [done for stage, done in seen if stage == stop_at and done]
    assert min(again) > 256
    if model == "universal":
        assert (tmp_path / "run" / "links.npy").stat().st_mtime_ns == before["links.npy"]
    # And once more, when everything is there.
    seen.clear()
    found = facelink.cluster(
        x,
        model=model,
        run=tmp_path / "run",
        progress=lambda stage, done, _: seen.append((stage, done)),
    )
    assert not [done for stage, done in seen if stage == stop_at and 0 < done < 600]
    np.testing.assert_array_equal(found.labels, wanted.labels)
    np.testing.assert_array_equal(found.confidence, wanted.confidence)


def test_views_can_be_resumed_too(tmp_path, sample):
    x = sample.embeddings[:300].astype(np.float32)
    views = [x[:, ::2], x[:, 1::2]]
    wanted = facelink.cluster(views[0], views=views[1:])
    looks = 0

    def interrupt(stage, done, total):
        nonlocal looks
        looks += stage == "links, look 3" and done == total
        if looks == 2:  # in the second view
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        facelink.cluster(views[0], views=views[1:], run=tmp_path / "run", progress=interrupt)
    assert "view 0-links, look 3" in read_manifest(tmp_path / "run")["finished"]
    found = facelink.cluster(views[0], views=views[1:], run=tmp_path / "run")
    np.testing.assert_array_equal(found.labels, wanted.labels)


def test_other_options_or_data_are_refused_by_name(tmp_path, sample):
    x = sample.embeddings[:200]
    facelink.cluster(x, run=tmp_path)
    with pytest.raises(InputError, match="preset was 'balanced' and is now 'purity'"):
        facelink.cluster(x, preset="purity", run=tmp_path)
    with pytest.raises(InputError, match="items was 200 and is now 199"):
        facelink.cluster(x[:199], run=tmp_path)
    changed = x.copy()
    changed[7] *= [-1, *[1] * 127]
    with pytest.raises(
        InputError, match=r"holds the work of another run: data was '[0-9a-f]+' and"
    ):
        facelink.cluster(changed, run=tmp_path)
    with pytest.raises(InputError, match="neighbors was 'auto' and is now 'approximate'"):
        facelink.cluster(x, neighbors="approximate", run=tmp_path)
    assert len(facelink.cluster(x, run=tmp_path).labels) == 200  # and is as it was


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "letter.txt").write_text("Dear")
    with pytest.raises(FileError, match="holds other files and no manifest"):
        RunFolder(tmp_path, {})
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_killed_before_there_was_a_manifest_it_begins_anew(tmp_path):
    (tmp_path / ".lock").touch()
    (tmp_path / ".manifest.json.0123abcd.part").write_text('{"ab')
    RunFolder(tmp_path, {})
    assert {path.name for path in tmp_path.iterdir()} == {".lock", "manifest.json"}


def test_two_do_not_work_in_one_folder(tmp_path, sample):
    first = RunFolder(tmp_path / "run", {})
    with pytest.raises(FileError, match=r"Another process is working in .*run"):
        RunFolder(tmp_path / "run", {})
    del first
    RunFolder(tmp_path / "run", {})


def test_a_damaged_folder_is_said_to_be(tmp_path, sample):
    x = sample.embeddings[:200]
    facelink.cluster(x, run=tmp_path)
    (tmp_path / "links.npy").write_bytes(b"nothing")
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    manifest["finished"]["links, look 3"] = []
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(FileError, match=r"links.npy is not as this run left it"):
        facelink.cluster(x, run=tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(FileError, match=r"manifest.json is not the manifest of a run, or damaged"):
        facelink.cluster(x, run=tmp_path)
    (tmp_path / "manifest.json").write_text('{"name": "a web page", "icons": []}')
    with pytest.raises(FileError, match=r"Name another folder"):
        facelink.cluster(x, run=tmp_path)


def test_killed_when_an_array_was_just_made_nothing_is_left_of_it(tmp_path):
    (RunFolder(tmp_path / "run", {})).__exit__()
    np.save(tmp_path / "run" / "links.npy", np.zeros((3, 2), np.float32))  # but not recorded
    with RunFolder(tmp_path / "run", {}) as run:
        run.array("links", (3, 2), np.float32)
    remove_run(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_removing_takes_away_its_own_files_only(tmp_path, sample):
    facelink.cluster(sample.embeddings[:100], run=tmp_path / "run")
    np.save(tmp_path / "run" / "mine.npy", np.arange(3))
    remove_run(tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["mine.npy"]
    remove_run(tmp_path / "run")  # there is none
    assert (tmp_path / "run" / "mine.npy").exists()


def test_an_array_that_is_gone_is_not_taken_for_finished(tmp_path, sample):
    facelink.cluster(sample.embeddings[:200], neighbors="approximate", run=tmp_path)
    (tmp_path / "neighbours-of-neighbours-similarities.npy").unlink()
    with pytest.raises(FileError, match="it is not there"):
        facelink.cluster(sample.embeddings[:200], neighbors="approximate", run=tmp_path)


def test_after_an_error_the_same_call_goes_on(tmp_path, sample):
    def interrupt(stage, done, total):
        if stage == "links":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as held:  # and with it all that the call held
        facelink.cluster(sample.embeddings[:200], run=tmp_path, progress=interrupt)
    facelink.cluster(sample.embeddings[:200], run=tmp_path)
    assert held is not None


def test_options_may_be_of_numpy(tmp_path, sample):
    x = sample.embeddings[:200].astype(np.float32)
    options = {"threshold": np.float32(0.5)}
    for _ in range(2):
        facelink.cluster(
            x[:, ::2], views=[x[:, 1::2]], weights=np.ones(2), options=options, run=tmp_path
        )


def test_a_disk_that_is_full_is_said_to_be(tmp_path, monkeypatch, sample):
    x = sample.embeddings[:300]
    reserve, made = runs.reserve, []

    def full(file, n_bytes):
        if len(made) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        made.append(n_bytes)
        reserve(file, n_bytes)

    monkeypatch.setattr(runs, "reserve", full)
    with pytest.raises(FileError, match=r"No space left on device. What is finished is kept"):
        facelink.cluster(x, neighbors="approximate", run=tmp_path)
    finished = read_manifest(tmp_path)["finished"]
    assert finished["neighbours"] == [0]
    assert not list(tmp_path.glob(".*.part"))
    monkeypatch.undo()
    found = facelink.cluster(x, neighbors="approximate", run=tmp_path)
    np.testing.assert_array_equal(found.labels, facelink.cluster(x, neighbors="approximate").labels)


SMALL_DISK = """
    set -e
    mount -t tmpfs -o size=2m none "$1"
    "$2" -m facelink cluster "$3" -o "$1/people" --run "$1/run" --neighbors approximate 2>&1 || true
    cp -r "$1/run" "$4"
    mount -o remount,size=64m "$1"
    "$2" -m facelink cluster "$3" -o "$1/people" --run "$1/run" --neighbors approximate --json
    cp "$1/people/labels.npy" "$4"
"""


def test_on_a_small_disk_finished_shards_stay(tmp_path, sample):
    """A tmpfs of 2 MB, in a name space of our own where that is allowed."""
    unshare = ["unshare", "--mount"] + (["--user", "--map-root-user"] if os.getuid() else [])
    possible = shutil.which("unshare") and subprocess.run(
        [*unshare, "mount", "-t", "tmpfs", "none", str(tmp_path)],
        capture_output=True,
        check=False,
    )
    if not possible or possible.returncode:
        pytest.skip("no file system can be mounted here")
    np.save(tmp_path / "x.npy", sample.embeddings[:1200])
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    kept.mkdir()
    done = subprocess.run(
        [*unshare, "bash", "-c", textwrap.dedent(SMALL_DISK), "-",
         str(disk), sys.executable, str(tmp_path / "x.npy"), str(kept)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "No space left on device" in done.stdout
    assert "Traceback" not in done.stdout
    finished = read_manifest(kept / "run")["finished"]
    assert finished["neighbours"] == [0]
    indices = np.load(kept / "run" / "neighbours.npy")
    assert (indices != np.arange(1200)[:, None]).all()
    wanted = facelink.cluster(sample.embeddings[:1200], neighbors="approximate").labels
    np.testing.assert_array_equal(np.load(kept / "labels.npy"), wanted)


def test_what_does_not_fit_into_memory_is_refused(monkeypatch, sample):
    from facelink import memory

    monkeypatch.setattr(memory, "available_memory", lambda: 200 << 20)
    with pytest.raises(TooLargeError, match=r"4,484 items takes about 0\.\d GiB .* 0\.2 GiB are"):
        facelink.cluster(sample.embeddings)
    monkeypatch.setattr(memory, "available_memory", lambda: None)
    facelink.cluster(sample.embeddings[:100])


def test_the_estimate_of_memory_grows_as_the_stages_do():
    from facelink.memory import estimate_memory

    universal = facelink.load_model("universal")
    network = facelink.load_model("mobileface-128")
    assert isinstance(network, GcnModel)
    million = estimate_memory(10**6, 256, universal)
    assert 3 << 30 < million < 6 << 30
    # In many dimensions the clusters' own rows count, where most items are alone.
    assert estimate_memory(10**6, 1024, universal) > 8 << 30
    assert estimate_memory(2 * 10**6, 256, universal) > 1.7 * million
    assert estimate_memory(10**6, 256, universal, neighbors="exact") >= million
    assert estimate_memory(10**6, 256, universal, n_views=2) > million + (3 << 30)
    sizes = np.geomspace(1000, 10**8, 200).astype(int)
    estimates = [estimate_memory(int(n), 256, universal, neighbors="approximate") for n in sizes]
    assert (np.diff(estimates) > 0).all()
    assert estimate_memory(10**6, 128, network) > 1 << 30
