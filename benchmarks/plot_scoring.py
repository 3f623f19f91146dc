"""Draw docs/scoring.png from results/scoring_growth.json.

Needs matplotlib: pip install '.[bench]'.
"""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib.pyplot as plt

from tables import RESULTS

DOCS = Path(__file__).resolve().parent.parent / "docs"
TITLES = {"n": "items", "k1": "1-hop neighbours", "k2": "2-hop neighbours each", "d": "dimension"}
COLOR = "#123f6b"


def main() -> None:
    rows = json.loads((RESULTS / "scoring_growth.json").read_text())["rows"]
    figure, axes = plt.subplots(1, len(TITLES), figsize=(9.5, 2.7), sharey=True, dpi=160)
    for axis, (name, title) in zip(axes, TITLES.items(), strict=True):
        part = [row for row in rows if row["varied"] == name]
        values = [row["value"] for row in part]
        axis.plot(values, [float(row["ms per pivot"]) for row in part], marker="o", color=COLOR)
        for row in part:
            axis.annotate(f"{row['nodes']:,}", (row["value"], float(row["ms per pivot"])),
                          textcoords="offset points", xytext=(0, 6), ha="center",
                          fontsize=7, color="#666666")  # fmt: skip
        axis.set_xlabel(f"{title}, {name}")
        axis.set_xticks([values[0], values[-2], values[-1]])
        axis.xaxis.set_major_formatter("{x:,.0f}")
        axis.margins(x=0.12)
        axis.grid(axis="y", color="#e6e9ec")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("ms per pivot")
    axes[0].set_ylim(0, 1.15 * max(float(row["ms per pivot"]) for row in rows))
    figure.tight_layout()
    figure.savefig(DOCS / "scoring.png")


if __name__ == "__main__":
    main()
