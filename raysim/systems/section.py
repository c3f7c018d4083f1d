"""The `[systems]` section: what the simulated devices would have experienced, and whose reports a round waits for."""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt

from raysim.section import Section
from raysim.seeds import Int64s
from raysim.systems import round_time, straggler
from raysim.systems.load import Load
from raysim.systems.quantity import Distribution, Floats, drawn


class SystemsSection(Section):
    """`time`: how long a client takes from being asked to its report. Without the others all clients are waited for.

    `over_selection`: so many times `cohort.size` clients are asked, rounded up, and the first `cohort.size` to report
    count. `deadline_s`: reports that take longer do not count. `session_s`: how long a client stays; one that would
    take longer never reports (`client.mid_round_dropout` is a probability of that). `min_reports`: with fewer that
    count, the round is abandoned and the model stays.
    """

    time: Annotated[straggler.Straggler | round_time.RoundTime, Field(discriminator="name")]
    over_selection: float = Field(1.0, ge=1)
    deadline_s: PositiveFloat | None = None
    session_s: PositiveFloat | Distribution | None = None
    min_reports: PositiveInt = 1

    def asked(self, size: int, population: int) -> int:
        """How many clients are asked where `size` shall report; all of them where they are fewer."""
        # Rounded first: 1.1 times 10 is a little more than 11, and asks 11.
        return min(math.ceil(round(self.over_selection * size, 6)), population)

    def times(self, seed: int, round_index: int, positions: Int64s, load: Load) -> Floats:
        """Seconds until each of these clients reports, (clients,); infinite for one that does not stay so long."""
        match self.time:
            case straggler.Straggler():
                times_s = straggler.times(self.time, seed, round_index, positions, load)
            case round_time.RoundTime():
                times_s = round_time.times(self.time, seed, round_index, positions, load)
        if self.session_s is None:
            return times_s
        stays_s = drawn(self.session_s, seed, "systems.session_s", round_index, positions)
        return np.where(times_s <= stays_s, times_s, np.inf)

    @property
    def server_s(self) -> float:
        """What a round takes beside its clients, in seconds."""
        return self.time.server_s if isinstance(self.time, round_time.RoundTime) else 0.0
