"""Draw docs/universal.png and docs/reliability.png from results/universal_*.json, print the tables.

Needs matplotlib: pip install '.[bench]'.
"""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from tables import RESULTS

DOCS = Path(__file__).resolve().parent.parent / "docs"
OURS, BEST, OTHERS = "#123f6b", "#c2571a", "#b8bec6"


def draw_accuracy() -> None:
    groups, compared = rows_of("groups"), rows_of("peers")
    ours = {row["collection"]: row for row in groups if row["method"] == "facelink"}
    collections = sorted(
        ours.keys() & {row["collection"] for row in compared},
        key=lambda name: ours[name]["BCubed F"],
    )
    peers = {name: [row for row in compared if row["collection"] == name] for name in collections}
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), sharey=True, dpi=160)
    for axis, measure in zip(axes, ("BCubed F", "pairwise F"), strict=True):
        for place, name in enumerate(collections):
            best = max(peers[name], key=lambda row: row["BCubed F"])
            others = [row[measure] for row in peers[name] if row is not best]
            axis.scatter(others, [place] * len(others), s=14, color=OTHERS, zorder=2)
            axis.scatter(best[measure], place, s=34, color=BEST, marker="D", zorder=3)
            axis.scatter(ours[name][measure], place, s=46, color=OURS, zorder=4)
        axis.set_title(measure, fontsize=11)
        axis.set_xlim(0, 1.02)
        axis.grid(axis="x", color="#e6e9ec", zorder=0)
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.tick_params(axis="y", length=0)
    axes[0].set_yticks(range(len(collections)), collections)
    for color, marker, label in (
        (OURS, "o", "facelink, nothing tuned, group not trained on"),
        (BEST, "D", "best peer, tuned by oracle"),
        (OTHERS, "o", "the other peers"),
    ):
        axes[0].scatter([], [], color=color, marker=marker, s=34, label=label)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncols=3,
                  frameon=False, fontsize=8)  # fmt: skip
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    figure.savefig(DOCS / "universal.png")


def draw_reliability() -> None:
    parts = json.loads((RESULTS / "universal_reliability.json").read_text())
    figure, axis = plt.subplots(figsize=(4.6, 4.2), dpi=160)
    axis.plot([0, 1], [0, 1], color=OTHERS, linewidth=1, linestyle="--")
    for part in parts:
        enough = np.array(part["links"]) >= 200
        likelihood = np.where(enough, part["likelihood"], np.nan)
        axis.plot(likelihood, np.where(enough, part["true"], np.nan), linewidth=1, alpha=0.8,
                  marker=".", markersize=3, label=part["collection"])  # fmt: skip
    for style, (name, curve) in zip(("-", ":", "--"), pooled(parts).items(), strict=True):
        axis.plot(*curve, color="black", linewidth=2, linestyle=style, label=name)
    axis.set_xlabel("likelihood")
    axis.set_ylabel("share of true links")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=6.5)
    figure.tight_layout()
    figure.savefig(DOCS / "reliability.png")


def pooled(parts: list[dict]) -> dict[str, list[np.ndarray]]:
    """Likelihood and share of true links in each tenth, every collection counting alike.

    In the first curve each counts by the share of its links that are in the tenth, in the
    second all count the same in every tenth; in the third every link counts alike.
    """
    links = np.array([part["links"] for part in parts])
    shares = links / links.sum(axis=1, keepdims=True)

    def mean(weights: np.ndarray) -> list[np.ndarray]:
        values = (np.array([part[name] for part in parts]) for name in ("likelihood", "true"))
        return [(weights * value).sum(axis=0) / weights.sum(axis=0) for value in values]

    return {
        "all, each alike": mean(shares),
        "mean of the lines": mean(np.ones_like(shares)),
        "every link alike": mean(links),
    }


def print_reliability() -> None:
    """How far the share of true links is from the likelihood in each tenth."""
    parts = json.loads((RESULTS / "universal_reliability.json").read_text())
    faces = [part for part in parts if not part["collection"].startswith("voices")]
    for kind, some in (("all collections", parts), ("faces", faces)):
        for name, (likelihood, true) in pooled(some).items():
            print(f"{kind}, {name}:", np.round(true, 3), "off by", np.round(true - likelihood, 3))


def rows_of(part: str) -> list[dict]:
    path = RESULTS / f"universal_{part}.json"
    return json.loads(path.read_text())["rows"] if path.exists() else []


def print_tables() -> None:
    """Each part beside the best peer (tuned, by BCubed F): BCubed F / pairwise F / BCubed P."""
    measures = ("BCubed F", "pairwise F", "BCubed P")
    peers = rows_of("peers")
    for part in ("groups", "embedders", "halves"):
        print(f"\n{part}\n| collection | facelink | purity | best tuned peer |\n|---|---|---|---|")
        rows = rows_of(part)
        sums, count = np.zeros((3, 3)), 0
        for name in dict.fromkeys(row["collection"] for row in rows):
            tested = f"{name}, half" if part == "halves" else name
            compared = [row for row in peers if row["collection"] == tested]
            if not compared:
                continue
            best = max(compared, key=lambda row: row["BCubed F"])
            balanced, pure = (
                next(r for r in rows if (r["collection"], r["method"]) == (name, method))
                for method in ("facelink", "facelink, purity")
            )
            values = [[r[measure] for measure in measures] for r in (balanced, pure, best)]
            sums += np.array(values)
            cells = [" / ".join(f"{value:.3f}" for value in row) for row in values]
            print(f"| {name} | {' | '.join(cells)} ({best['method'].removesuffix(' (oracle)')}) |")
            count += 1
        mean = sums / max(count, 1)
        cells = [" / ".join(f"{value:.3f}" for value in row) for row in mean]
        print(f"| mean | {' | '.join(cells)} |")


if __name__ == "__main__":
    print_tables()
    draw_accuracy()
    draw_reliability()
    print_reliability()
