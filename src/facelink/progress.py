"""Telling whoever waits how far a stage is.

Stages print nothing. They take a ``Progress`` and call it; the command line
passes one that draws a bar on stderr, the library passes none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from typing import TypeVar

Progress = Callable[[str, int, int], None]
"""Called with the stage's name, how many units are done, and how many there are."""

Item = TypeVar("Item")


def silent(stage: str, done: int, total: int) -> None:
    """The progress that nobody watches."""


def watch(items: Iterable[Item], stage: str, total: int, progress: Progress) -> Iterator[Item]:
    """Yield ``items``, each standing for as many units as it is long, and report them."""
    done = 0
    progress(stage, done, total)
    for item in items:
        yield item
        done += len(item) if isinstance(item, Sized) else 1
        progress(stage, done, total)
