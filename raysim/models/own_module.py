"""Defines the section of a module that a script passes: what is frozen in it, adapted, and read from a file."""

from __future__ import annotations

from typing import Literal

from raysim.config.section import Section
from raysim.models.model import ModelChoice


class Own(ModelChoice, Section):
    """The module that a script passes as `model=`."""

    name: Literal["own"] = "own"
