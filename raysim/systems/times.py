"""Computes the times of simulated clients: stragglers, or the properties of devices and networks.

Stragglers: X_k = alpha N_k + E_k, E_k exponential with mean lambda N_k; a round takes as long as its slowest client.

N_k is the number of examples that client k processes in the round. E_k is addressed by (seed, round, client), and in
proportion to lambda: sweeps over cohort sizes and over lambda meet the same delays.

Source: Charles et al. (2021), appendix B.5; docs/algorithms.md section 5.

Devices and networks: T_round = S_down / B_down + S_up / B_up + max_j (R T_j + C) + T_server,

S_down and S_up the bytes that a client receives and sends, B_down and B_up its bandwidths, R how much slower than the
simulating machine a device computes, T_j the seconds that client j's examples would take that machine, C an overhead.

Any of them may be a distribution over devices (quantity.py). The maximum is then over a client's whole time,
t_j = S_down / B_down_j + S_up / B_up_j + R_j T_j + C_j; where only R and C differ it is the same.

Source: Wang et al. (2021), equations 9 and 10, whose estimates are the defaults; docs/algorithms.md section 5.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from pydantic import Field

from raysim import seeds
from raysim.arrays import Float64s, Int64s
from raysim.config.section import Section
from raysim.config.values import NonNegative, Positive
from raysim.systems.quantity import Distribution, draw_quantity


class Load(NamedTuple):
    """The work of a simulated client in a round, which determines its time.

    examples: N_k of each client, (clients,): the number it processes, with repetitions.
    bytes_down, bytes_up: what one client receives and sends.
    """

    examples: Int64s
    bytes_down: float
    bytes_up: float


class Straggler(Section):
    """Time per example with an exponential delay."""

    name: Literal["straggler"] = "straggler"
    alpha: NonNegative = Field(description="Seconds per example.")
    delay: NonNegative = Field(
        alias="lambda", description="Mean of E_k, in seconds per example. Python reads it as `.delay`."
    )


class RoundTime(Section):
    """The terms of T_round."""

    name: Literal["round_time"] = "round_time"
    download_bytes_per_s: Positive | Distribution = Field(0.75e6, description="B_down.")
    upload_bytes_per_s: Positive | Distribution = Field(0.25e6, description="B_up.")
    seconds_per_example: NonNegative | Distribution = Field(
        description="Seconds of the simulating machine per example; times a client's examples it is T_j."
    )
    slowdown: NonNegative | Distribution = Field(
        7.0, description="R, how much slower a device is than the simulating machine."
    )
    overhead_s: NonNegative | Distribution = Field(10.0, description="C, in seconds.")
    server_s: NonNegative = Field(0.0, description="T_server, in seconds.")


def straggler_times(section: Straggler, seed: int, round_index: int, positions: Int64s, load: Load) -> Float64s:
    """Return X_k of the clients at these positions, in seconds, (clients,)."""
    waits = -np.log(seeds.uniforms(seeds.keys(seed, "systems.time.lambda", round_index, positions)))
    return load.examples * (section.alpha + section.delay * waits)


def round_times(section: RoundTime, seed: int, round_index: int, positions: Int64s, load: Load) -> Float64s:
    """Return t_j of the clients at these positions, in seconds, (clients,)."""

    def of(name: str) -> Float64s:
        return draw_quantity(getattr(section, name), seed, f"systems.time.{name}", round_index, positions)

    transfer = load.bytes_down / of("download_bytes_per_s") + load.bytes_up / of("upload_bytes_per_s")
    return transfer + of("slowdown") * of("seconds_per_example") * load.examples + of("overhead_s")
