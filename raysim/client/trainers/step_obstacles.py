"""Why a module's local step cannot be recorded, or not be interpreted."""

from __future__ import annotations

from typing import NamedTuple


class StepObstacles(NamedTuple):
    """The reasons, as the ends of sentences; None where it can. A step that cannot be recorded is not interpreted."""

    recorded: str | None = None
    interpreted: str | None = None
