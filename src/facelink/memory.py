"""How much memory a clustering takes, said before it begins."""

from __future__ import annotations

from pathlib import Path

from facelink.errors import TooLargeError
from facelink.links import GcnModel, Model, UniversalModel
from facelink.links.variation import DIRECTIONS
from facelink.neighbors import searches_exactly
from facelink.scratch import IN_MEMORY_BYTES
from facelink.subgraphs import Context

GIB = 1 << 30
ITSELF = 300 << 20  # bytes: Python, numpy and compiled code
PER_ITEM = 290  # bytes: labels, an order, backgrounds and the like
# Bytes per item and neighbour while each stage works, as measured on a million items.
SEARCHED, SCORED, MERGED, REVIEWED = 16, 42, 46, 34
SEEN = 16  # the same for each view, to keep its links beside those of the others


def estimate_memory(
    n_items: int,
    dimension: int,
    model: Model,
    context: Context | None = None,
    neighbors: str = "auto",
    n_views: int = 1,
) -> int:
    """The most bytes that clustering so many items takes at any time, about.

    Embeddings, the graph and the likelihoods lie in files if each takes more than 2 GiB, of
    which the system keeps as much in memory as there is room for; they do not count then.
    """
    context = (context or model.context).fitted_to(max(n_items - 1, 1))
    links = n_items * context.k

    def held(n_bytes: int) -> int:
        return min(n_bytes, IN_MEMORY_BYTES)

    # A stage holds several arrays, none of which takes more than 4 bytes per link.
    share = held(4 * links) / max(4 * links, 1)
    rows = held(4 * n_items * dimension) * (1 if n_views == 1 else 2)
    searching = SEARCHED * links * share
    if searches_exactly(neighbors, n_items):
        searching += n_items * (8 * (2 * context.k + 128))
    scoring = SCORED * links * share
    if isinstance(model, GcnModel):
        width = 2 * model.architecture.widths[0]
        scoring = 14 * links * share + held(4 * n_items * width)
    merging = MERGED * links  # of links that hold, which may be all
    reviewing = 0.0
    if isinstance(model, UniversalModel):
        whitened = 4 * n_items * min(dimension, DIRECTIONS)
        merging += held(whitened)
        # A row per cluster, of whom all may be.
        reviewing = REVIEWED * links * share + 4 * n_items * dimension
        reviewing += held(whitened) + whitened
    most = max(searching, scoring, merging, reviewing)
    if n_views > 1:
        most += SEEN * links * (n_views + 1)
    return int(ITSELF + PER_ITEM * n_items + rows + most)


def available_memory() -> int | None:
    """What the system can still give this process, in bytes, if it says so."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        found = {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines}
        available = found["MemAvailable"]
    except (OSError, KeyError, ValueError, IndexError):
        return None
    try:  # a container may have less than the machine
        group = Path("/sys/fs/cgroup")
        limit = (group / "memory.max").read_text(encoding="ascii").strip()
        if limit != "max":
            used = int((group / "memory.current").read_text(encoding="ascii"))
            lines = (group / "memory.stat").read_text(encoding="ascii").splitlines()
            parts = dict(line.split() for line in lines)
            used -= int(parts["active_file"]) + int(parts["inactive_file"])  # can be dropped
            available = min(available, max(int(limit) - used, 0))
    except (OSError, ValueError, KeyError):
        pass
    return available


def check_memory(n_bytes: int, n_items: int) -> None:
    """Refuse what does not fit, before the work is done."""
    available = available_memory()
    if available is not None and n_bytes > available:
        raise TooLargeError(
            f"Clustering {n_items:,} items takes about {n_bytes / GIB:.1f} GiB of memory, and "
            f"{available / GIB:.1f} GiB are available. Close other programs, read links from fewer "
            "neighbours (context=facelink.Context((40, 5))), or cluster fewer items."
        )
