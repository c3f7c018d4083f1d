"""Grows tables from a JSON schema, and mutates them: wrong types, edges, missing and unknown keys, other choices.

Every decision is made by a function that chooses one of several values: of hypothesis, or of a generator.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import raysim
import tuning
from tests.support.strange_values import STRANGE, at_edges, nested

Choose = Callable[[Sequence[Any]], Any]
"""Returns one of the values."""

SPACE = (
    ("client.optimizer.lr", (0.1, 1.0)),
    ("cohort.size", (1, 2)),
    ("server.optimizer.name", ("sgd", "adam")),
    ("rounds", (1, 1_000_000)),
)
"""Keys of a study, and values that suit them."""

Path = tuple[str | int, ...]

Route = tuple[tuple[str, str], ...]
"""Keys from the root to a section, each with the definition that it is to hold."""


class Place(NamedTuple):
    """A value of a grown table: where it is, and the schema of its key."""

    path: Path
    schema: Mapping[str, Any]


class Grown(NamedTuple):
    """A table that a schema allows but for rules between keys, and the places of its values."""

    table: dict[str, Any]
    places: list[Place]


class Mutated(NamedTuple):
    """A table after its mutations, and the path of each."""

    table: dict[str, Any]
    at: list[Path]


class Schema:
    """A JSON schema from which tables grow."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema
        self.names = sorted(_names(schema))
        self.keys = list(schema["properties"])
        self.routes = dict(_routes(schema))

    @classmethod
    def of_experiments(cls) -> Schema:
        """Return the schema of an experiment with its `[tuning]`."""
        schema, tables = raysim.Experiment.model_json_schema(), tuning.TuningSection.model_json_schema()
        schema["$defs"] |= tables.pop("$defs")
        schema["properties"]["tuning"] = tables
        return cls(schema)

    def drawn(self, choose: Choose) -> Mutated:
        """Grow one to four tables of an experiment, one of them with a given section, and mutate them.

        Every fourth stays as it has grown.
        """
        route = self.routes[choose(list(self.routes))]
        keys = [route[0][0]]
        for _ in range(choose((0, 0, 1, 2, 3))):
            keys.append(choose([key for key in self.keys if key not in keys]))
        grown = self.grown(choose, keys, route)
        return mutate(grown, self.names, choose) if choose((True, True, True, False)) else Mutated(grown.table, [])

    def grown(self, choose: Choose, keys: Sequence[str], route: Route = ()) -> Grown:
        """Grow a table with these keys of the schema's root; on the route, each key has the section that it names."""
        places: list[Place] = []
        root = self._schema["properties"]
        return Grown({key: self._value(root[key], choose, (key,), places, route) for key in keys}, places)

    def _value(
        self, schema: Mapping[str, Any], choose: Choose, path: Path, places: list[Place], route: Route = ()
    ) -> Any:
        wanted = route[0][1] if route and route[0][0] == path[-1] else None
        route = route[1:] if wanted else ()
        schema = self._resolved(schema)
        places.append(Place(path, schema))
        if path == ("tuning", "space"):
            return _space(choose, path, places)
        given, schema = schema, self._member(schema, choose, wanted)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return choose(schema["enum"])
        match schema.get("type"):
            case "object":
                return self._table(schema, choose, path, places, route)
            case "array":
                return self._list(schema, choose, path, places)
            case "null":
                return None
            case "boolean":
                return choose((True, False))
            case "integer" | "number":
                return _number(given, schema, choose)
            case "string":
                return choose([each for each in (given.get("default"), "test", "0") if isinstance(each, str)])
        return {}

    def _member(self, schema: Mapping[str, Any], choose: Choose, wanted: str | None) -> Mapping[str, Any]:
        if wanted:
            return self._resolved({"$ref": f"/{wanted}"})
        while members := [*schema.get("anyOf", ()), *schema.get("oneOf", ())]:
            tables = [each for each in members if each.get("type") != "null"]
            schema = self._resolved(choose(tables))
        return schema

    def _resolved(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        while "$ref" in schema:
            schema = {**self._schema["$defs"][schema["$ref"].rpartition("/")[2]], **_without(schema, "$ref")}
        return schema

    def _table(
        self, schema: Mapping[str, Any], choose: Choose, path: Path, places: list[Place], route: Route
    ) -> dict[str, Any]:
        if "properties" not in schema:
            if choose((True, False)):
                return {}
            inner = schema.get("additionalProperties")
            inner = inner if isinstance(inner, Mapping) else {"type": "number"}
            key = choose(("0", "a"))
            return {key: self._value(inner, choose, (*path, key), places)}
        known = schema["properties"]
        forced = {"name", *schema.get("required", ()), *(key for key, _ in route[:1])}
        wanted = [key for key in known if key in forced]
        others = [key for key in known if key not in wanted]
        for _ in range(choose((0, 1, 1, 2))):
            if others:
                wanted.append(others.pop(others.index(choose(others))))
        return {key: self._value(known[key], choose, (*path, key), places, route) for key in wanted}

    def _list(self, schema: Mapping[str, Any], choose: Choose, path: Path, places: list[Place]) -> list[Any]:
        items = schema.get("prefixItems") or [schema["items"]] * choose((1, 1, 2))
        return [self._value(item, choose, (*path, place), places) for place, item in enumerate(items)]


def _space(choose: Choose, path: Path, places: list[Place]) -> dict[str, Any]:
    """Return a space of one or two keys."""
    table: dict[str, Any] = {}
    for _ in range(choose((1, 2))):
        key, values = choose(SPACE)
        kind = choose(("grid", "choices", "log", "uniform", "int"))
        table[key] = {kind: list(values)}
        inside = [(key,), (key, kind), *((key, kind, place) for place in range(len(values)))]
        places += [Place((*path, *each), {}) for each in inside]
    return table


def _routes(schema: Mapping[str, Any]) -> Iterator[tuple[str, Route]]:
    """Yield every definition with a shortest route to it."""
    met: set[str] = set()
    waiting: deque[tuple[Mapping[str, Any], Route]] = deque([(schema, ())])
    while waiting:
        table, route = waiting.popleft()
        for key, inner in table.get("properties", {}).items():
            for name in _referred(inner):
                if name not in met:
                    met.add(name)
                    yield name, (*route, (key, name))
                    waiting.append((schema["$defs"][name], (*route, (key, name))))


def _referred(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield the definitions that a key may hold itself; those in a list are left to chance."""
    if "$ref" in schema:
        yield schema["$ref"].rpartition("/")[2]
    for member in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        yield from _referred(member)


def _without(schema: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {other: value for other, value in schema.items() if other != key}


def _number(given: Mapping[str, Any], schema: Mapping[str, Any], choose: Choose) -> float:
    """Return the key's default or an example, a small number, or the smallest allowed one."""
    least = schema.get("minimum", schema.get("exclusiveMinimum", 0))
    most = schema.get("maximum", schema.get("exclusiveMaximum", 4))
    small = [each for each in (1, 2, 0.5) if least < each < most and (schema["type"] == "number" or each == int(each))]
    default = given.get("default")
    usual = [default] if isinstance(default, int | float) and not isinstance(default, bool) else []
    return float(value) if isinstance(value := choose([*usual, *small] or [least]), float) else int(value)


def _names(schema: Any) -> set[str]:
    """Return the names of all choices."""
    if isinstance(schema, Mapping):
        own = {schema["const"]} if isinstance(schema.get("const"), str) else set()
        return own.union(*map(_names, schema.values()))
    return set().union(*map(_names, schema)) if isinstance(schema, list) else set()


def mutate(grown: Grown, names: Sequence[str], choose: Choose, most: int = 2) -> Mutated:
    """Change up to `most` places of a table; the places lie in it."""
    table, at = copy.deepcopy(grown.table), []
    for _ in range(choose(range(1, most + 1))):
        place = choose(grown.places)
        if (holder := _holder(table, place.path)) is not None:
            at.append(_change(holder, place, names, choose))
    return Mutated(table, at)


def _holder(table: Any, path: Path) -> Any:
    """Return the table or list that holds the value; None if an earlier mutation took it away."""
    for step in path[:-1]:
        if not (isinstance(table, dict) and step in table) and not (
            isinstance(table, list) and isinstance(step, int) and step < len(table)
        ):
            return None
        table = table[step]  # type: ignore[index]
    last = path[-1]
    there = isinstance(table, dict) or (isinstance(table, list) and isinstance(last, int) and last < len(table))
    return table if there else None


def _change(holder: Any, place: Place, names: Sequence[str], choose: Choose) -> Path:
    last = place.path[-1]
    held = holder.get(last) if isinstance(holder, dict) else holder[last]
    match choose(("strange", "strange", "strange", "edge", "edge", "remove", "unknown", "name", "wrap")):
        case "strange":
            holder[last] = choose(STRANGE)
        case "edge":
            holder[last] = choose(at_edges(place.schema) or STRANGE)
        case "remove" if isinstance(holder, dict):
            holder.pop(last, None)
        case "unknown" if isinstance(held, dict):
            key = choose(("unknown", "", "nane", "lr ", "名前", "\ud800", "a.b", "a" * 1_000))
            held[key] = choose(STRANGE)
            return (*place.path, key)
        case "name" if isinstance(held, dict):
            held["name"] = choose(names)
        case _:
            holder[last] = choose(([held], {"name": held}, {str(last): held}, [held, held], nested(40, table=True)))
    return place.path
