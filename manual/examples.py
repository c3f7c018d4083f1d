"""Finds an example value for each key.

It is the schema's example or one of `BY_KEY`; else a value from a file of configs/; else another choice than the
default, or the default; else a plain value that the key accepts.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from manual.pages import ROOT

Used = Mapping[tuple[str, str | None], Any]
"""(dotted key, name of its choice) -> a value from a file of configs/."""

BY_KEY = {
    "root": "data/published",
    "noisyag_root": "data/agnews-noisyag-10k",
    "path": "models/distilbert",
    "train": "train.parquet",
    "validation": "validation.parquet",
    "test": "test.parquet",
    "shape": (28, 28),
    "workers": 4,
    "gpus_per_worker": 0.25,
    "chunk_size": 32,
    "schedule": ({"round": 100, "epochs": 2},),
    "cohorts": (("a", "b"), ("b", "c")),
    "rounds": {"0": ["a", "b"]},
    "percentile": 5,
    "window": (50, 99),
    "storage": "sqlite:///study.db",
    "space": {"client.optimizer.lr": {"log": [0.001, 1.0]}},
}
"""Examples for keys whose other examples would not help."""

PLAIN = (0.5, 3)
"""Values for keys without any other example: the first that the key accepts."""


def example(path: str, choice: str | None, field: FieldInfo, used: Used) -> Any:
    """Return a value of the key at the dotted `path`; None if none is known."""
    if field.examples:
        return field.examples[0]
    by_key = BY_KEY.get(path.rpartition(".")[2])
    if by_key is not None and takes(field, by_key):
        return by_key
    default = None if field.is_required() else field.get_default(call_default_factory=True)
    found = used.get((path, choice))
    if found is not None and found != default:
        return found
    if get_origin(field.annotation) is Literal:
        values = get_args(field.annotation)
        return next((value for value in values if value != default), values[0])
    if field.annotation is bool:
        return not default
    if default is not None:
        return default
    return next((value for value in PLAIN if takes(field, value)), None)


def takes(field: FieldInfo, value: Any) -> bool:
    """Return whether the key alone accepts the value from a file."""
    # `None` is not an example.
    wanted: Any = Annotated[field.annotation, *field.metadata, None]
    try:
        TypeAdapter(wanted).validate_python(value)
    except ValidationError:
        return False
    return True


@cache
def used_in_configs() -> Used:
    """Return the values in the files of configs/."""
    found: dict[tuple[str, str | None], Any] = {}
    for file in sorted((ROOT / "configs").rglob("*.toml")):
        found = {**dict(_flat(tomllib.loads(file.read_text(encoding="utf-8")), "")), **found}
    return found


def _flat(table: Mapping[str, Any], at: str) -> Iterator[tuple[tuple[str, str | None], Any]]:
    for key, value in table.items():
        path = f"{at}.{key}".removeprefix(".")
        if isinstance(value, dict):
            yield from _flat(value, path)
        else:
            yield (path, table.get("name") if at else None), value
