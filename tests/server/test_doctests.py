"""The examples beside the equations are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

from raysim import cohort, server

MODULES = [m.name for room in (server, cohort) for m in pkgutil.walk_packages(room.__path__, f"{room.__name__}.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples_are_true(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_every_server_optimizer_has_an_example() -> None:
    from raysim.server.optimizers.choice import OPTIMIZERS

    found = doctest.DocTestFinder()
    for make in OPTIMIZERS.makers.values():
        assert any(test.examples for test in found.find(make)), make.__module__
