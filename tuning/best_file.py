"""Writes `best.toml`: the experiment with the best values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from raysim import Experiment, ExperimentError, rewritten
from raysim.config import toml, toml_arrays
from raysim.config.overrides import leaves


def text(experiment: Experiment, source: str | None, heading: str) -> str:
    """Return TOML that loads as the experiment.

    Args:
        experiment: the file's meaning.
        source: the tuned file, whose comments and order are kept; None: a complete record is written.
        heading: comment lines at the top of the file.
    """
    plain = json.loads(experiment.to_json())
    if source is not None:
        found = _from(source, plain)
        if found is not None:
            return _under(heading, found)
    return _under(heading, toml_arrays.dumps(without_none(plain)))


def _from(source: str, values: Mapping[str, Any]) -> str | None:
    """Return the source with other values; None if no such rewriting loads as `values`."""
    try:
        table = toml.loads(source)
        table.pop("tuning", None)
        before = json.loads(Experiment.model_validate(table).to_json())
        old, new = dict(leaves(before)), dict(leaves(values))
        changed = {key: value for key, value in new.items() if old.get(key) != value}
        gone = [key for key in old if key not in new]
        text = rewritten(source, changed, ["tuning", *gone])
        read_back = json.loads(Experiment.model_validate(toml.loads(text)).to_json())
    except (ExperimentError, toml.TomlError):
        # Keys that are valid only together need the complete record. A script may pass any text.
        return None
    return text if read_back == values else None


def without_none(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table without keys that have no value, which TOML cannot write, in its lists' tables too."""
    return {key: _within(value) for key, value in table.items() if value is not None}


def _within(value: Any) -> Any:
    if isinstance(value, Mapping):
        return without_none(value)
    return [_within(each) for each in value] if isinstance(value, list | tuple) else value


def _under(heading: str, body: str) -> str:
    return "".join(f"# {line}\n" for line in heading.splitlines()) + body
