"""The time of a round from what devices and networks are like:

T_round = S_down / B_down + S_up / B_up + max_j (R T_j + C) + T_server,

S_down and S_up the bytes that a client receives and sends, B_down and B_up its bandwidths, R how much slower than the
simulating machine a device computes, T_j the seconds that client j's examples would take that machine, C an overhead.

Any of them may be a distribution over devices (quantity.py). The maximum is then over a client's whole time,
t_j = S_down / B_down_j + S_up / B_up_j + R_j T_j + C_j; where only R and C differ it is the same.

Source: Wang et al. (2021), equations 9 and 10, whose estimates are the defaults; docs/algorithms.md section 5.
"""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeFloat, PositiveFloat

from raysim.section import Section
from raysim.seeds import Int64s
from raysim.systems.load import Load
from raysim.systems.quantity import Distribution, Floats, drawn


class RoundTime(Section):
    """The terms of T_round.

    download_bytes_per_s: B_down.
    upload_bytes_per_s: B_up.
    seconds_per_example: of the simulating machine; times a client's examples it is T_j.
    slowdown: R.
    overhead_s: C.
    server_s: T_server.
    """

    name: Literal["round_time"] = "round_time"
    download_bytes_per_s: PositiveFloat | Distribution = 0.75e6
    upload_bytes_per_s: PositiveFloat | Distribution = 0.25e6
    seconds_per_example: NonNegativeFloat | Distribution
    slowdown: NonNegativeFloat | Distribution = 7.0
    overhead_s: NonNegativeFloat | Distribution = 10.0
    server_s: NonNegativeFloat = 0.0


def times(section: RoundTime, seed: int, round_index: int, positions: Int64s, load: Load) -> Floats:
    """t_j of the clients at these positions, in seconds, (clients,)."""

    def of(name: str) -> Floats:
        return drawn(getattr(section, name), seed, f"systems.time.{name}", round_index, positions)

    transfer = load.bytes_down / of("download_bytes_per_s") + load.bytes_up / of("upload_bytes_per_s")
    return transfer + of("slowdown") * of("seconds_per_example") * load.examples + of("overhead_s")
