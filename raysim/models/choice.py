"""What every choice of model has in common."""

from __future__ import annotations

from raysim.section import Section


class ModelChoice(Section):
    """seed: addresses the initial weights; absent, it is the experiment's."""

    seed: int | None = None
