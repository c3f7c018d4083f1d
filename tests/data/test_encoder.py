"""The process that encodes: why it did not start is said, and is not blamed on a text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from raysim.data.tokens import encoder_process
from raysim.data.tokens.encoder import encoding
from raysim.data.tokens.growth import TextGrowth
from raysim.errors import DataError


class Written:
    """A tokeniser of which only the written form is asked: one larger than what a pipe holds."""

    def to_str(self) -> str:
        return "{" * 2**18


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("raise SystemExit(3)", "exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", "SIGKILL"),
        ("import sys; sys.stdin.buffer.readline(); raise SystemExit(4)", "exit code 4"),
    ],
)
def test_a_process_that_ends_before_it_is_ready_is_named(
    script: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "process.py").write_text(script)
    monkeypatch.setattr(encoder_process, "__file__", str(tmp_path / "process.py"))
    with pytest.raises(DataError, match=f"^The process that encodes texts did not start: it ended with {said}$"):
        _started(Written())


def test_a_package_that_cannot_be_imported_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokenizers.py").write_text("raise ImportError('libstdc++ is too old')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DataError, match=re.escape("did not start: libstdc++ is too old")):
        _started(Written())


def test_a_tokeniser_that_it_cannot_read_is_said() -> None:
    pytest.importorskip("tokenizers")
    with pytest.raises(DataError, match=r"did not start: .*column"):
        _started(Written())


def _started(tokenizer: Any) -> None:
    with encoding(tokenizer, TextGrowth(1, 0), 8):
        pass
