"""Tests are named the same in every process, and come in the same order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DIFFERING = {
    "named by a set": '@pytest.mark.parametrize("a", [{"p", "q"}], ids=str)',
    "named by a set in it": '@pytest.mark.parametrize("a", [{"k": [frozenset({1, 2})]}], ids=str)',
    "named by an address": '@pytest.mark.parametrize("a", [object()], ids=str)',
    "in a set's order": '@pytest.mark.parametrize("a", {"p", "q"})',
    "a fixture named by a set": '@pytest.fixture(params=[{"p", "q"}], ids=str)\ndef a(request):\n    return 1\n',
}
STEADY = {
    "a set of one": '@pytest.mark.parametrize("a", [{"p"}], ids=str)',
    "a set with a name": '@pytest.mark.parametrize("a", [{"p", "q"}], ids=["both"])',
    "a set without ids": '@pytest.mark.parametrize("a", [{"p", "q"}])',
    "a dict": '@pytest.mark.parametrize("a", [{"p": 1, "q": [2]}], ids=str)',
}


CONFTEST = """from tests.support import steady_names


def pytest_collection_modifyitems(items):
    steady_names.check(items)
"""


def collected(folder: Path, above: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_one.py").write_text(f"import pytest\n\n{above}\ndef test_one(a):\n    pass\n")
    command = [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    root = {"PYTHONPATH": str(Path(__file__).parents[1])}
    return subprocess.run(
        [*command, str(folder)], cwd=folder, env={**os.environ, **root}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("above", DIFFERING.values(), ids=DIFFERING)
def test_what_differs_by_process_is_refused(tmp_path: Path, above: str) -> None:
    done = collected(tmp_path, above)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert re.search(r"test_one\.py::test_one.*: .*differs? by process", done.stderr)


@pytest.mark.parametrize("above", STEADY.values(), ids=STEADY)
def test_what_is_the_same_is_collected(tmp_path: Path, above: str) -> None:
    assert collected(tmp_path, above).returncode == pytest.ExitCode.OK
