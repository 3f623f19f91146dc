"""Ctrl-C, heard where it does no harm.

Python raises KeyboardInterrupt wherever the main thread happens to be: also while numba loads
compiled code, which makes another error of it or keeps a lock for good; in a callback of the
import system, which swallows it; where a thread has been started and nobody knows of it yet; or
where one file of a result is in place and the next is not. There it is put off for a few
milliseconds.
"""

from __future__ import annotations

import _thread
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from types import FrameType

PUT_OFF = 0.005  # seconds
DELICATE = {"numba", "llvmlite", "importlib", "_frozen_importlib", "_frozen_importlib_external"}
WHOLE = {  # functions that are run to their end
    ("concurrent.futures.thread", "submit"),
    ("concurrent.futures.thread", "_adjust_thread_count"),
    ("facelink.data.writing", "_into_place"),
}
OURS = "facelink.cli"  # where commands are called from: what called that is of no concern


@contextmanager
def heard_in_time() -> Iterator[None]:
    """As long as this lasts, Ctrl-C is KeyboardInterrupt, but never amid delicate code."""
    usual = signal.getsignal(signal.SIGINT)
    here = threading.current_thread() is threading.main_thread()
    if usual is not signal.default_int_handler or not here:  # somebody else's to decide
        yield
        return
    late: SimpleQueue[bool] = SimpleQueue()  # may be used by what interrupts its own use
    over = False

    def hear(number: int, frame: FrameType | None) -> None:
        if is_delicate(frame):
            late.put(True)
        else:
            signal.default_int_handler(number, frame)

    def again() -> None:
        while late.get():
            time.sleep(PUT_OFF)
            if over:
                return
            if hasattr(signal, "pthread_kill"):  # not on Windows
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            else:
                _thread.interrupt_main()

    signal.signal(signal.SIGINT, hear)
    threading.Thread(target=again, daemon=True).start()
    try:
        yield
    finally:
        over = True
        signal.signal(signal.SIGINT, usual)
        late.put(False)


def is_delicate(frame: FrameType | None) -> bool:
    """Whether the frame, or one that it was called from, is of code not to be interrupted."""
    while frame is not None:
        module = frame.f_globals.get("__name__") or ""
        if module == OURS:
            return False
        if module.partition(".")[0] in DELICATE:
            return True
        if (module, frame.f_code.co_name) in WHOLE:
            return True
        frame = frame.f_back
    return False
