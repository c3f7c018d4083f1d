"""The mark `ray`: tests that start Ray, or use one that runs, have it, and no others can."""

from __future__ import annotations

import sys
from typing import NoReturn

import pytest

NAME = "ray"

NO_FOLDER = "/dev/null/only-tests-with-the-mark-ray-start-it"
"""No folder can be made there: a Ray that is started, here or in a process that the test starts, fails and shows it."""


def put(items: list[pytest.Item]) -> None:
    """Mark every test that asks for the cluster; whoever starts Ray otherwise has the mark in its text."""
    for item in items:
        if isinstance(item, pytest.Function) and "ray_cluster" in item.fixturenames:
            item.add_marker(NAME)


def enforce(test: pytest.Item, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the mark no cluster can be started, and one that an earlier test has left running is left alone.

    Whoever ended it would break tests that come later, and only where these come later in the same process.
    """
    if test.get_closest_marker(NAME) is not None:
        return
    monkeypatch.setenv("RAY_TMPDIR", NO_FOLDER)
    if "ray" in sys.modules:
        import ray

        monkeypatch.setattr(ray.actor.ActorClass, "_remote", _refuse)
        monkeypatch.setattr(ray.remote_function.RemoteFunction, "_remote", _refuse)
        if ray.is_initialized():
            monkeypatch.setattr(ray, "shutdown", _refuse)


def _refuse(*arguments: object, **settings: object) -> NoReturn:
    pytest.fail("A test that uses Ray needs the mark: @pytest.mark.ray, or the fixture ray_cluster", pytrace=True)
