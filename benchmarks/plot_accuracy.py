"""Draw docs/accuracy.png from results/accuracy.json. Needs matplotlib: pip install '.[bench]'."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib.pyplot as plt

from tables import RESULTS

OUTPUT = Path(__file__).resolve().parent.parent / "docs" / "accuracy.png"
METHODS = {
    "threshold components (oracle)": ("threshold components, tuned", "#b8bec6"),
    "DBSCAN (oracle)": ("DBSCAN, tuned", "#9aa3ad"),
    "AHC, average linkage (oracle)": ("AHC, tuned", "#7b8591"),
    "GCN-M + map-equation": ("facelink, GCN-M", "#2b7bba"),
    "GCN-A + map-equation": ("facelink, GCN-A", "#123f6b"),
}


def main() -> None:
    rows = json.loads((RESULTS / "accuracy.json").read_text())["rows"]
    collections = list(dict.fromkeys(row["collection"] for row in rows))
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True, dpi=160)
    for axis, measure in zip(axes, ("BCubed F", "pairwise F"), strict=True):
        for number, (method, (label, color)) in enumerate(METHODS.items()):
            values = [
                next(r[measure] for r in rows if (r["collection"], r["method"]) == (name, method))
                for name in collections
            ]
            places = [i + (number - (len(METHODS) - 1) / 2) * 0.16 for i in range(len(collections))]
            bars = axis.bar(places, values, 0.15, color=color, label=label)
            axis.bar_label(bars, [f"{v:.2f}".lstrip("0") for v in values], fontsize=7, padding=2)
        dimensions = [name.rpartition("-")[2] for name in collections]
        axis.set_xticks(range(len(collections)), [f"{d} dimensions" for d in dimensions])
        axis.set_title(measure, fontsize=11)
        axis.set_ylim(0, 1)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(axis="x", length=0)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(labels), frameon=False, fontsize=8)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.savefig(OUTPUT)


if __name__ == "__main__":
    main()
