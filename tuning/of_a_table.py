"""Says what the study behind every table is like, to tell its runs from the trials of a study that tunes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tuning.pruners import NoPruner
from tuning.samplers import Grid

EVALUATION: Mapping[str, Any] = MappingProxyType({"every": 1, "clients": "all", "examples": "all"})
"""Keys of `[evaluation]` of that study."""

SEARCH: Mapping[str, Any] = MappingProxyType({"sampler": {"name": Grid().name}, "pruner": {"name": NoPruner().name}})
"""Keys of `[tuning]` of that study, which searches nothing."""


def of_a_table(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return the identity that a study would have if it were that of a table; see `protocol.identity`."""
    found = dict(identity)
    for section, keys in (("evaluation", EVALUATION), ("tuning", SEARCH)):
        if isinstance(own := found.get(section), Mapping):
            found[section] = {**own, **keys}
    return found
