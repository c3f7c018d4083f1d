"""Makes small experiments with one choice of one key, or with two: what a method does, and what it goes with."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from typing import Any, NamedTuple

from manual import examples
from manual.pages import ROOT
from raysim.config import kinds, listing
from raysim.config.section import Section
from raysim.engine.plan.plan import Plan
from raysim.engine.plan.resolve import resolve
from raysim.errors import RaysimError
from raysim.experiment.experiment import Experiment
from raysim.experiment.keys import name_key

LEFT_OUT = ("metric",)
"""Kinds that do not change a model."""

CLIENTS = 100
BASE: Mapping[str, Any] = {
    "name": "method",
    "rounds": 2,
    "data": {"name": "digits", "clients": CLIENTS, "test_clients": "partition"},
    # A hundred thousand numbers: the bytes of compressed vectors are those of a usual size.
    "model": {"name": "mlp", "hidden": [1_333]},
    "client": {"optimizer": {"lr": 0.1}, "local_steps": 2},
    "cohort": {"size": 10},
    "engine": {"workers": 0},
}
"""The experiment of which a method changes one key."""

SIZES = (10, CLIENTS, None)
"""Of cohorts: some methods need all clients, and some samplers have no size."""

_NOISE = {"noise_multiplier": 1.0}

ALSO: Mapping[str, Mapping[str, Any]] = {
    "replay": {"cohorts": [["0", "1", "2", "3", "4", "5"]] * 2},
    **dict.fromkeys(("gaussian", "tree", "banded", "local", "distributed"), _NOISE),
}
"""Keys that a choice needs though none of them must be given."""

_ADAGRAD = {"client": {"optimizer": {"name": "adagrad", "lr": 0.1}}}
_CLIP = {"server": {"clip": {"fixed": 1.0}}}
_TURNS = {"cohort": {"sampler": {"name": "cyclic", "groups": 5}}}

BESIDE: Mapping[str, Mapping[str, Any]] = {
    "gaussian": _CLIP,
    "tree": {**_CLIP, **_TURNS},
    "banded": {**_CLIP, **_TURNS},
    "local": _CLIP,
    "distributed": _CLIP,
    # With SGD its a_i are numbers.
    "local_adaptivity": _ADAGRAD,
}
"""Tables that a choice needs, or is meant for, beside its own; another choice replaces them."""


class Method(NamedTuple):
    """A choice of a key: what `raysim parts` lists, and the dotted key."""

    part: listing.ListedPart
    key: str

    @property
    def table(self) -> dict[str, Any] | str:
        """The choice with a value for every key that must be given; a word, where the key takes words."""
        return _table(self.key, self.part.name)


def methods() -> list[Method]:
    """Return every built-in choice."""
    keys = {kind: key for kind, (_, _, key) in listing.ALL.items() if kind not in LEFT_OUT}
    listed = listing.parts(metadata.version("raysim"))
    return [Method(each, keys[each.kind]) for each in listed if each.package == "raysim" and each.kind in keys]


def refusal(method: Method, other: Method | None) -> str | None:
    """Return why two choices, or a choice and FedGLAD (None), are refused together; None if they are not."""
    beside = {"server": {"glad": {}}} if other is None else nested(other)
    needed = _merged(_needed(method), {} if other is None else _needed(other))
    changes = _merged(needed, _merged(nested(method), beside))
    whys = [why(_sized(changes, size)) for size in SIZES]
    # One about the size is of the sampler that is needed beside, not of the choice.
    return min(whys, key=lambda each: (each or "").startswith("cohort: size")) if all(whys) else None


def why(experiment: Mapping[str, Any]) -> str | None:
    """Return why an experiment is refused; None if it is not."""
    try:
        Experiment.model_validate(experiment)
    except RaysimError as error:
        return " ".join(str(error).split())
    return None


def _sized(changes: Mapping[str, Any], size: int | None) -> dict[str, Any]:
    given = _merged(BASE, changes)
    given["cohort"] = {key: value for key, value in {**given["cohort"], "size": size}.items() if value is not None}
    return given


def nested(method: Method) -> dict[str, Any]:
    """Return the tables of an experiment with this choice."""
    value: Any = [method.table] if method.part.kind == "transform" else method.table
    for key in reversed(method.key.split(".")):
        value = {key: value}
    found: dict[str, Any] = value
    return found


def plan_of(method: Method) -> Plan:
    """Resolve a small experiment with this choice.

    Raises:
        RaysimError: it is refused with every size of cohorts.
    """
    first: RaysimError | None = None
    for size in SIZES:
        try:
            return resolve(Experiment.model_validate(_sized(_merged(_needed(method), nested(method)), size)))
        except RaysimError as error:
            first = first or error
    assert first is not None
    raise first


def _needed(method: Method) -> Mapping[str, Any]:
    return BESIDE.get(method.part.name, {})


def _merged(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any]:
    both = {key: _merged(left[key], right[key]) for key in left.keys() & right.keys() if _tables(left[key], right[key])}
    return {**left, **right, **both}


def _tables(left: Any, right: Any) -> bool:
    # A choice is replaced as a whole.
    return isinstance(left, Mapping) and isinstance(right, Mapping) and not {"name", "penalty"} & right.keys()


def _table(key: str, name: str) -> dict[str, Any] | str:
    section = _section(key, name)
    if section is None:
        return name
    used = examples.used_in_configs()
    named = name_key(section)
    wanted = {k: field for k, field in section.model_fields.items() if field.is_required()}
    found = {k: examples.example(f"{key}.{k}", name, field, used) for k, field in wanted.items()}
    return {named: name, **ALSO.get(name, {}), **{k: _plain(value) for k, value in found.items()}}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _section(key: str, name: str) -> type[Section] | None:
    """Return the section of a choice; None if it is a word."""
    *above, last = key.split(".")
    holder: type[Section] = Experiment
    for each in above:
        holder = kinds.sections(holder.model_fields[each].annotation)[0]
    for section in kinds.sections(holder.model_fields[last].annotation):
        if section.model_fields["name"].default == name:
            return section
    return None


def shown_in(method: Method) -> str:
    """Return the first config that names the choice, without its ending; empty if none does."""
    usual = _usual(method.key)
    for file, table in configs():
        at: Any = table
        for key in method.key.split("."):
            at = at.get(key) if isinstance(at, dict) else None
        if (at.get("name", at.get("penalty", usual)) if isinstance(at, dict) else at) == method.part.name:
            return file
    return ""


@cache
def _usual(key: str) -> str:
    """Return the choice that a table without a name is: the first."""
    return next(each.part.name for each in methods() if each.key == key)


@cache
def configs() -> list[tuple[str, dict[str, Any]]]:
    """Return the files of configs/ without their endings, and their tables."""
    folder = ROOT / "configs"
    return [
        (file.relative_to(folder).with_suffix("").as_posix(), tomllib.loads(file.read_text(encoding="utf-8")))
        for file in sorted(folder.rglob("*.toml"))
    ]
