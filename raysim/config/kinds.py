"""Describes the values of a key in words, from the annotations of a section."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args, get_origin

import annotated_types
import tomlkit
from pydantic.fields import FieldInfo

from raysim.config import toml_arrays
from raysim.config.section import Section
from raysim.config.values import written

PLAIN = MappingProxyType({Any: "any value"})
BITS_64 = (-(2**63), 2**63)
"""The smallest integer, and the first that is too large."""

FEW = 3
"""More words than this are separated by commas."""


def toml(value: Any) -> str:
    """Return the value as TOML, in one line, without keys that have no value, which TOML cannot write.

    >>> toml({"a": None, "b": [1, {"c": None, "d": 2}]})
    '{b = [1, {d = 2}]}'
    """
    written: str = tomlkit.item(_inline(value)).as_string()
    return written.strip()


def takes(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """Return the values that an annotation allows, in words; `None`, which a file cannot write, is left out."""
    annotation, metadata = _opened(annotation, metadata)
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return _either(f"`{toml(value)}`" for value in args)
    if origin in (typing.Union, types.UnionType):
        members = [member for member in args if member is not types.NoneType]
        sections = [member for member in members if _is_section(_opened(member)[0])]
        rest = [takes(member, metadata) for member in members if member not in sections]
        return _either([*rest, *(["a table"] if sections else [])])
    if origin is tuple:
        return _list(args, metadata)
    if origin is dict:
        return "a table"
    if _is_section(annotation):
        return "a table"
    if annotation is bool:
        return "`true` or `false`"
    if annotation in (int, float):
        return _number(annotation, metadata)
    if annotation is str:
        return _text(metadata)
    return PLAIN[annotation]


def sections(annotation: Any) -> tuple[type[Section], ...]:
    """Return the sections that an annotation allows: one, the choices of a key, or none."""
    annotation, _ = _opened(annotation)
    if _is_section(annotation):
        return (annotation,)
    return tuple(found for member in get_args(annotation) for found in sections(member))


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Section)


def _opened(annotation: Any, metadata: Iterable[Any] = ()) -> tuple[Any, list[Any]]:
    """Return the annotation without `Annotated`, and its constraints."""
    constraints = list(metadata)
    while get_origin(annotation) is Annotated:
        annotation, *more = get_args(annotation)
        for each in more:
            constraints += each.metadata if isinstance(each, FieldInfo) else [each]
    return annotation, constraints


def _either(words: Iterable[str]) -> str:
    listed = list(dict.fromkeys(words))
    if len(listed) > FEW:
        return f"{', '.join(listed[:-1])} or {listed[-1]}"
    return " or ".join(listed)


def _list(args: tuple[Any, ...], metadata: list[Any]) -> str:
    if args[-1] is not Ellipsis:
        return f"a list: {', then '.join(takes(each) for each in args)}"
    least = next((each.min_length for each in metadata if isinstance(each, annotated_types.MinLen)), 0)
    most = _most(metadata)
    size = f" of at least {least}" if least else ""
    if most:
        size = f" of {least} to {written(most)}" if least else f" of at most {written(most)}"
    return f"a list{size}, each {takes(args[0])}"


def _most(metadata: Iterable[Any]) -> int | None:
    """Return the largest length that a list, a table or a text may have."""
    return next((each.max_length for each in metadata if isinstance(each, annotated_types.MaxLen)), None)


def _text(metadata: Iterable[Any]) -> str:
    most = _most(metadata)
    return f"a text of at most {written(most)} characters" if most else "a text"


def _number(kind: type, metadata: list[Any]) -> str:
    noun = "a whole number" if kind is int else "a number"
    low: tuple[Any, str, str] | None = None
    high: tuple[Any, str, str] | None = None
    for constraint in metadata:
        match constraint:
            case annotated_types.Ge(ge=bound):
                low = bound, "[", "≥"
            case annotated_types.Gt(gt=0) if kind is int:
                low = 1, "[", "≥"
            case annotated_types.Gt(gt=bound):
                low = bound, "(", ">"
            case annotated_types.Le(le=bound):
                high = bound, "]", "≤"
            case annotated_types.Lt(lt=bound):
                high = bound, ")", "<"
    if low and high:
        if (low[0], high[0]) == BITS_64:
            return f"{noun} of 64 bits"
        return f"{noun} in {low[1]}{written(low[0])}, {written(high[0])}{high[1]}"
    only = low or high
    return f"{noun} {only[2]} {written(only[0])}" if only else noun


def _inline(value: Any) -> Any:
    """Return plain values, with tables in one line."""
    if isinstance(value, Section):
        value = value.model_dump(mode="json", by_alias=True)
    if isinstance(value, dict):
        table = tomlkit.inline_table()
        table.update({key: _inline(each) for key, each in value.items() if each is not None})
        return table
    if isinstance(value, list | tuple):
        return toml_arrays.array(tomlkit.item(_inline(each)) for each in value)
    return value
