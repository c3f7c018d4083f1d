"""The names that users' scripts rely on."""

from __future__ import annotations

import inspect

import pytest

import raysim

FIXED = {"Experiment", "FederatedDataset", "Result", "load", "resume", "rounds", "run"}


def test_every_public_name_exists_and_is_exported() -> None:
    assert {name for name in raysim.__all__ if getattr(raysim, name).__name__ == name} == set(raysim.__all__)
    assert set(dir(raysim)) == set(raysim.__all__) >= FIXED
    assert list(raysim.__all__) == sorted(raysim.__all__)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Experimint'"):
        raysim.Experimint  # noqa: B018


def test_every_error_is_exported() -> None:
    from raysim import errors

    tree = {name for name, value in vars(errors).items() if inspect.isclass(value)}
    assert tree <= set(raysim.__all__)


def test_errors_survive_a_process_border() -> None:
    import pickle

    from raysim import errors

    for value in vars(errors).values():
        if inspect.isclass(value):
            assert str(pickle.loads(pickle.dumps(value("round 3, client 'a'")))) == "round 3, client 'a'"
