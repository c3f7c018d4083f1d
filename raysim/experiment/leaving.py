"""Names the keys by which clients of a cohort leave a round."""

from __future__ import annotations

from typing import Any

from raysim.client.section import ClientSection
from raysim.systems.section import SystemsSection


def leaving(client: ClientSection, systems: SystemsSection | None) -> dict[str, Any]:
    """Return the values of those keys that are set, by dotted key."""
    keys: dict[str, Any] = {"client.mid_round_dropout": client.mid_round_dropout or None}
    if systems is not None:
        keys |= {"systems.deadline_s": systems.deadline_s, "systems.session_s": systems.session_s}
    return {key: value for key, value in keys.items() if value is not None}
