"""Checks what a table's file holds: columns of figures, a list of numbers for each client, and rows of known runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from raysim.run_folder.tables import column
from tuning.client_sums import weight_column
from tuning.space import Space
from tuning.table.record import ACCURACIES, LISTS, LOSSES, ScoredClients, configurations

COUNTED = ("round", "clients", "rejected", "examples", "bytes_down", "bytes_up", "simulated_time_s")
"""Columns of amounts."""

PLACES = ("configuration", "seed")
"""Columns that say of which run a row is."""


MOST_EXAMPLES = 1 << 48
"""Of a client."""

LARGEST = 1e150
"""Of finite figures: sums of squares of larger ones are infinite."""


def clients_of(about: Mapping[str, Any]) -> ScoredClients:
    """Return the clients of a table's metadata; ValueError if they are not names, and what each of them weighs."""
    names, examples = about["names"], about["examples"]
    if not (isinstance(names, list) and names and all(isinstance(name, str) for name in names)):
        raise ValueError("its clients have no names")
    if not (
        isinstance(examples, list)
        and len(examples) == len(names)
        and all(type(n) is int and 0 < n < MOST_EXAMPLES for n in examples)
    ):
        raise ValueError(f"its {len(names)} clients need a number of examples each, 1 or more")
    weights = {figure: about[column] for figure in LISTS.values() if (column := weight_column(figure)) in about}
    for figure, each in weights.items():
        if not (isinstance(each, list) and len(each) == len(names) and all(map(_is_weight, each))):
            raise ValueError(f"its {len(names)} clients need a {weight_column(figure)} each, 0 or more")
    return ScoredClients(tuple(names), tuple(examples), {figure: tuple(each) for figure, each in weights.items()})


def _is_weight(found: object) -> bool:
    # `true` is an int of Python, and no weight.
    return isinstance(found, int | float) and not isinstance(found, bool) and 0 <= found < MOST_EXAMPLES


def seeds_of(found: object) -> tuple[int, ...]:
    """Return the seeds of a table's metadata; ValueError if they are not different whole numbers."""
    if not (isinstance(found, list) and found and all(type(seed) is int for seed in found)):
        raise ValueError("its seeds are not whole numbers")
    if len(set(found)) != len(found):
        raise ValueError(f"its seeds {found} are not different")
    return tuple(found)


def vary_of(found: object) -> tuple[str, ...] | None:
    """Return what varies with the seed, of a table's metadata; ValueError if it is nothing that can."""
    if found is None:
        return None
    if not (isinstance(found, list) and all(one in ("data", "model", "cohort") for one in found)):
        raise ValueError(f"what varies with the seed is {found!r}")
    return tuple(found)


def size_of(space: Space) -> int:
    """Return the number of configurations of a table's space; ValueError if it is not a grid, or too large for one."""
    if space.grid is None:
        raise ValueError("its space is not a grid")
    return len(configurations(space))


def check_columns(found: pa.Table, space: Space, size: int, seeds: Sequence[int], clients: ScoredClients) -> None:
    """Raise ValueError unless the columns of a table are those that `raysim table` writes."""
    for name in (*PLACES, "round"):
        if not pa.types.is_integer(found.schema.field(name).type) or found[name].null_count:
            raise ValueError(f"column {name!r} has no whole number in each row")
    if bad := {place for place in found["configuration"].to_pylist() if not 0 <= place < size}:
        raise ValueError(f"configuration {min(bad)} is none of the grid's 0 to {size - 1}")
    if bad := set(found["seed"].to_pylist()).difference(seeds):
        raise ValueError(f"seed {min(bad)} is none of its {list(seeds)}")
    for field in found.schema:
        if field.name in (LOSSES, ACCURACIES, *space.dimensions):
            continue
        if not _holds_numbers_or_truths(field.type):
            raise ValueError(f"column {field.name!r} holds {field.type}, and no figures")
        if any(LARGEST < abs(value) < math.inf for value in _known(found, field.name)):
            raise ValueError(f"column {field.name!r} has numbers beyond {LARGEST:g}")
    for name in COUNTED:
        if any(value < 0 for value in _known(found, name)):
            raise ValueError(f"column {name!r} has numbers below 0")
    for name in (LOSSES, ACCURACIES):
        _check_scores(found[name], name, len(clients.names))
    if any(not 0 <= value <= 1 for value in _known(found, "eval/validation/accuracy")):
        raise ValueError("column 'eval/validation/accuracy' has numbers that are not shares of examples")
    if _known(found, "eval/validation/accuracy") and any(set(row) == {None} for row in found[ACCURACIES].to_pylist()):
        raise ValueError(f"{ACCURACIES} has no number of any client in a row")
    _check_values(found, space)


def _known(found: pa.Table, name: str) -> list[float]:
    known: list[float] = found[name].drop_null().to_pylist() if name in found.column_names else []
    return known


def _holds_numbers_or_truths(kind: pa.DataType) -> bool:
    """Whether a column of this type holds numbers or truth values of any width, or nothing."""
    of = pa.types
    return bool(of.is_integer(kind) or of.is_floating(kind) or of.is_boolean(kind) or of.is_null(kind))


def _check_scores(found: pa.ChunkedArray, name: str, count: int) -> None:
    kind = found.type
    if not (pa.types.is_list(kind) and pa.types.is_floating(kind.value_type)):
        raise ValueError(f"column {name!r} holds {kind}, and no list of numbers")
    for row in found.to_pylist():
        if row is None or len(row) != count:
            raise ValueError(f"{name} has {0 if row is None else len(row)} numbers for {count} clients")
        if name == LOSSES and None in row:
            raise ValueError(f"{name} lacks the number of a client")
        if name == ACCURACIES and any(value is not None and not 0 <= value <= 1 for value in row):
            raise ValueError(f"{name} has numbers that are not shares of examples")


def _check_values(found: pa.Table, space: Space) -> None:
    """Raise ValueError if a row has another value of a varied key than its configuration."""
    places, of_all = found["configuration"].to_pylist(), configurations(space)
    for key in space.dimensions:
        if key not in found.column_names:
            raise ValueError(f"column {key!r} is missing, whose values it varies")
        written = column([values[key] for values in of_all]).to_pylist()
        for place, value in zip(places, found[key].to_pylist(), strict=True):
            if value != written[place]:
                raise ValueError(
                    f"configuration {place} has {key} = {value!r:.60}, and the grid has {written[place]!r:.60}"
                )
