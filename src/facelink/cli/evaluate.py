"""``facelink evaluate``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from facelink.cli.shared import PATH, as_json, print_scores, scores_of


@click.command()
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
    scores = scores_of(read_labels(truth), read_labels(predicted))
    if as_json:
        click.echo(json.dumps(scores))
    else:
        print_scores(scores)
