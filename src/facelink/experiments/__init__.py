"""The paper's tables and figures, on any labelled collections: one file each.

An experiment is a list of cells, each of which computes one row of its table; a row that
was computed before is not computed again. Where the paper has a figure, the rows are
drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from facelink.errors import InputError
from facelink.experiments.bench import Bench, Cell, Row
from facelink.experiments.tables import write_table

__all__ = [
    "EXPERIMENTS",
    "Bench",
    "Cell",
    "Experiment",
    "check_extras",
    "find_experiments",
    "run_experiment",
]


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper.

    Attributes
    ----------
    name : str
        What it is asked for by.
    title : str
        What it shows.
    module : str
        The file in this folder. It has ``cells(bench, ...)`` and, if there is a
        figure, ``draw(rows, figure)``.
    options : dict
        Passed to ``cells``.
    trains : bool
        Whether it needs torch.
    """

    name: str
    title: str
    module: str
    options: dict[str, Any]
    trains: bool = True

    def cells(self, bench: Bench) -> list[Cell]:
        return self._module().cells(bench, **self.options)

    def drawing(self) -> Callable[[Sequence[Row], Any], None] | None:
        return getattr(self._module(), "draw", None)

    def _module(self) -> Any:
        return import_module(f"facelink.experiments.{self.module}")


EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        Experiment(
            "table1",
            "The upper bound of linking k nearest neighbours",
            "upper_bound",
            {},
            trains=False,
        ),
        Experiment("figure3", "A toy example: what each layer makes of a subgraph", "toy", {}),
        Experiment("figure4", "How the result depends on k1, k2 and u", "sensitivity", {}),
        Experiment("table2", "All methods, tuned by oracle, and the networks", "comparison", {}),
        Experiment(
            "table3",
            "The same people under another embedding",
            "comparison",
            {"methods": ("ahc", "aro", "ddc", "GCN-M"), "embedders": True},
        ),
        Experiment("figure5", "What is left when singletons are removed", "singletons", {}),
        Experiment("table4", "Time and quality among distractors, over k1", "distractors", {}),
        Experiment("table5", "Faces and voices of a few people", "two_views", {"share": 0.35}),
        Experiment("table6", "Faces and voices of more people", "two_views", {"share": 1.0}),
    )
}


def find_experiments(name: str) -> list[Experiment]:
    """The experiment of this name, or all of them."""
    if name == "all":
        return list(EXPERIMENTS.values())
    if name not in EXPERIMENTS:
        raise InputError(
            f"There is no experiment {name!r}; there are {', '.join(EXPERIMENTS)}, and all."
        )
    return [EXPERIMENTS[name]]


def check_extras(experiments: Sequence[Experiment]) -> None:
    """Say before any work is done what has to be installed for it."""
    if any(experiment.drawing() is not None for experiment in experiments):
        from facelink.experiments.figures import check_matplotlib

        check_matplotlib()
    if any(experiment.trains for experiment in experiments):
        import facelink.training  # noqa: F401


def run_experiment(experiment: Experiment, bench: Bench) -> tuple[list[Row], list[Path]]:
    """Compute what is not there yet; write the table and the figure.

    Returns
    -------
    rows : list of dict
    files : list of Path
        ``NAME.csv``, ``NAME.json``, ``NAME.md`` and, of a figure, ``NAME.png`` and
        ``NAME.svg``.
    """
    drawing = experiment.drawing()
    cells = experiment.cells(bench)
    rows = []
    for done, cell in enumerate(cells):
        bench.progress(f"{experiment.name}: {cell.title}", done, len(cells))
        rows.append(bench.row_of(cell))
    files = write_table(bench.folder, experiment.name, experiment.title, rows, bench.about())
    if drawing is not None:
        from facelink.experiments.figures import draw_to

        files += draw_to(bench.folder / experiment.name, drawing, rows)
    return rows, files
