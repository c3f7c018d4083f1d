"""What scripts and experiment files rely on changes by decision only."""

from __future__ import annotations

import difflib
from typing import TypedDict

import pytest
from typing_extensions import Unpack

from tests.support import snapshot


@pytest.mark.parametrize("name", snapshot.SNAPSHOTS)
def test_what_users_rely_on_is_as_it_was(name: str) -> None:
    stored = (snapshot.FOLDER / name).read_text(encoding="utf-8").splitlines()
    changes = "\n".join(difflib.unified_diff(stored, snapshot.SNAPSHOTS[name](), "was", "is", lineterm="", n=1))
    assert not changes, (
        f"Scripts and experiment files rely on what has changed here, so changing it is a decision. Where it was made, "
        f"`python -m tests.support.snapshot` writes tests/snapshots/{name} anew:\n{changes}"
    )


class Parts(TypedDict, total=False):
    loss: str | None
    dataset: int


def spelled_out(path: str, *, seed: int = 0, loss: str | None = None) -> None: ...


def unpacked(path: str, *, seed: int = 0, **parts: Unpack[Parts]) -> None: ...


def test_arguments_by_name_are_alike_however_they_are_declared() -> None:
    by_name = ["path: str", "*, dataset: int = absent", "*, loss: str | None = None", "*, seed: int = 0"]
    assert list(snapshot._parameters(unpacked)) == by_name
    assert list(snapshot._parameters(spelled_out)) == [line for line in by_name if "dataset" not in line]
