"""Code in a model's folder that raysim must not run: it leaves a file behind where it runs."""

from __future__ import annotations

from pathlib import Path

import pytest


def placed(folder: Path, monkeypatch: pytest.MonkeyPatch, *classes: str) -> Path:
    """Put `strange.py` with these classes into the folder; returns the file that is there once anybody runs or asks.

    At a terminal transformers asks whether to run such code.
    """
    ran = folder.parent / "ran"

    def asked(prompt: str = "") -> str:
        ran.touch()
        return "y"

    monkeypatch.setattr("builtins.input", asked)
    code = [f"open({str(ran)!r}, 'w')", *(f"class {name}: pass" for name in classes)]
    (folder / "strange.py").write_text("\n".join(code) + "\n")
    return ran
