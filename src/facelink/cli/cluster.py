"""``facelink demo`` and ``facelink cluster``."""

from __future__ import annotations

import json
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from facelink import __version__
from facelink.cli.shared import (
    PATH,
    as_json,
    dimension,
    force,
    parse_weights,
    print_scores,
    progress_bar,
    scores_of,
    view_files,
    view_weights,
)


@click.command()
@click.option("-o", "--output", type=PATH, default=Path("facelink-demo"), show_default=True,
              help="Folder for the result.")  # fmt: skip
@as_json
def demo(output: Path, as_json: bool) -> None:
    """Cluster the faces that come with facelink, and compare with the truth."""
    import numpy as np

    from facelink import load_sample
    from facelink.data.results import LABELS, SUMMARY, TABLE, check_folder, read_summary
    from facelink.data.writing import write_aside

    faces = load_sample()
    n_people = len(np.unique(faces.labels))
    if not as_json:
        click.echo(
            f"{len(faces.labels):,} real faces of {n_people:,} people whom the model has not seen."
        )
    about = {"input": "the sample of facelink"}
    # The demo may be run again, but not over anybody's own result.
    again = read_summary(output).get("input") == about["input"]
    names = (LABELS, TABLE, SUMMARY, "truth.txt")
    check_folder(output, force=again or None, names=names)
    summary = cluster_to(output, faces.embeddings, about)
    truth = output / "truth.txt"
    write_aside(truth, "".join(f"{label}\n" for label in faces.labels).encode())
    scores = scores_of(faces.labels, np.load(output / "labels.npy"))
    if as_json:
        click.echo(json.dumps({**summary, "people": n_people, "scores": scores}))
        return
    print_summary(summary)
    click.echo()
    print_scores(scores)
    click.echo(
        f"\nNext: facelink evaluate {truth} {output / 'labels.npy'}\n"
        "      facelink cluster YOUR_EMBEDDINGS.npy -o people"
    )


@click.command()
@click.argument("inputs", nargs=-1, required=True, type=PATH, metavar="INPUT...")
@click.option("-o", "--output", type=PATH, required=True, metavar="DIR",
              help="Folder for the result: labels.npy, clusters.csv, summary.json.")  # fmt: skip
@click.option("--preset", type=click.Choice(["balanced", "purity"]), default="balanced",
              show_default=True,
              help="purity: fewer wrong merges, more splits.")  # fmt: skip
@click.option("--model", metavar="NAME|FILE", default="universal", show_default=True,
              help="The model, by name or file; universal takes any embedding.")  # fmt: skip
@click.option("--method", type=click.Choice(["map-equation", "propagation", "components"]),
              default="map-equation", show_default=True, help="How links are merged.")  # fmt: skip
@click.option("--threshold", type=float, metavar="P",
              help="Merge links from this likelihood on; higher splits more.")  # fmt: skip
@click.option("--max-size", type=int, metavar="N",
              help="Cut clusters larger than this apart (propagation).")  # fmt: skip
@click.option("--neighbors", type=click.Choice(["auto", "exact", "approximate"]), default="auto",
              show_default=True, help="auto: exact up to 50,000 items.")  # fmt: skip
@click.option("--run", type=PATH, metavar="DIR",
              help="Folder for unfinished work, to go on after an interruption. From 50,000 "
              "items on there is one in the result's folder.")  # fmt: skip
@click.option("--parquet", is_flag=True, help="Write clusters.parquet, too.")
@click.option("--device", metavar="DEVICE",
              help="Where torch scores, like cuda (models of the paper's kind).")  # fmt: skip
