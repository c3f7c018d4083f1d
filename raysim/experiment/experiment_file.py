"""Reads experiments from TOML files, with changes; makes the smallest one of a source of data."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

from raysim.config import messages, overrides, toml
from raysim.config.call_advice import advised
from raysim.config.plain import plain, shown
from raysim.data.field import OF_TABLES, TABLES
from raysim.data.section import FORMS, AnyData
from raysim.errors import ExperimentError
from raysim.experiment.experiment import Experiment
from raysim.storage import nearby
from raysim.storage.reading import MOST_BYTES, at_most
from raysim.storage.remote.uri import check_is_path

log = logging.getLogger("raysim")

SOURCE_CLIENTS = 100
"""Number of clients of a source without natural clients, if it is prepared by its name."""


@advised(f"load(path, set, unset) takes as set {overrides.TAKEN['set']}")
def load(path: str | Path, set: Iterable[str] = (), unset: Iterable[str] = ()) -> Experiment:
    """Read an experiment from a TOML file, with changes.

    Args:
        path: the file.
        set: changes such as "server.optimizer.lr=0.5", in order; values are TOML, or a bare string. A changed `name`
            drops the other keys of the choice that it replaces.
        unset: keys to remove, before anything is set.

    Raises:
        ExperimentError: the file or a change cannot be read, or the result is not a valid experiment.
    """
    try:
        table = toml.loads(text_of(path))
    except toml.TomlError as error:
        raise ExperimentError(f"{path} is not valid TOML: {error}") from None
    try:
        table = plain(table)
    except ExperimentError as error:
        raise ExperimentError(f"{path}: {error}") from None
    changed: Mapping[str, Any] = overrides.apply(table, set, unset)
    for key, lost in overrides.replaced(overrides.apply(table, (), unset), changed):
        is_choice = key.endswith(".name")
        keys = ", ".join(f"{key.removesuffix('.name')}.{each}" for each in lost)
        how = "changed, which drops the keys of the former choice" if is_choice else "replaced whole, which drops"
        log.warning("%s was %s: %s of %s", key, how, keys, path)
    try:
        return Experiment.model_validate(changed)
    except ExperimentError as error:
        raise ExperimentError(f"{path}: {error}") from None


def text_of(path: str | Path) -> str:
    """Return the text of an experiment's file, without a mark of its encoding.

    Raises:
        ExperimentError: the file cannot be read, or is not text in UTF-8.
    """
    if not isinstance(path, str | os.PathLike):
        raise ExperimentError(
            f"path must be that of a TOML file, but got {shown(path)}: Experiment.model_validate(mapping) takes tables."
        )
    check_is_path(path, "An experiment's file", ExperimentError)
    if str(path).endswith(TABLES):
        raise ExperimentError(f"{path} is a table of data, not an experiment: {OF_TABLES}.")
    try:
        # A pipe is welcome: the shell's <(...) is one.
        with open(path, "rb") as file:
            written = at_most(file, MOST_BYTES + 1)
        if len(written) > MOST_BYTES:
            raise ExperimentError(f"{path} is not valid TOML: it has more than {MOST_BYTES:,} bytes")
        return toml.decoded(written)
    except FileNotFoundError:
        raise ExperimentError(
            f"There is no experiment file {path}{nearby.nearest(Path(path))}; `raysim configs` has those of the papers."
        ) from None
    except toml.TomlError as error:
        raise ExperimentError(f"{path} is not valid TOML: {error}") from None
    except OSError as error:
        raise ExperimentError(f"{shown(str(path))} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise ExperimentError(f"{shown(str(path))} cannot be read: {error}") from None


def sources() -> Mapping[str, Any]:
    """Return the sections of all sources of data by name."""
    return {kind.model_fields["name"].default: kind for kind in get_args(AnyData)}


def of_source(name: str, root: str | None, set: Iterable[str] = ()) -> Experiment:
    """Return a minimal experiment with a source's data, to prepare them by the source's name.

    Args:
        name: of the source.
        root: the folder of its files; None: the default ones.
        set: changes, as for `load`.

    Raises:
        ExperimentError: there is no such source, or a change does not fit.
    """
    known = sources()
    if name not in known:
        form = f" {name!r} is {FORMS[name]}." if name in FORMS else ""
        raise ExperimentError(
            f"{name!r} is neither a file nor a source of data: the sources are {', '.join(known)}"
            f"{messages.nearest(name, list(known))}.{form}"
        )
    data: dict[str, Any] = {"name": name, **({"root": root} if root else {})}
    if known[name].model_fields["clients"].is_required():
        data["clients"] = SOURCE_CLIENTS
    return Experiment.model_validate(overrides.apply({"data": data, "cohort": {"size": 1}}, set, ()))
