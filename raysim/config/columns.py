"""Names columns that the rows of every run have: no part's own figures may have these names."""

from __future__ import annotations

OF_A_ROW = ("round", "rejected_clients", "catastrophic_cohort")
"""What a row has beside figures."""

OF_THE_SERVER = (
    "clients",
    "rejected",
    "examples",
    "examples_so_far",
    "examples_held",
    "server_lr",
    "clip_level",
    "zeroing_level",
    "pseudo_gradient_norm",
    "params_norm",
    "bytes_down",
    "bytes_up",
)
"""Figures of a round, some of which only runs with their parts have."""

COSTS = ("workers", "wall_time_s", "idle_fraction", "retries")
"""What a round cost its executors, beside the columns with the prefixes `SECONDS` and `TRAFFIC`."""

SECONDS = "seconds/"
"""Prefix of the columns with the seconds of a phase."""

TRAFFIC = "ray_bytes_"
"""Prefix of columns that count bytes through the object store."""


def is_taken(column: str) -> bool:
    """Whether no figure of a part's own may have this name, in any run.

    >>> is_taken("wall_time_s"), is_taken("seconds/mine"), is_taken("mine")
    (True, True, False)
    """
    return column in (*OF_A_ROW, *OF_THE_SERVER, *COSTS) or column.startswith((SECONDS, TRAFFIC))
