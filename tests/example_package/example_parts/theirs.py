"""Pulls clients towards the model that they received, as FedProx does.

Source: Li et al. (2020), algorithm 2.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

import raysim


class Theirs(raysim.Section):
    """A pull of one's own strength."""

    name: Literal["theirs"] = "theirs"
    strength: float = Field(0.1, ge=0, description="Factor of the pull.")


def make(section: Theirs) -> raysim.Correction:
    """Return the correction."""
    return raysim.Correction(client=raysim.ClientHalf(pull=section.strength))


PART = raysim.Part("correction", "theirs", Theirs, make)
