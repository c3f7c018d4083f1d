"""Writes what users rely on as text: the signatures of the public names, and the keys of an experiment file.

`python -m tests.support.snapshot` replaces the stored texts, which tests/test_frozen.py compares with the code.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

from pydantic import BaseModel

import raysim
import raysim.data
import raysim.server
import raysim.testing
import tuning
from manual import configuration
from raysim import Section
from raysim.config import kinds

FOLDER = Path(__file__).parent.parent / "snapshots"

MODULES = (raysim, raysim.server, raysim.data, raysim.testing, tuning)
"""What people import from."""

ORDERED = {
    inspect.Parameter.POSITIONAL_ONLY: "/",
    inspect.Parameter.POSITIONAL_OR_KEYWORD: "",
    inspect.Parameter.VAR_POSITIONAL: "*",
}
"""Kinds of parameters whose order counts -> the mark before their names."""


def api() -> list[str]:
    """A line for each public name, and below it one for each of its parameters, attributes and methods."""
    return [line for module in MODULES for name in module.__all__ for line in _public(module, name)]


def schema() -> list[str]:
    """A line for each key of an experiment file: its table, the choice it belongs to, what it takes, its default."""
    lines = list(_keys("", raysim.Experiment))
    for table in configuration.described():
        for section in table.sections:
            lines += _keys(f"{table.path}.", section)
    return lines


SNAPSHOTS: dict[str, Callable[[], list[str]]] = {"api.txt": api, "schema.txt": schema}


def _public(module: ModuleType, name: str) -> Iterator[str]:
    value = getattr(module, name)
    if not inspect.isclass(value):
        yield f"{module.__name__}.{name}{_outcome(value)}"
        yield from (f"    {line}" for line in _parameters(value))
        return
    bases = ", ".join(base.__name__ for base in value.__bases__ if base is not object)
    yield f"class {module.__name__}.{name}({bases})"
    plain = issubclass(value, BaseModel | Exception | dict) or _is_protocol(value)
    made_of = [] if plain else list(_parameters(value))
    yield from (f"    {line}" for line in made_of)
    for attribute, lines in sorted(_attributes(value).items()):
        # A record's fields stand among what it is made of.
        if not any(line.startswith(f"{attribute}{lines[0]}") for line in made_of):
            yield f"    .{attribute}{lines[0]}"
            yield from (f"        {line}" for line in lines[1:])


def _is_protocol(value: type) -> bool:
    return bool(getattr(value, "_is_protocol", False))


def _attributes(of: type) -> dict[str, list[str]]:
    """The public attributes that our code gives a class, each with its lines; keys of sections stand in the schema."""
    found: dict[str, list[str]] = {}
    for record in reversed([base for base in of.__mro__ if base.__module__.startswith(("raysim", "tuning"))]):
        keys = getattr(record, "model_fields", {})
        for name, annotation in inspect.get_annotations(record).items():
            if not name.startswith("_") and name not in keys:
                found[name] = [f": {_text(annotation)}"]
        for name, value in vars(record).items():
            if name.startswith("_") or (name in found and not callable(value)):
                continue
            function = getattr(value, "__func__", value)
            if isinstance(value, property):
                assert value.fget is not None
                found[name] = [f": {inspect.get_annotations(value.fget).get('return')} (property)"]
            elif inspect.isfunction(function):
                found[name] = [f"(){_outcome(function)}", *_parameters(function)]
    return found


def _outcome(function: Callable[..., Any]) -> str:
    return f" -> {inspect.signature(function).return_annotation}"


def _parameters(function: Callable[..., Any]) -> Iterator[str]:
    """A line each: those whose order counts in order, those by keyword behind `*,` by name."""
    by_keyword: dict[str, str] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        given = parameter.default
        shown = getattr(given, "__name__", None) or re.sub(r"<function [^ ]* at [^>]*>", "a function", repr(given))
        default = "" if given is parameter.empty else f" = {shown}"
        annotation = "" if parameter.annotation is parameter.empty else f": {_text(parameter.annotation)}"
        if name in ("self", "cls"):
            continue
        if parameter.kind in ORDERED:
            yield f"{ORDERED[parameter.kind]}{name}{annotation}{default}"
        elif parameter.kind is parameter.KEYWORD_ONLY:
            by_keyword[name] = f"{annotation}{default}"
        elif record := re.fullmatch(r"(?:typing\.)?Unpack\[([\w.]+)\]", str(parameter.annotation)):
            by_keyword |= _of_typed_dict(_resolved(record[1].rpartition(".")[2], function))
        else:
            by_keyword[f"**{name}"] = annotation
    yield from (f"*, {name}{by_keyword[name]}" for name in sorted(by_keyword))


def _text(annotation: Any) -> str:
    return str(getattr(annotation, "__forward_arg__", annotation))


def _of_typed_dict(record: Any) -> dict[str, str]:
    """Its keys as keyword parameters: one that may be left out, and may be None, has that default."""
    found = {}
    for key, annotation in record.__annotations__.items():
        text = _text(annotation)
        default = "" if key in record.__required_keys__ else " = None" if text.endswith("None") else " = absent"
        found[key] = f": {text}{default}"
    return found


def _resolved(name: str, function: Callable[..., Any]) -> Any:
    """What a name in an annotation stands for, imported for type checking only or not."""
    module = import_module(function.__module__)
    if hasattr(module, name):
        return getattr(module, name)
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom) and node.module and name in {each.name for each in node.names}:
            return getattr(import_module(node.module), name)
    raise LookupError(f"{function.__module__} neither defines nor imports {name}")


def _keys(path: str, section: type[Section]) -> Iterator[str]:
    name = section.model_fields.get("name")
    chosen = get_args(name.annotation)[0] if name and len(get_args(name.annotation)) == 1 else None
    for field_name, field in section.model_fields.items():
        default = "required" if field.is_required() else _written(field.get_default(call_default_factory=True))
        whose = f" [{chosen}]" if chosen and field_name != "name" else ""
        yield f"{path}{field.alias or field_name}{whose}: {kinds.takes(field.annotation, field.metadata)} = {default}"


def _written(default: Any) -> str:
    if isinstance(default, Section):
        # What is in it stands at its keys.
        return getattr(default, "name", "its keys' defaults")
    return "none" if default is None else kinds.toml(default)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file, lines in SNAPSHOTS.items():
        (FOLDER / file).write_text("\n".join(lines()) + "\n", encoding="utf-8")