@view_files
@view_weights
@dimension
@force
@as_json
def cluster(
    inputs: tuple[Path, ...],
    output: Path,
    preset: str,
    model: str,
    method: str,
    threshold: float | None,
    max_size: int | None,
    neighbors: str,
    run: Path | None,
    parquet: bool,
    device: str | None,
    views: tuple[Path, ...],
    weights: str | None,
    dim: int | None,
    force: bool,
    as_json: bool,
) -> None:
    """Group the items of INPUT by identity.

    INPUT is .npy, .npz (array x), .parquet or .bin (raw float32, with --dim), a
    row per item; several files are parts of one collection.

    Killed or interrupted, the same command goes on from where a large collection was.
    """
    from facelink.data.reading import read_embeddings
    from facelink.data.results import check_folder, check_parquet
    from facelink.errors import InputError
    from facelink.neighbors import EXACT_UP_TO
    from facelink.runs import read_manifest

    place = run or output / "run"
    if place.resolve() == output.resolve():
        raise InputError(
            f"--run and -o both name {output}. Unfinished work is removed in the end: expected a "
            "folder of its own for --run."
        )
    # Where unfinished work is, files of a result are its beginning.
    begun = run is None and read_manifest(place) is not None
    if not begun:
        check_folder(output, force=force)
    if parquet:
        check_parquet()
    options = {"threshold": threshold, "max_size": max_size}
    options = {name: value for name, value in options.items() if value is not None}
    chosen: dict[str, Any] = {
        "model": model,
        "preset": preset,
        "method": method,
        "options": options,
        "neighbors": neighbors,
        "device": device,
        "weights": parse_weights(weights),
    }
    embeddings = read_embeddings(inputs, dim=dim)
    about: dict[str, Any] = {"input": [str(path) for path in inputs]}
    if views:
        about["views"] = [str(path) for path in views]
    further = [read_embeddings([path], dim=dim) for path in views]
    if run is not None or len(embeddings) > EXACT_UP_TO or read_manifest(place):
        say_size(embeddings, place, model, neighbors, 1 + len(views))
        chosen["run"] = place
    summary = cluster_to(output, embeddings, about, further, parquet=parquet, **chosen)
    if as_json:
        click.echo(json.dumps(summary))
        return
    print_summary(summary)
    found = click.format_filename(output / "labels.npy")
    click.echo(f"\nNext: facelink evaluate TRUTH {found}   (if you know the truth)")


def say_size(embeddings: Any, run: Path, model: str, neighbors: str, n_views: int) -> None:
    """What a large collection will take, before it begins."""
    from facelink import load_model
    from facelink.memory import GIB, estimate_memory
    from facelink.neighbors import searches_exactly
    from facelink.runs import read_manifest

    n_items, dimension = embeddings.shape
    chosen = load_model(model)
    memory = estimate_memory(n_items, dimension, chosen, neighbors=neighbors, n_views=n_views)
    # The graph, twice or three times if it is approximate, and the links after each look.
    per_link = 24 if searches_exactly(neighbors, n_items) else 40
    views = n_views if n_views == 1 else n_views + 1
    disk = views * n_items * (per_link * chosen.context.k + 100)
    click.echo(
        f"{n_items:,} items of {dimension} dimensions: about {memory / GIB:.1f} GiB of memory, and "
        f"{disk / GIB:.1f} GiB on disk in {click.format_filename(run)}"
        + (", where work was begun." if read_manifest(run) else "."),
        err=True,
    )


def cluster_to(
    folder: Path,
    embeddings: Any,
    about: dict[str, Any],
    views: Sequence[Any] = (),
    *,
    parquet: bool = False,
    run: Path | None = None,
    **chosen: Any,
) -> dict[str, Any]:
    """Cluster, write the result, and return its summary."""
    import facelink
    from facelink.data.results import summarize, write_result
    from facelink.runs import remove_run

    began = time.monotonic()
    try:
        with progress_bar() as progress:
            found = facelink.cluster(embeddings, views=views, run=run, progress=progress, **chosen)
    except KeyboardInterrupt:
        if run is None:
            raise
        raise KeyboardInterrupt(
            f"interrupted; the same command goes on from here ({click.format_filename(run)})."
        ) from None
    summary = {
        **about,
        "facelink": __version__,
        "dimension": int(embeddings.shape[1]),
        **{name: value for name, value in chosen.items() if value},
        **summarize(found),
        "seconds": round(time.monotonic() - began, 2),
    }
    written = write_result(folder, found, summary, parquet=parquet)
    if run is not None:
        remove_run(run)
    return {**summary, "files": [str(path) for path in written]}


def print_summary(summary: dict[str, Any]) -> None:
    """What people look at first."""
    largest = ", ".join(f"{size:,}" for size in summary["largest clusters"]) or "none"
    alone = summary["singletons"]
    click.echo(f"Items        {summary['items']:,}")
    click.echo(f"Clusters     {summary['clusters']:,}, of {summary['items in clusters']:,} items")
    click.echo(f"Singletons   {alone:,} (alone: nobody here is clearly the same person)")
    click.echo(f"Largest      {largest}")
    if "recall" in summary:
        click.echo(f"Neighbours   {summary['recall']:.1%} of those that matter were found")
    for note in summary["notes"]:
        click.echo(textwrap.fill(f"Note         {note}", 80, subsequent_indent=" " * 13))
    first, *others = map(click.format_filename, summary["files"])
    click.echo(f"Wrote        {first}")
    for path in others:
        click.echo(f"             {path}")
