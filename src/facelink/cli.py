"""The command line: one verb per command, each a shell over the library.

Results go to files, progress to stderr, a summary (or JSON) to stdout. What is
wrong with the input is said in a line or two, with exit code 2; Ctrl-C is 130.
"""

from __future__ import annotations

import json
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from facelink import __version__
from facelink.errors import FacelinkError

if TYPE_CHECKING:
    from facelink.progress import Progress
    from facelink.training import Epoch

BAD_INPUT, INTERRUPTED = 2, 130
PATH = click.Path(path_type=Path)

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")
view_files = click.option("--view", "views", type=PATH, multiple=True, metavar="FILE",
                          help="A further embedding of the same items, such as voices; "
                          "NaN rows are missing.")  # fmt: skip
view_weights = click.option("--weights", metavar="W,…",
                            help="How much each view counts, INPUT first.")  # fmt: skip
force = click.option("--force", is_flag=True, help="Replace a result that is already there.")


class Commands(click.Group):
    """A group that turns errors into plain lines and exit codes, and keeps its order."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        kwargs["standalone_mode"] = False
        try:
            code = super().main(*args, **kwargs)
        except click.ClickException as error:  # usage
            error.show()
            code = BAD_INPUT
        except FacelinkError as error:
            _complain(str(error))
            code = BAD_INPUT
        except MemoryError:
            _complain("out of memory. Try fewer items at a time.")
            code = BAD_INPUT
        except (click.Abort, KeyboardInterrupt):
            _complain("interrupted; nothing was left half-written.")
            code = INTERRUPTED
        except OSError as error:  # a full disk, a file that has gone: nothing we could foresee
            _complain(f"{error.strerror or error}: {error.filename or 'standard output'}")
            code = BAD_INPUT
        sys.exit(code if isinstance(code, int) else 0)


def _complain(message: str) -> None:
    # A file's name may hold bytes that are no text.
    click.echo("facelink: " + message.encode("utf-8", "replace").decode(), err=True)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="facelink")
def main() -> None:
    """Group faces by identity: embeddings in, people out.

    Start with: facelink demo
    """


@main.command()
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
    check_folder(output, force=again, names=(LABELS, TABLE, SUMMARY, "truth.txt"))
    summary = _cluster_to(output, faces.embeddings, about)
    truth = output / "truth.txt"
    write_aside(truth, "".join(f"{label}\n" for label in faces.labels).encode())
    scores = _scores(faces.labels, np.load(output / "labels.npy"))
    if as_json:
        click.echo(json.dumps({**summary, "people": n_people, "scores": scores}))
        return
    _print_summary(summary)
    click.echo()
    _print_scores(scores)
    click.echo(
        f"\nNext: facelink evaluate {truth} {output / 'labels.npy'}\n"
        "      facelink cluster YOUR_EMBEDDINGS.npy -o people"
    )


@main.command()
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
@click.option("--device", metavar="DEVICE",
              help="Where torch scores, like cuda (models of the paper's kind).")  # fmt: skip
@view_files
@view_weights
@click.option("--dim", type=int, metavar="D", help="Dimension of raw float32 .bin input.")
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
    """
    from facelink.data.reading import read_embeddings
    from facelink.data.results import check_folder

    check_folder(output, force=force)
    options = {"threshold": threshold, "max_size": max_size}
    options = {name: value for name, value in options.items() if value is not None}
    chosen: dict[str, Any] = {
        "model": model,
        "preset": preset,
        "method": method,
        "options": options,
        "device": device,
        "weights": _weights(weights),
    }
    embeddings = read_embeddings(inputs, dim=dim)
    about: dict[str, Any] = {"input": [str(path) for path in inputs]}
    if views:
        about["views"] = [str(path) for path in views]
    further = [read_embeddings([path], dim=dim) for path in views]
    summary = _cluster_to(output, embeddings, about, further, **chosen)
    if as_json:
        click.echo(json.dumps(summary))
        return
    _print_summary(summary)
    found = click.format_filename(output / "labels.npy")
    click.echo(f"\nNext: facelink evaluate TRUTH {found}   (if you know the truth)")


@main.command()
@click.argument("features", type=PATH)
@click.argument("labels", type=PATH)
@click.option("-o", "--output", type=PATH, required=True, metavar="MODEL",
              help="File for the model, ending in .safetensors.")  # fmt: skip
@click.option("--aggregator", type=click.Choice(["mean", "weighted", "attention"]), default="mean",
              show_default=True, help="GCN-M, GCN-W or GCN-A of the paper.")  # fmt: skip
@click.option("--widths", default="512,512,256,256", show_default=True, metavar="W,…",
              help="Output width of each graph convolution.")  # fmt: skip
@click.option("--hops", default="200,10", show_default=True, metavar="K1,K2,…",
              help="Neighbours taken at each hop from the pivot.")  # fmt: skip
@click.option("-u", "u", default=10, show_default=True, help="Neighbours a node is joined to.")
@click.option("--epochs", default=4, show_default=True, help="Passes over all items.")
@click.option("--batch-size", default=16, show_default=True, help="Pivots per step.")
@click.option("--learning-rate", default=1e-3, show_default=True, help="The highest one.")
@click.option("--validation", default=0.1, show_default=True,
              help="Share of identities held back to choose the best epoch.")  # fmt: skip
@click.option("--as-in-paper", is_flag=True,
              help="Residuals alone as features, every link alike in the loss.")  # fmt: skip
