"""Tables of what raysim can do cannot be written to: workers import their own, and would not see it."""

from __future__ import annotations

import ast
import pkgutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest

import raysim
from raysim.client.corrections import prox
from raysim.client.corrections.choice import CORRECTIONS
from raysim.models import section as models
from raysim.models.linear import Linear

ROOMS = ("algorithm", "client", "cohort", "config", "data", "engine", "evaluation", "models", "server", "systems")
"""What a worker computes with."""

FROZEN = (
    *("algorithm", "cohort", "compression", "config", "engine", "evaluation", "experiment", "models", "run_folder"),
    *("server", "systems"),
)
"""Rooms without any table that can be written to."""


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


def writable(module: ModuleType) -> list[str]:
    """Names of the dictionaries, lists and sets that a module assigns itself."""
    assigned = {
        ast.unparse(target)
        for node in ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    }
    return sorted(
        f"{module.__name__}.{name}"
        for name, value in vars(module).items()
        if name in assigned and not name.startswith("__") and isinstance(value, dict | list | set)
    )


@pytest.mark.parametrize("room", FROZEN)
def test_no_table_can_be_written_to(room: str) -> None:
    assert [name for module in modules(room) for name in writable(module)] == []


def test_a_table_that_can_be_written_to_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tables_of_a_test.py").write_text(
        "from types import MappingProxyType\nA = {1: 2}\nB: list[int] = []\nC = MappingProxyType(A)\nD = (1, 2)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert writable(import_module("tables_of_a_test")) == ["tables_of_a_test.A", "tables_of_a_test.B"]


def test_a_patched_maker_is_refused() -> None:
    def mine(section: prox.Prox) -> raysim.Correction:
        return raysim.Correction()

    with pytest.raises(TypeError, match="does not support item assignment"):
        cast(Any, CORRECTIONS.makers)[prox.Prox] = mine
    with pytest.raises(TypeError, match="does not support item assignment"):
        cast(Any, models._MAKERS)[Linear] = mine
