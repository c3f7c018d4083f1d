"""Tables of what raysim can do cannot be written to: workers import their own, and would not see it."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any, cast

import pytest

import raysim
from raysim.client.corrections import prox
from raysim.client.corrections.choice import CORRECTIONS
from raysim.models import section as models
from raysim.models.linear import Linear

ROOMS = ("algorithm", "client", "cohort", "config", "data", "evaluation", "models", "server", "systems")
"""What a worker computes with."""


def modules(room: str) -> Iterator[ModuleType]:
    package = import_module(f"raysim.{room}")
    yield package
    yield from (import_module(each.name) for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}."))


def is_of_code(table: dict[Any, Any]) -> bool:
    """Whether it leads from classes or names to functions or classes, or from classes to anything."""
    return any(isinstance(key, type) for key in table) or any(
        callable(value) and getattr(value, "__module__", "").startswith("raysim") for value in table.values()
    )


@pytest.mark.parametrize("room", ROOMS)
def test_no_table_of_code_can_be_written_to(room: str) -> None:
    found = [
        f"{module.__name__}.{name}"
        for module in modules(room)
        for name, value in vars(module).items()
        if isinstance(value, dict) and not name.startswith("__") and is_of_code(value)
    ]
    assert found == []


def test_a_patched_maker_is_refused() -> None:
    def mine(section: prox.Prox) -> raysim.Correction:
        return raysim.Correction()

    with pytest.raises(TypeError, match="does not support item assignment"):
        cast(Any, CORRECTIONS.makers)[prox.Prox] = mine
    with pytest.raises(TypeError, match="does not support item assignment"):
        cast(Any, models._MAKERS)[Linear] = mine
