"""What the commands share: options, the progress bar, how scores are printed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from facelink.progress import Progress

PATH = click.Path(path_type=Path)

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")
force = click.option("--force", is_flag=True, help="Replace a result that is already there.")
dimension = click.option("--dim", type=int, metavar="D",
                         help="Dimension of raw float32 .bin input.")  # fmt: skip
view_files = click.option("--view", "views", type=PATH, multiple=True, metavar="FILE",
                          help="A further embedding of the same items, such as voices; "
                          "NaN rows are missing.")  # fmt: skip
view_weights = click.option("--weights", metavar="W,…",
                            help="How much each view counts, INPUT first.")  # fmt: skip


def scores_of(truth: Any, predicted: Any) -> dict[str, Any]:
    """All scores, with and without the items that are alone in their cluster."""
    import numpy as np

    from facelink.metrics import bcubed, nmi, pairwise

    def measure(without: bool) -> dict[str, Any]:
        return {
            "bcubed": bcubed(truth, predicted, without_singletons=without)._asdict(),
            "pairwise": pairwise(truth, predicted, without_singletons=without)._asdict(),
            "nmi": nmi(truth, predicted, without_singletons=without),
            "nmi arithmetic": nmi(
                truth, predicted, average="arithmetic", without_singletons=without
            ),
        }

    every = measure(False)
    sizes = np.unique(predicted, return_counts=True)[1]
    return {
        "items": len(truth),
        "identities": len(np.unique(truth)),
        "clusters": len(sizes),
        "singletons": int((sizes == 1).sum()),
        **every,
        "without singletons": measure(True),
    }


def print_scores(scores: dict[str, Any]) -> None:
    """A table of them."""
    click.echo(f"{'':24}precision   recall        F")
    rows = {"": scores, ", no singletons": scores["without singletons"]}
    for suffix, part in rows.items():
        for name, title in (("bcubed", "BCubed"), ("pairwise", "Pairwise")):
            values = part[name]
            click.echo(
                f"{title + suffix:24}{values['precision']:9.4f}{values['recall']:9.4f}"
                f"{values['f']:9.4f}"
            )
        click.echo(
            f"{'NMI' + suffix:24}{part['nmi']:9.4f}  (arithmetic {part['nmi arithmetic']:.4f})"
        )


def parse_weights(text: str | None) -> list[float] | None:
    """``--weights 1,0.5``."""
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise click.BadParameter(
            f"expected numbers with commas, such as 1,0.5; got {text!r}", param_hint="--weights"
        ) from None


def parse_numbers(option: str, text: str) -> tuple[int, ...]:
    """Whole numbers with commas in between, such as ``--hops 80,5``."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(
            f"expected whole numbers with commas, such as 80,5; got {text!r}", param_hint=option
        ) from None


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A bar on stderr that shows one stage after the other."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
    )
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("starting", total=None)
        previous = -1

        def update(stage: str, done: int, total: int) -> None:
            nonlocal task, previous
            if done < previous:  # another stage has begun: its time left starts anew
                bar.remove_task(task)
                task = bar.add_task(stage, total=total)
            previous = done
            bar.update(task, description=stage, completed=done, total=total)

        yield update