@click.option("--seed", default=0, show_default=True, help="For the same result again.")
@view_files
@view_weights
@click.option("--dim", type=int, metavar="D", help="Dimension of raw float32 .bin input.")
@force
@as_json
def train(
    features: Path,
    labels: Path,
    output: Path,
    hops: str,
    widths: str,
    as_in_paper: bool,
    views: tuple[Path, ...],
    weights: str | None,
    dim: int | None,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Train the paper's network on FEATURES whose identities are LABELS.

    Interrupted, it goes on where it was when run again.
    """
    from facelink.data.reading import read_embeddings, read_labels
    from facelink.data.writing import check_place, make_folder
    from facelink.errors import FileError, ResultExistsError

    if output.suffix != ".safetensors":
        raise FileError(f"{output} should end in .safetensors, the format of models.")
    check_place(output.parent)
    if output.is_dir():
        raise FileError(f"{output} is a folder; expected a file for the model.")
    if output.exists() and not force:
        raise ResultExistsError(f"{output} is there already. Choose another file, or use --force.")
    embeddings, truth = read_embeddings([features], dim=dim), read_labels(labels)
    further = [read_embeddings([path], dim=dim) for path in views]
    from facelink.training import train as train_model

    checkpoint = output.with_suffix(".checkpoint")
    if checkpoint.exists():
        click.echo(f"Going on from {checkpoint}", err=True)

    def tell(epoch: Epoch) -> None:
        click.echo(
            f"epoch {epoch.number}: loss {epoch.loss:.4f}, validation loss "
            f"{epoch.validation_loss:.4f}, link average precision {epoch.average_precision:.4f} "
            f"({epoch.seconds:.0f} s)",
            err=True,
        )

    options |= {
        "hops": _numbers("--hops", hops),
        "widths": _numbers("--widths", widths),
        "weights": _weights(weights),
        "similarity": not as_in_paper,
        "balanced": not as_in_paper,
    }
    try:
        with _progress() as progress:
            model = train_model(
                embeddings,
                truth,
                views=further,
                name=output.stem,
                checkpoint=checkpoint,
                progress=progress,
                on_epoch=tell,
                **options,
            )
    except KeyboardInterrupt:
        if checkpoint.exists():
            click.echo(f"\n{checkpoint} is kept: the same command goes on from there.", err=True)
        raise
    make_folder(output.parent)
    model.save(output)
    checkpoint.unlink(missing_ok=True)
    if as_json:
        click.echo(json.dumps({"model": str(output), **model.about}))
        return
    trained = model.about["trained on"]
    click.echo(f"Trained on   {trained['items']:,} items of {trained['identities']:,} identities")
    if model.about["link average precision"] is not None:
        click.echo(
            f"Link AP      {model.about['link average precision']:.4f} on identities not trained "
            f"on (epoch {model.about['best epoch']})"
        )
    click.echo(f"Wrote        {output}\n\nNext: facelink cluster INPUT -o DIR --model {output}")


@main.command()
@click.argument("truth", type=PATH)
@click.argument("predicted", type=PATH)
@as_json
def evaluate(truth: Path, predicted: Path, as_json: bool) -> None:
    """Compare PREDICTED clusters with the TRUTH.

    Both are files with one label per item: .npy, .npz (array y), .csv, .txt or
    .meta; or, for PREDICTED, the folder that facelink cluster wrote.
    """
    from facelink.data.reading import read_labels

    if predicted.is_dir():
        predicted = predicted / "labels.npy"
    scores = _scores(read_labels(truth), read_labels(predicted))
    if as_json:
        click.echo(json.dumps(scores))
    else:
        _print_scores(scores)


def _cluster_to(
    folder: Path, embeddings: Any, about: dict[str, Any], views: Sequence[Any] = (), **chosen: Any
) -> dict[str, Any]:
    """Cluster, write the result, and return its summary."""
    import facelink
    from facelink.data.results import summarize, write_result

    began = time.monotonic()
    with _progress() as progress:
        found = facelink.cluster(embeddings, views=views, progress=progress, **chosen)
    summary = {
        **about,
        "facelink": __version__,
        "dimension": int(embeddings.shape[1]),
        **{name: value for name, value in chosen.items() if value},
        **summarize(found),
        "seconds": round(time.monotonic() - began, 2),
    }
    written = write_result(folder, found, summary)
    return {**summary, "files": [str(path) for path in written]}


def _scores(truth: Any, predicted: Any) -> dict[str, Any]:
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


def _print_scores(scores: dict[str, Any]) -> None:
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


def _print_summary(summary: dict[str, Any]) -> None:
    largest = ", ".join(f"{size:,}" for size in summary["largest clusters"]) or "none"
    alone = summary["singletons"]
    click.echo(f"Items        {summary['items']:,}")
    click.echo(f"Clusters     {summary['clusters']:,}, of {summary['items in clusters']:,} items")
    click.echo(f"Singletons   {alone:,} (alone: nobody here is clearly the same person)")
    click.echo(f"Largest      {largest}")
    for note in summary["notes"]:
        click.echo(textwrap.fill(f"Note         {note}", 80, subsequent_indent=" " * 13))
    first, *others = map(click.format_filename, summary["files"])
    click.echo(f"Wrote        {first}")
    for path in others:
        click.echo(f"             {path}")


def _weights(text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise click.BadParameter(
            f"expected numbers with commas, such as 1,0.5; got {text!r}", param_hint="--weights"
        ) from None


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(
            f"expected whole numbers with commas, such as 80,5; got {text!r}", param_hint=option
        ) from None


@contextmanager
def _progress() -> Iterator[Progress]:
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


if __name__ == "__main__":
    main()
