"""What --detach takes, before anything starts."""

from __future__ import annotations

import pytest

from tests.support.command import Raysim

DETACHED = ("run", "tiny.toml", "--detach")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ((), "add --address"),
        (("--address", "auto", "--logger", "tensorboard"), "raysim attach NAME --logger"),
        (("--address", "auto", "--set", "trials=2"), "takes one run"),
        (("--address", "auto", "--sweep", "cohort.size=2,3"), "takes one run"),
        (("--address", "auto"), "engine.workers is 0"),
    ],
)
def test_what_cannot_be_left_to_itself_is_said(more: tuple[str, ...], said: str, raysim: Raysim) -> None:
    assert raysim(*DETACHED, *more) == 2
    assert said in " ".join(raysim.err.replace("\u2502", " ").split())
    assert not (raysim.folder / "runs").exists()
