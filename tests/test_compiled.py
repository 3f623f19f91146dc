from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from threadpoolctl import threadpool_info

import facelink
from facelink.compiled import available_threads, blocks, in_threads, over_rows
from facelink.errors import InputError, MissingExtraError


def run_python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_facelink_and_its_command_loads_nothing_heavy():
    heavy = ["torch", "numba", "scipy", "sklearn", "numpy", "rich", "faiss", "pyarrow"]
    code = f"import sys, facelink.cli; print([m for m in {heavy!r} if m in sys.modules])"
    assert run_python(code) == "[]"


def test_clustering_does_not_load_torch():
    code = (
        "import sys, facelink; x = facelink.load_sample().embeddings[:50]; "
        "facelink.cluster(x); print('torch' in sys.modules)"
    )
    assert run_python(code) == "False"


def test_compiles_where_no_cache_can_be_written():
    code = (
        "import numba\n"
        "from numba.core.caching import CacheImpl\n"
        "CacheImpl._locator_classes = []\n"
        "try:\n"
        "    numba.njit(cache=True)(lambda x: x)\n"
        "except RuntimeError:\n"
        "    import numpy as np, facelink\n"
        "    print(facelink.knn_graph(np.eye(3), 1).indices.ravel().tolist())"
    )
    assert run_python(code) == "[1, 0, 0]"


def test_the_cache_lives_elsewhere_where_the_package_is_read_only(tmp_path):
    # As numba sees it: the folder beside the source cannot be written.
    code = (
        "import numba.core.caching as c\n"
        "def refuse(self): raise OSError('read-only')\n"
        "c.InTreeCacheLocator.ensure_cache_path = refuse\n"
        "import numpy as np, facelink\n"
        "print(facelink.knn_graph(np.eye(3), 1).indices.ravel().tolist())"
    )
    assert run_python(code, HOME=str(tmp_path), XDG_CACHE_HOME=str(tmp_path)) == "[1, 0, 0]"
    assert any(tmp_path.rglob("*.nbi"))


def test_torch_and_facelink_share_a_process():
    pytest.importorskip("torch")
    code = (
        "import torch, numpy as np, facelink, threadpoolctl\n"
        "before = threadpoolctl.threadpool_info()\n"
        "x = facelink.load_sample().embeddings[:300]\n"
        "a = facelink.cluster(x).labels\n"
        "t = torch.rand(300, 300) @ torch.rand(300, 300)\n"
        "b = facelink.cluster(x).labels\n"
        "assert (a == b).all()\n"
        "after = {p['filepath']: p['num_threads'] for p in threadpoolctl.threadpool_info()}\n"
        "print(all(after[p['filepath']] == p['num_threads'] for p in before))"
    )
    assert run_python(code) == "True"


def test_two_threads_of_the_user_may_cluster_at_once(sample):
    x = sample.embeddings[:300]
    wanted = facelink.cluster(x).labels
    before = [pool["num_threads"] for pool in threadpool_info()]
    found: list[np.ndarray] = []
    threads = [
        threading.Thread(target=lambda: found.append(facelink.cluster(x).labels)) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert [pool["num_threads"] for pool in threadpool_info()] == before
    for labels in found:
        np.testing.assert_array_equal(labels, wanted)


@pytest.mark.parametrize("n_threads", [1, 2, 5])
def test_results_come_in_order(n_threads):
    def work(i: int) -> int:
        time.sleep(0.001 * (i % 3))
        return i * i

    assert list(in_threads(work, range(40), n_threads=n_threads)) == [i * i for i in range(40)]


def test_an_error_in_a_thread_is_raised_and_the_rest_cancelled():
    started = []

    def work(i: int) -> None:
        started.append(i)
        if i == 3:
            raise KeyError(i)

    with pytest.raises(KeyError):
        list(in_threads(work, range(1000), n_threads=2))
    assert len(started) < 20


def test_the_number_of_threads_can_be_set(monkeypatch):
    monkeypatch.setenv("FACELINK_THREADS", "3")
    assert available_threads() == 3
    monkeypatch.setenv("FACELINK_THREADS", "many")
    with pytest.raises(InputError, match="FACELINK_THREADS should be a whole number from 1"):
        available_threads()


def test_no_threads_at_all_is_refused():
    with pytest.raises(InputError, match="n_threads should be"):
        list(in_threads(len, [[]], n_threads=0))


def test_rows_are_shared_out_once(monkeypatch):
    monkeypatch.setenv("FACELINK_THREADS", "2")
    counts = np.zeros(5000, int)

    def count(start: int, stop: int) -> None:
        counts[start:stop] += 1

    over_rows(count, 5000)
    over_rows(count, 10)
    assert counts[:10].tolist() == [2] * 10
    assert counts[10:].tolist() == [1] * 4990


def test_blocks_cover_everything_once():
    assert [(b.start, b.stop) for b in blocks(10, 4)] == [(0, 4), (4, 8), (8, 10)]
    assert list(blocks(0, 4)) == []


def test_public_names_are_all_there():
    for name in facelink.__all__:
        assert getattr(facelink, name) is not None
    assert set(facelink.__all__) <= set(dir(facelink))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        facelink.nothing  # noqa: B018


def test_what_lacks_an_extra_says_so_when_it_is_called(monkeypatch):
    """Not when somebody looks around: ``from facelink import *``, help()."""

    def without_torch(name):
        raise MissingExtraError("Training needs torch")

    monkeypatch.delitem(vars(facelink), "train", raising=False)
    monkeypatch.setattr("facelink.import_module", without_torch)
    assert hasattr(facelink, "train")
    with pytest.raises(MissingExtraError, match="needs torch"):
        facelink.train([[1.0]], [0])
