"""How large a collection a method can take, said before the work starts."""

from __future__ import annotations

from facelink.errors import TooLargeError

GIB = 1 << 30
LIMIT = 12 * GIB  # what the methods may take of a workstation of 16 GiB


def check_size(name: str, n_items: int, n_bytes: int) -> None:
    """Refuse a collection for which a method would need more memory than `LIMIT`.

    Parameters
    ----------
    name : str
        Of the method, as in the tables.
    n_items : int
        Of the collection.
    n_bytes : int
        What the method needs for it, about.

    Examples
    --------
    >>> check_size("Affinity Propagation", 1_000, 32 * 1_000**2)
    """
    if n_bytes > LIMIT:
        raise TooLargeError(
            f"{name} would need about {n_bytes / GIB:,.1f} GiB for {n_items:,} items, the limit is "
            f"{LIMIT / GIB:,.0f} GiB. Use a method on the kNN graph, whose memory grows with the "
            "items and not with their square, like components, dbscan or map_equation; or cluster "
            "fewer items."
        )


def graph_bytes(n_items: int, k: int) -> int:
    """What a kNN graph, its pairs and one sparse matrix of them take together, about.

    8 bytes for each neighbour, at most 12 for its pair, 24 for a symmetric
    matrix and as much again while it is made.
    """
    return 68 * n_items * k
