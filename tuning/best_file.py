"""`best.toml`: the experiment with the best values, as a file of the same kind."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from typing import Any

import tomlkit

from raysim import Experiment, ExperimentError, rewritten
from raysim.config.overrides import leaves


def text(experiment: Experiment, source: str | None, heading: str) -> str:
    """TOML that loads as the experiment.

    Args:
        experiment: what the file is to mean.
        source: the file it was tuned from, whose comments and order are kept; None: a complete record is written.
        heading: comment lines that the file begins with.
    """
    plain = json.loads(experiment.to_json())
    if source is not None:
        found = _from(source, plain)
        if found is not None:
            return _under(heading, found)
    return _under(heading, tomlkit.dumps(_without_none(plain)))


def _from(source: str, wanted: Mapping[str, Any]) -> str | None:
    """The source with other values; None where that cannot be made to mean what is wanted."""
    given = tomllib.loads(source)
    given.pop("tuning", None)
    try:
        before = json.loads(Experiment.model_validate(given).to_json())
        old, new = dict(leaves(before)), dict(leaves(wanted))
        changed = {key: value for key, value in new.items() if old.get(key) != value}
        gone = [key for key in old if key not in new]
        made = rewritten(source, changed, ["tuning", *gone])
        meant = json.loads(Experiment.model_validate(tomllib.loads(made)).to_json())
    except ExperimentError:
        # Keys that only mean something together are written out instead.
        return None
    return made if meant == wanted else None


def _without_none(table: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(value) if isinstance(value, Mapping) else value
        for key, value in table.items()
        if value is not None
    }


def _under(heading: str, body: str) -> str:
    return "".join(f"# {line}\n" for line in heading.splitlines()) + body
