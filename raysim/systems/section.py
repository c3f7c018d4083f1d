"""Defines the `[systems]` section: the simulated devices, and the reports that a round waits for."""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from pydantic import Field

from raysim.arrays import Float64s, Int64s
from raysim.config.section import Section
from raysim.config.values import Count, Positive
from raysim.systems.quantity import Distribution, draw_quantity
from raysim.systems.times import Load, RoundTime, Straggler, round_times, straggler_times


class SystemsSection(Section):
    """Simulated devices. With `time` alone a round waits for all clients."""

    time: Annotated[Straggler | RoundTime, Field(discriminator="name")] = Field(
        description="Seconds from a client's request to its report."
    )
    over_selection: float = Field(
        1.0,
        ge=1,
        le=1e6,
        description="Clients asked, times `cohort.size`, rounded up; the first `cohort.size` reports count.",
    )
    deadline_s: Positive | None = Field(
        None, description="Seconds after which reports do not count. Absent: no deadline."
    )
    session_s: Positive | Distribution | None = Field(
        None,
        description=(
            "Seconds that a client stays; one that would take longer never reports (`client.mid_round_dropout` is a "
            "probability of that). Absent: all stay."
        ),
    )
    min_reports: Count = Field(
        1, description="With fewer reports that count, the round is abandoned and the model stays."
    )

    def asked(self, size: int, population: int) -> int:
        """Return the number of clients to ask for `size` reports; at most the population."""
        # Rounded first: 1.1 times 10 is a little more than 11, but means 11.
        return min(math.ceil(round(self.over_selection * size, 6)), population)

    def times(self, seed: int, round_index: int, positions: Int64s, load: Load) -> Float64s:
        """Return the seconds until each of these clients reports, (clients,); infinite for one that leaves before."""
        match self.time:
            case Straggler():
                times_s = straggler_times(self.time, seed, round_index, positions, load)
            case RoundTime():
                times_s = round_times(self.time, seed, round_index, positions, load)
        if self.session_s is None:
            return times_s
        stays_s = draw_quantity(self.session_s, seed, "systems.session_s", round_index, positions)
        return np.where(times_s <= stays_s, times_s, np.inf)

    @property
    def server_s(self) -> float:
        """Seconds of a round in addition to its clients' time."""
        return self.time.server_s if isinstance(self.time, RoundTime) else 0.0
