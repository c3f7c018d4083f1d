"""Lists the choices of the experiment's schema, and those that some experiments use.

A choice is a named section of a union, a text or truth value of a key, or any other key that can be given. It is called
by the class that declares its key, so that one use of a partition counts, whatever the source.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel


def choices(section: type[BaseModel]) -> set[str]:
    """Every choice below a section."""
    found: set[str] = set()
    seen: set[type[BaseModel]] = set()
    waiting = [section]
    while waiting:
        kind = waiting.pop()
        if kind in seen:
            continue
        seen.add(kind)
        for name, field in kind.model_fields.items():
            leaves, at = list(_leaves(field.annotation)), _key(kind, name)
            waiting += [leaf for leaf in leaves if isinstance(leaf, type) and issubclass(leaf, BaseModel)]
            texts = [leaf for leaf in leaves if isinstance(leaf, str)]
            truths = [str(truth) for truth in (True, False) if bool in leaves]
            found |= {f"{at} = {value}" for value in (*texts, *truths)}
            if any(isinstance(leaf, type) and leaf is not bool for leaf in leaves):
                found.add(at)
    return found


def used(section: BaseModel) -> set[str]:
    """The choices that an experiment uses: keys where they are given, values whether given or not."""
    found: set[str] = set()
    for name in type(section).model_fields:
        value, at = getattr(section, name), _key(type(section), name)
        if name in section.model_fields_set:
            found.add(at)
        if isinstance(value, str | bool):
            found.add(f"{at} = {value}")
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, BaseModel):
                found |= used(part)
            elif isinstance(part, str):
                found.add(f"{at} = {part}")
    return found


def unused(section: type[BaseModel], experiments: Iterable[BaseModel], excused: Container[str]) -> list[str]:
    """The choices below a section that no experiment uses and nothing excuses; a source's root is only a path."""
    left = choices(section).difference(*map(used, experiments))
    return sorted(choice for choice in left if choice not in excused and not choice.endswith(".root"))


def _leaves(annotation: Any) -> Iterator[Any]:
    """The classes and literal values that an annotation is made of."""
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    elif get_origin(annotation) is dict:
        yield dict
    elif arguments := get_args(annotation):
        for argument in arguments:
            yield from _leaves(argument)
    elif isinstance(annotation, type) and annotation is not type(None):
        yield annotation


def _key(kind: type[BaseModel], name: str) -> str:
    """The key, by the class that declares it and the last part of its module: several classes are called alike."""
    home = next(base for base in reversed(kind.__mro__) if name in getattr(base, "__annotations__", {}))
    if name == "name" or home is BaseModel:
        home = kind
    return f"{home.__module__.rpartition('.')[2]}.{home.__name__}.{name}"
