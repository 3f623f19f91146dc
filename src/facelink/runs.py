"""Where the stages of a clustering keep what they have finished.

A stage asks its run for the arrays it fills, works through them shard by shard, and lets
the run record each. A `Run` keeps everything in memory. A `RunFolder` keeps it in files:
killed at any moment, the same call goes on from the last shard that was recorded.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any
from weakref import WeakValueDictionary

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

import numpy as np
from numpy.typing import DTypeLike, NDArray

from facelink.compiled import blocks, in_threads
from facelink.data.writing import is_there, make_folder, write_aside
from facelink.errors import FileError, InputError
from facelink.progress import Progress, silent
from facelink.scratch import reserve, scratch_array

MANIFEST = "manifest.json"
LOCK = ".lock"
KIND, VERSION = "facelink run", 1  # what a manifest says it is, and of which version
SHARD = 1 << 16  # items that are recorded as finished at once

Arrays = dict[str, NDArray[Any]]


class Run:
    """Work that is kept in memory, and lost with the process."""

    def once(self, name: str, make: Callable[[], Arrays]) -> Arrays:
        """What ``make`` returns, unless that was finished before."""
        return make()

    def array(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """An array to be filled shard by shard, as far as it was filled before."""
        return scratch_array(shape, dtype)

    def shards(self, stage: str, n_items: int) -> Iterator[slice]:
        """The shards of a stage that are not finished. One is when the next is asked for."""
        return blocks(n_items, SHARD)

    def is_finished(self, stage: str, n_items: int) -> bool:
        """Whether no shard of a stage is left."""
        return False

    def part(self, name: str) -> Run:
        """A run for a part of the work, whose names do not meet those of others."""
        return self

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        """Let others go on with it."""

    def work(
        self,
        stage: str,
        order: NDArray[np.integer],
        work: Callable[[NDArray[np.integer]], object],
        *,
        size: int,
        n_threads: int | None = None,
        progress: Progress = silent,
    ) -> None:
        """Do what a stage has not finished, on several threads, ``size`` items at a time.

        A shard is a range of items, so that what is written of it lies together; within it
        the items are taken in their ``order``.
        """
        items, rank = np.sort(order), np.argsort(order)
        n_items = len(items)

        def do(some: NDArray[np.integer]) -> int:
            work(some)
            return len(some)

        done = 0
        progress(stage, done, n_items)
        for shard in self.shards(stage, n_items):
            inside = items[shard][np.argsort(rank[shard])]
            parts = (inside[block] for block in blocks(len(inside), size))
            done = shard.start
            for count in in_threads(do, parts, n_threads=n_threads):
                done += count
                progress(stage, done, n_items)
        if done < n_items:  # the last shards were finished before
            progress(stage, n_items, n_items)


class RunFolder(Run):
    """Work that is kept in a folder, and goes on where it was interrupted.

    Parameters
    ----------
    folder : Path
        Made if it is not there.
    about : mapping
        Everything that the result depends on. A folder that holds the work of another
        collection, or with other options, is refused.

    Notes
    -----
    The manifest says what the work is about and which shards are finished. It is written
    aside and renamed, after the arrays have reached the disk: a shard that is recorded is
    whole. The space of an array is reserved when it is made, so that a full disk is an
    error there and not a crash later.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self.folder = Path(folder)
        self.prefix = ""
        # As long as anybody holds them: what is mapped counts as memory.
        self.open: WeakValueDictionary[str, np.memmap] = WeakValueDictionary()
        about = json.loads(json.dumps(about, default=lambda value: value.tolist()))
        found = read_manifest(self.folder)
        if found is None:
            if is_there(self.folder) and not all(map(_is_ours, self.folder.iterdir())):
                raise FileError(
                    f"{self.folder} is to hold the work of this run, but holds other files and no "
                    f"{MANIFEST}. Name a folder that is empty or not there yet."
                )
            make_folder(self.folder)
        self.lock = _lock(self.folder)
        for half_written in self.folder.glob(".*.part"):  # by a process that was killed
            half_written.unlink()
        if found is None:
            self.finished: dict[str, list[int]] = {}
            self.files: list[str] = []
            self.about = about
            self._record()
        else:
            self.about, self.finished = found["about"], found["finished"]
            self.files = found["files"]
            try:
                _compare(self.folder, self.about, about)
            except InputError:
                self.lock.close()
                raise

    def __exit__(self, *_: object) -> None:
        self.lock.close()

    def part(self, name: str) -> Run:
        part = RunFolder.__new__(RunFolder)
        part.__dict__.update(self.__dict__)
        part.prefix = f"{self.prefix}{name}-"
        return part

    def once(self, name: str, make: Callable[[], Arrays]) -> Arrays:
        name = self.prefix + name
        path = self._file(name, ".npz")
        if name not in self.finished:
            write_aside(path, partial(_save, make=make))
            self.files.append(path.name)
            self.finished[name] = [0]
            self._record()
        try:
            with np.load(path, allow_pickle=False) as arrays:
                return dict(arrays)
        except (OSError, ValueError, EOFError) as error:
            raise self._damaged(path, error) from None

    def array(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        name = self.prefix + name
        if name in self.open:
            return self.open[name]
        path = self._file(name, ".npy")
        if not path.exists():
            if path.name in self.files:
                raise self._damaged(path, "it is not there")
            aside = path.with_name(f".{path.name}.part")
            try:
                made = np.lib.format.open_memmap(aside, "w+", dtype, shape)
                del made
                with open(aside, "r+b") as file:
                    reserve(file, aside.stat().st_size)
                os.replace(aside, path)
            except OSError as error:
                aside.unlink(missing_ok=True)
                size = np.dtype(dtype).itemsize * int(np.prod(shape))
                raise FileError(
                    f"Cannot make {path} of {size / 2**30:.2f} GiB: {error.strerror}. What is "
                    "finished is kept: make room and start again, and it goes on from there."
                ) from None
        try:
            found = np.lib.format.open_memmap(path, "r+")
        except (OSError, ValueError) as error:
            raise self._damaged(path, error) from None
        if found.shape != tuple(shape) or found.dtype != np.dtype(dtype):
            raise self._damaged(path, f"{found.dtype} of shape {found.shape}")
        if path.name not in self.files:  # it was made just now, or by a process killed just then
            self.files.append(path.name)
            self._record()
        self.open[name] = found
        return found

    def is_finished(self, stage: str, n_items: int) -> bool:
        return len(self.finished.get(self.prefix + stage, [])) == len(list(blocks(n_items, SHARD)))

    def shards(self, stage: str, n_items: int) -> Iterator[slice]:
        stage = self.prefix + stage
        finished = set(self.finished.setdefault(stage, []))
        for number, shard in enumerate(blocks(n_items, SHARD)):
            if number in finished:
                continue
            yield shard
            for array in self.open.values():
                array.flush()
            self.finished[stage].append(number)
            self._record()

    def _file(self, name: str, suffix: str) -> Path:
        return self.folder / ("-".join(re.findall(r"\w+", name)) + suffix)

    def _record(self) -> None:
        _write_manifest(self.folder, self.about, self.finished, self.files)

    def _damaged(self, path: Path, what: object) -> FileError:
        return FileError(
            f"{path} is not as this run left it ({what}). Remove the folder {self.folder} and "
            "start again."
        )


def open_run(folder: str | Path | None, about: Mapping[str, Any]) -> Run:
    """The run of a folder, or one in memory; ``about`` as for `RunFolder`."""
    return Run() if folder is None else RunFolder(Path(folder), about)


def remove_run(folder: Path) -> None:
    """Remove the files of a run, and the folder if nothing else is in it."""
    found = read_manifest(folder)
    if found is None:
        return
    # Killed meanwhile, it begins anew: what is not there is not finished.
    _write_manifest(folder, found["about"], {}, [])
    for name in found["files"]:
        (folder / name).unlink(missing_ok=True)
    for path in [path for path in folder.iterdir() if _is_ours(path)]:
        path.unlink()
    (folder / MANIFEST).unlink()
    with suppress(OSError):  # somebody put something else there
        folder.rmdir()


def _is_ours(path: Path) -> bool:
    """Whether a file is left of a run that was killed before it had a manifest."""
    return path.name == LOCK or (path.name.startswith(".") and path.suffix == ".part")


def _lock(folder: Path) -> IO[bytes]:
    """Keep others from working in the folder as long as this process lives and holds the file."""
    try:
        file = open(folder / LOCK, "wb")  # noqa: SIM115
    except OSError as error:
        raise FileError(f"Cannot write to {folder}: {error.strerror}.") from None
    if fcntl is None:
        return file
    with suppress(OSError):  # of a file system without locks
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise FileError(
                f"Another process is working in {folder}. Wait for it, or name another folder."
            ) from None
    return file


def _save(file: IO[bytes], make: Callable[[], Arrays]) -> None:
    np.savez(file, allow_pickle=False, **make())


def _write_manifest(folder: Path, about: Any, finished: Any, files: Any) -> None:
    content = {KIND: VERSION, "about": about, "finished": finished, "files": files}
    write_aside(folder / MANIFEST, (json.dumps(content, indent=1) + "\n").encode())


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """What a run folder says of itself; None if it is none."""
    path = folder / MANIFEST
    if not is_there(path):
        return None
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        _ = manifest[KIND], manifest["about"].items(), manifest["finished"].items()
        ours = all(Path(name).name == name for name in manifest["files"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        ours = False
    if not ours:
        raise FileError(
            f"{path} is not the manifest of a run, or damaged. Name another folder for the run."
        )
    return dict(manifest)


def _compare(folder: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse a folder with the work of another run, naming the difference."""
    differences = [
        f"{name} was {found.get(name)!r} and is now {wanted.get(name)!r}"
        for name in dict.fromkeys([*found, *wanted])
        if found.get(name) != wanted.get(name)
    ]
    if differences:
        raise InputError(
            f"{folder} holds the work of another run: {'; '.join(differences)}. Start with what it "
            "was begun with to go on from there, remove the folder, or name another."
        )
