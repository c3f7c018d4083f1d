"""Scores of several clients: each has the sums of its own rows, however steps put them out."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from raysim.client.trainers import scores
from raysim.client.trainers.scores import Scores
from raysim.models.task import task_for

VISITS = np.array([5, 2, 4])
TARGETS = torch.tensor([0, 2, 1, 2, 0, 1, 1, 2, 0, 0, 1])
OUTPUTS = torch.randn(11, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
LOSSES = nn.functional.cross_entropy(OUTPUTS, TARGETS, reduction="none")
HITS = (OUTPUTS.argmax(1) == TARGETS).double()


def by_client(rows: Tensor) -> list[float]:
    return [float(own.sum()) for own in rows.split(VISITS.tolist())]


@pytest.mark.parametrize("most", [1, 9, 1 << 20])
@pytest.mark.parametrize("with_losses", [(), (0, 2), (0, 1, 2, 3, 4)], ids=str)
def test_sums_are_each_clients(with_losses: tuple[int, ...], most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "MOST_KEPT", most)
    kept = Scores.of_clients(task_for(3, None), TARGETS, VISITS)
    for step, rows in enumerate([slice(3), slice(3, 5), slice(5, 7), slice(7, 8), slice(8, 11)]):
        kept.keep(OUTPUTS[rows], LOSSES[rows] if step in with_losses else None)
    loss, correct = kept.totals()
    assert loss.tolist() == pytest.approx(by_client(LOSSES), rel=1e-12)
    assert correct.tolist() == by_client(HITS)


def test_large_outputs_are_scored_alone_to_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def losses(outputs: Tensor, targets: Tensor) -> Tensor:
        sizes.append(len(outputs))
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    def totals() -> tuple[Tensor, Tensor]:
        kept = Scores.of_clients(task_for(3, losses), TARGETS, VISITS)
        for rows in [slice(2), slice(2, 4), slice(4, 9), slice(9, 11)]:
            kept.keep(OUTPUTS[rows])
        return kept.totals()

    together = totals()
    monkeypatch.setattr(scores, "LARGE", 15)
    apart = totals()
    assert sizes == [11, 4, 5, 2]
    assert all(map(torch.equal, together, apart))


def test_only_a_client_with_a_step_without_outputs_has_no_hits() -> None:
    kept = Scores.of_clients(task_for(3, None), TARGETS, VISITS)
    kept.keep(OUTPUTS[:5])
    kept.keep(OUTPUTS[5:6], LOSSES[5:6])
    kept.keep(None, LOSSES[6:7])
    kept.keep(OUTPUTS[7:], LOSSES[7:])
    loss, correct = kept.totals()
    assert loss.tolist() == pytest.approx(by_client(LOSSES), rel=1e-12)
    wanted = by_client(HITS)
    assert correct.tolist()[::2] == wanted[::2]
    assert math.isnan(correct[1])


def test_a_client_with_padding_and_no_outputs_has_no_hits_either() -> None:
    places, outputs = torch.tensor([[1, 2], [0, 0], [2, 0]]), torch.randn(3, 2, 3)
    kept = Scores.of_clients(task_for(3, None, padding=0), places, np.array([1, 1, 1]))
    kept.keep(None, torch.ones(1))
    kept.keep(outputs[1:])
    correct = kept.totals()[1]
    assert math.isnan(correct[0])
    # Of whose places none counts.
    assert correct[1] == 0
    assert not math.isnan(correct[2])


@pytest.mark.parametrize("rows", [(3, 2), (7, 7)], ids=str)
def test_outputs_may_have_any_shape_where_losses_are_given(rows: tuple[int, int]) -> None:
    kept = Scores.of_clients(task_for(None, None), torch.zeros(5, 3), np.array([3, 2]))
    kept.keep(torch.ones(rows[0], 3), torch.tensor([1.0, 2.0, 3.0]))
    kept.keep(torch.ones(rows[1], 2), torch.tensor([4.0, 5.0]))
    assert kept.totals()[0].tolist() == [6, 9]


def test_small_steps_are_scored_before_their_tensors_take_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "MOST_STEPS", 3)
    scored: list[int] = []

    def losses(outputs: Tensor, targets: Tensor) -> Tensor:
        scored.append(len(outputs))
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    kept = Scores.of_clients(replace(task_for(3, None), losses=losses), TARGETS, VISITS)
    for row in range(11):
        kept.keep(OUTPUTS[row : row + 1])
    assert kept.totals()[0].tolist() == pytest.approx(by_client(LOSSES), rel=1e-12)
    assert scored == [3, 3, 3, 2]


def test_rows_of_a_client_that_is_not_whole_are_left_to_it() -> None:
    kept = Scores.of_clients(task_for(3, None), TARGETS, VISITS)
    kept.keep(OUTPUTS[:6])
    loss, correct = (each[:1].tolist() for each in kept.totals())
    assert loss == pytest.approx(by_client(LOSSES)[:1], rel=1e-12)
    assert correct == by_client(HITS)[:1]


def test_outputs_without_an_axis_are_refused() -> None:
    kept = Scores.of_clients(task_for(None, None), torch.zeros(1), np.array([1]))
    with pytest.raises(ValueError, match="one number without an axis"):
        kept.keep(torch.tensor(0.5))
