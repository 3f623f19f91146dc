"""``facelink bench``: the paper's tables and figures on one's own collections."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from facelink.cli.shared import PATH, as_json, progress_bar


def _list(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    from facelink.experiments import EXPERIMENTS

    for experiment in EXPERIMENTS.values():
        click.echo(f"{experiment.name:9}{experiment.title}")
    click.echo(f"{'all':9}Every one of them")
    context.exit()


@click.command()
@click.argument("experiment")
@click.option("--data", type=PATH, required=True, metavar="DIR|FILE",
              help="Labelled collections: NAME.npz with x and y, or a folder of "
              "gcn_clustering or learn-to-cluster.")  # fmt: skip
@click.option("-o", "--output", type=PATH, default=Path("facelink-bench"), show_default=True,
              metavar="DIR", help="Folder for tables, figures, models and finished "
              "rows.")  # fmt: skip
@click.option("--collection", "names", multiple=True, metavar="NAME",
              help="Only this one, and in this order; may be repeated.")  # fmt: skip
@click.option("--quick", is_flag=True,
              help="Small parts and small networks: to see it run.")  # fmt: skip
@click.option("--as-in-paper", is_flag=True,
              help="Train with the paper's widths, subgraphs and loss: hours.")  # fmt: skip
@click.option("--narrow", is_flag=True,
              help="Train networks an eighth as wide as the paper's: for large "
              "collections.")  # fmt: skip
@click.option("--universal", default="universal", show_default=True, metavar="NAME|FILE",
              help="The model for any embedding to compare with.")  # fmt: skip
@click.option("--distractors", type=click.IntRange(1), default=100_000, show_default=True,
              help="How many to add (table4).")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True,
              help="For splits, pairs and training.")  # fmt: skip
@click.option("--list", is_flag=True, is_eager=True, expose_value=False, callback=_list,
              help="Name every experiment.")  # fmt: skip
@as_json
def bench(
    experiment: str,
    data: Path,
    output: Path,
    names: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Run EXPERIMENT, a table or figure of the paper, or all of them.

    Each prints a table and writes it as CSV, JSON and Markdown; figures also as
    PNG and SVG. Interrupted, it goes on where it was when run again.
    """
    from facelink.data.layouts import read_collections
    from facelink.data.writing import check_place
    from facelink.experiments import Bench, check_extras, find_experiments, run_experiment
    from facelink.experiments.bench import NotForTheseError
    from facelink.experiments.tables import plain

    wanted = find_experiments(experiment)
    check_extras(wanted)
    check_place(output)
    collections = read_collections(data, names)
    results: dict[str, Any] = {}
    with progress_bar() as progress:
        measured = Bench(collections, output, progress=progress, **options)
        measured.universal_model()  # a name that is none is better told now than in an hour
        for each in wanted:
            try:
                rows, files = run_experiment(each, measured)
            except NotForTheseError as error:
                if len(wanted) == 1:
                    raise
                click.echo(f"{each.name} left out: {error}", err=True)
                continue
            except KeyboardInterrupt:
                click.echo("\nWhat is finished is kept: the same command goes on.", err=True)
                raise
            results[each.name] = {"rows": rows, "files": [str(file) for file in files]}
            if not as_json:
                click.echo(f"\n{each.name}: {each.title}\n")
                short = [
                    {name: value for name, value in row.items() if not isinstance(value, list)}
                    for row in rows
                ]
                click.echo(plain(short))
                click.echo(f"\nWrote {', '.join(click.format_filename(file) for file in files)}")
    if as_json:
        click.echo(json.dumps(results))
