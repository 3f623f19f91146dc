"""``facelink train``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from facelink.cli.shared import (
    PATH,
    as_json,
    dimension,
    force,
    parse_numbers,
    parse_weights,
    progress_bar,
    view_files,
    view_weights,
)

if TYPE_CHECKING:
    from facelink.training import Epoch


@click.command()
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
@dimension
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
        "hops": parse_numbers("--hops", hops),
        "widths": parse_numbers("--widths", widths),
        "weights": parse_weights(weights),
        "similarity": not as_in_paper,
        "balanced": not as_in_paper,
    }
    try:
        with progress_bar() as progress:
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
