"""Stragglers: X_k = alpha N_k + E_k, E_k exponential with mean lambda N_k; a round takes as long as its slowest client.

N_k is the number of examples that client k processes in the round. E_k is addressed by (seed, round, client), and in
proportion to lambda: sweeps over cohort sizes and over lambda meet the same delays.

Source: Charles et al. (2021), appendix B.5; docs/algorithms.md section 5.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field, NonNegativeFloat

from raysim import seeds
from raysim.section import Section
from raysim.seeds import Int64s
from raysim.systems.load import Load
from raysim.systems.quantity import Floats


class Straggler(Section):
    """`alpha`: seconds per example. `lambda` (`delay` in Python): the mean of E_k, in seconds per example."""

    name: Literal["straggler"] = "straggler"
    alpha: NonNegativeFloat
    delay: NonNegativeFloat = Field(alias="lambda")


def times(section: Straggler, seed: int, round_index: int, positions: Int64s, load: Load) -> Floats:
    """X_k of the clients at these positions, in seconds, (clients,)."""
    waits = -np.log(seeds.uniforms(seeds.keys(seed, "systems.time.lambda", round_index, positions)))
    return load.examples * (section.alpha + section.delay * waits)
