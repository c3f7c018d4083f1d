"""What docstrings show is so. Only modules that show something are imported, so Ray and optional packages are not."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = [
    ".".join(file.relative_to(ROOT).with_suffix("").parts)
    for package in ("raysim", "tuning")
    for file in sorted((ROOT / package).rglob("*.py"))
    if ">>> " in file.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("module", MODULES)
def test_what_docstrings_show_is_so(module: str) -> None:
    failed, shown = doctest.testmod(import_module(module), optionflags=doctest.FAIL_FAST)
    assert shown
    assert not failed


def test_what_is_imported_for_it_does_not_import_ray() -> None:
    assert not [module for module in MODULES if module.startswith("raysim.engine.on_ray")]
