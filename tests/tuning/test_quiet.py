"""What the log says while a study goes on: not that trials go wrong, but all that a run by itself would warn of."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import raysim
import tuning
from tests.support.small_data import make_clients

Make = Callable[..., raysim.Experiment]
LOG = logging.getLogger("raysim")


def nowhere(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A loss whose gradient is not a number, once the model has moved."""
    loss = torch.nn.functional.cross_entropy(outputs, targets, reduction="none")
    return loss * torch.nan if outputs.abs().max() > 1e3 else loss


def test_rounds_are_no_news_and_the_rest_is(
    small: raysim.FederatedDataset,
    tuned: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def draw_all(*given: Any) -> None:
        LOG.warning("The picture curves.png could not be written")

    monkeypatch.setattr("tuning.study.pictures.draw_all", draw_all)
    space = {"client.optimizer.lr": {"grid": [0.01, 1e6]}}
    found = tuning.tune(tuned(final=0), space, dataset=small, loss=nowhere, path=tmp_path)
    assert found.counts == {"diverged": 1, "finished": 1}
    assert [record.getMessage() for record in caplog.records] == ["The picture curves.png could not be written"]
    LOG.warning("round 1: after the study")
    assert caplog.records[-1].getMessage() == "round 1: after the study"


def test_hosts_are_started_quietly(
    small: raysim.FederatedDataset, tuned: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels: list[int] = []

    class Noting(raysim.Runs):
        def __init__(self, *given: Any, **how: Any) -> None:
            levels.append(LOG.getEffectiveLevel())
            super().__init__(*given, **how)

        def start(self, *given: Any, **how: Any) -> list[int]:
            levels.append(LOG.getEffectiveLevel())
            return super().start(*given, **how)

    monkeypatch.setattr("tuning.study.Runs", Noting)
    tuning.tune(tuned(trials=1, final=0), dataset=small, path=tmp_path)
    assert levels[:2] == [logging.ERROR, logging.WARNING]


@pytest.mark.parametrize("by", ["tune", "evolve"])
def test_a_key_without_effect_is_said_of_the_first_trial_or_member_that_has_it(
    by: str,
    small: raysim.FederatedDataset,
    tuned: Make,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    exp = tuned(space={"client.optimizer.momentum": {"grid": [0.9, 0.0, 0.5]}}, final=0)
    exp = exp.changed({"server.aggregator": {"name": "fednova", "tau_eff": "sum_p_tau"}})
    if by == "tune":
        tuning.tune(exp, dataset=small, path=tmp_path)
    else:
        tuning.evolve(exp.changed({"tuning.evolution": {"members": 6}}), dataset=small, path=tmp_path)
    (said,) = [record.getMessage() for record in caplog.records if "has no effect" in record.getMessage()]
    assert "server.aggregator.tau_eff = 'sum_p_tau' has no effect" in said
    if by == "tune":
        assert said.startswith(f"{tmp_path / 'trials' / '0001' / 'seed-0'}: ")


def test_what_is_said_of_runs_that_begin_is_said_once(
    tuned: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of trials and final runs, which have workers of their own where a script passes the dataset."""
    nobody = {"t0": (np.zeros((0, 5)), np.zeros(0, np.int64))}
    data = raysim.FederatedDataset.from_clients(train=make_clients([8 + i for i in range(10)]), test=nobody)
    for where in ("one", "another"):
        caplog.clear()
        tuning.tune(tuned(final=1), dataset=data, path=tmp_path / where)
        assert caplog.messages == ["the split 'test' has no examples, so it is not evaluated"]
