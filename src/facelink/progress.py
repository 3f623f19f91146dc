"""Telling whoever waits how far a stage is.

Stages print nothing. They take a ``Progress`` and call it; the command line
passes one that draws a bar on stderr, the library passes none.
"""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with the stage's name, how many units are done, and how many there are."""


def silent(stage: str, done: int, total: int) -> None:
    """The progress that nobody watches."""
