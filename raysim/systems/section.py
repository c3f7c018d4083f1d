"""The `[systems]` section: what the simulated devices would have experienced, and whose reports a round waits for."""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt

from raysim.config.section import Section
from raysim.seeds import Int64s
from raysim.systems.quantity import Distribution, Floats, drawn
from raysim.systems.times import Load, RoundTime, Straggler, round_times, straggler_times


class SystemsSection(Section):
    """Simulated devices. With `time` alone all clients are waited for."""

    time: Annotated[Straggler | RoundTime, Field(discriminator="name")] = Field(
        description="Seconds that a client takes from being asked to its report."
    )
    over_selection: float = Field(
        1.0, ge=1, description="Clients asked, times `cohort.size`, rounded up; the first `cohort.size` reports count."
    )
    deadline_s: PositiveFloat | None = Field(
        None, description="Seconds after which reports do not count. Absent: no deadline."
    )
    session_s: PositiveFloat | Distribution | None = Field(
        None,
        description=(
            "Seconds that a client stays; one that would take longer never reports (`client.mid_round_dropout` is a "
            "probability of that). Absent: all stay."
        ),
    )
    min_reports: PositiveInt = Field(
        1, description="With fewer reports that count, the round is abandoned and the model stays."
    )

    def asked(self, size: int, population: int) -> int:
        """How many clients are asked where `size` shall report; all of them where they are fewer."""
        # Rounded first: 1.1 times 10 is a little more than 11, and asks 11.
        return min(math.ceil(round(self.over_selection * size, 6)), population)

    def times(self, seed: int, round_index: int, positions: Int64s, load: Load) -> Floats:
        """Seconds until each of these clients reports, (clients,); infinite for one that does not stay so long."""
        match self.time:
            case Straggler():
                times_s = straggler_times(self.time, seed, round_index, positions, load)
            case RoundTime():
                times_s = round_times(self.time, seed, round_index, positions, load)
        if self.session_s is None:
            return times_s
        stays_s = drawn(self.session_s, seed, "systems.session_s", round_index, positions)
        return np.where(times_s <= stays_s, times_s, np.inf)

    @property
    def server_s(self) -> float:
        """What a round takes beside its clients, in seconds."""
        return self.time.server_s if isinstance(self.time, RoundTime) else 0.0
