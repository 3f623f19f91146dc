"""How facelink compiles its loops and uses the cores.

Loops are compiled with numba, release the GIL and stay single-threaded; work
is spread over cores by handing blocks to a pool of Python threads, each of
which may use one BLAS thread. So there is one level of parallelism and no
OpenMP region of numba's that could meet another library's (faiss, torch and
scikit-learn each bring a runtime of their own), and two callers may run at
once. What a block computes does not depend on which thread computes it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar

import numba
import numpy as np
from numpy.typing import DTypeLike, NDArray
from threadpoolctl import threadpool_limits

from facelink.errors import InputError

Item = TypeVar("Item")
Result = TypeVar("Result")

THREADS_VARIABLE = "FACELINK_THREADS"


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile with numba, outside the GIL, and keep the machine code between runs.

    numba keeps it beside the source or, where that is read-only, in the user's
    cache folder. Where neither can be written it refuses to compile at all; we
    would rather compile anew in every process.

    Do not call both ``np.sort`` and ``np.argsort`` of one type of array in functions
    compiled this way, in whatever modules: read from the cache, numba 0.68 takes one for
    the other (seen; `tests/neighbors` fails then).
    """
    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:
        return numba.njit(nogil=True)(function)


def available_threads() -> int:
    """The number of threads to use: ``FACELINK_THREADS``, or the cores this process may use."""
    wanted = os.environ.get(THREADS_VARIABLE)
    if wanted is None:
        affinity = getattr(os, "sched_getaffinity", None)  # not on macOS and Windows
        return len(affinity(0)) if affinity else os.cpu_count() or 1
    if not (wanted.isascii() and wanted.isdigit()) or int(wanted) < 1:
        raise InputError(
            f"{THREADS_VARIABLE} should be a whole number from 1, got {wanted!r}. "
            "Unset it to use every core."
        )
    return int(wanted)


def in_threads(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    n_threads: int | None = None,
) -> Iterator[Result]:
    """Yield ``work(item)`` in order, computed on several threads.

    At most two items per thread are under way or waiting to be fetched, so
    memory stays bounded whatever the number of items. An exception, Ctrl-C
    included, cancels what has not begun.
    """
    if n_threads is None:
        n_threads = available_threads()
    if n_threads < 1:
        raise InputError(f"n_threads should be a whole number from 1, or None, got {n_threads!r}.")
    with one_blas_thread:
        if n_threads == 1:
            yield from map(work, items)
            return
        with ThreadPoolExecutor(n_threads) as pool:
            pending: list[Future[Result]] = []
            try:
                for item in items:
                    pending.append(pool.submit(work, item))
                    if len(pending) == 2 * n_threads:
                        yield pending.pop(0).result()
                while pending:
                    yield pending.pop(0).result()
            finally:
                for future in pending:
                    future.cancel()


def over_rows(work: Callable[[int, int], None], n_rows: int) -> None:
    """Run ``work(start, stop)`` over shares of the rows, one share per thread.

    For compiled loops that call no BLAS and take a millisecond or more.
    """
    shares = np.linspace(0, n_rows, available_threads() + 1).astype(int).tolist()
    if len(shares) == 2 or n_rows < 1000:
        work(0, n_rows)
        return
    waiting = [_pool().submit(work, start, stop) for start, stop in pairwise(shares)]
    for future in waiting:
        future.result()


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(available_threads(), thread_name_prefix="facelink")


def own_array(name: str, size: int, dtype: DTypeLike, fill: int) -> NDArray[Any]:
    """An array of this thread's own, for compiled loops that look items up by their number.

    It is filled when it is made, and given again as it was left: making it anew for a few
    items takes longer than the work on them.
    """
    found: NDArray[Any] | None = getattr(_own, name, None)
    if found is None or len(found) < size:
        found = np.full(size, fill, dtype)
        setattr(_own, name, found)
    return found


_own = threading.local()


class _OneBlasThread:
    """BLAS limited to one thread for as long as anybody wants it.

    The limit belongs to the process. Two callers at once who each set and restored it
    would leave the second with the first one's limit for good.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.limit: threadpool_limits | None = None

    def __enter__(self) -> None:
        with self.lock:
            self.users += 1
            if self.limit is None:
                self.limit = threadpool_limits(limits=1, user_api="blas")

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.users -= 1
            if self.users == 0 and self.limit is not None:
                self.limit.restore_original_limits()
                self.limit = None


one_blas_thread = _OneBlasThread()


def blocks(n_items: int, size: int) -> Iterator[slice]:
    """Cut ``range(n_items)`` into slices of at most ``size``."""
    for start in range(0, n_items, size):
        yield slice(start, min(start + size, n_items))
