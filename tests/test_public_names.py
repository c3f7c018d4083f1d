"""The names that users' scripts rely on."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import raysim

FIXED = {"Experiment", "FederatedDataset", "Result", "load", "resume", "rounds", "run"}


def test_every_public_name_exists_and_is_exported() -> None:
    assert {name for name in raysim.__all__ if getattr(raysim, name).__name__ == name} == set(raysim.__all__)
    assert set(dir(raysim)) == set(raysim.__all__) >= FIXED
    assert list(raysim.__all__) == sorted(raysim.__all__)


PARTS = set(raysim.Parts.__annotations__)
TAKERS = (raysim.run, raysim.rounds, raysim.resume, raysim.replay, raysim.run_trials, raysim.run_sweep, raysim.launch)


@pytest.mark.parametrize("function", [*TAKERS, raysim.Runs.__init__], ids=lambda function: str(function.__qualname__))
def test_what_a_script_passes_is_the_same_everywhere_and_in_every_help(function: Any) -> None:
    assert set(inspect.signature(function).parameters) >= PARTS
    help_text = inspect.getdoc(function) or ""
    assert "one loss per example, shape (batch,)" in help_text
    assert all(name in help_text for name in PARTS)


@pytest.mark.parametrize("function", [*TAKERS, raysim.Runs])
def test_a_keyword_that_there_is_none_of_is_named_with_the_nearest(function: Any) -> None:
    for name, hint in (
        ("lora", r"\(there is model\.lora\)"),
        ("cohort", r"experiment\.changed\(\{'cohort': \.\.\.\}\)"),
    ):
        with pytest.raises(TypeError, match=rf"unexpected keyword argument '{name}'.*{hint}"):
            function(None, **{name: 1})
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'modle' \(did you mean 'model'\?\)"):
        function(None, modle=None)


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
            assert issubclass(value, Exception)
            assert str(pickle.loads(pickle.dumps(value("round 3, client 'a'")))) == "round 3, client 'a'"


def test_the_version_is_the_installed_package_s() -> None:
    assert raysim.__version__ == metadata.version("raysim")


def test_a_folder_of_the_same_name_hides_nothing(tmp_path: Path) -> None:
    # As a clone does for a script that lies beside it.
    (tmp_path / "raysim").mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    code = "import raysim; raysim.__version__"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True, timeout=240)
