"""Which keys of a source say where something lies: a path says nothing about content, fingerprints do."""

from __future__ import annotations

from raysim.section import Section

ANYWHERE = ("root", "noisyag_root")
BY_SOURCE = {"arrow": ("train", "validation", "test")}
"""Keys that are paths under one source only."""


def paths(section: Section) -> set[str]:
    """The section's keys that are paths."""
    name = getattr(section, "name", "")
    return {key for key in (*ANYWHERE, *BY_SOURCE.get(name, ())) if key in type(section).model_fields}
