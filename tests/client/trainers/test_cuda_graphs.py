"""Recorded passes: played back, they are the passes that they were recorded from.

A card's graph repeats kernels on fixed memory; here its stand-in repeats the Python call, on the same fixed memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from raysim.client.batches import Batches
from raysim.client.section import ClientSection
from raysim.client.trainer import Client
from raysim.client.trainers import cuda_graphs
from raysim.client.trainers.construction import rule_for
from raysim.client.trainers.cuda_graphs import Played, Results
from raysim.client.trainers.one_by_one import OneByOne
from raysim.client.trainers.recognise import Recognised, recognise
from raysim.client.trainers.recording.recorded_steps import StepRecording
from raysim.client.trainers.stacked import Stacked
from raysim.models.model import Weights, create
from raysim.models.task import task_for


def module() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.3), nn.Linear(16, 3)
    )


def clients(sizes: list[int], batch: int) -> list[Client]:
    torch.manual_seed(0)
    made = []
    for position, n in enumerate(sizes):
        bounds = (*range(0, n, batch), n)
        order = np.random.default_rng(position).permutation(n)
        x, y = torch.randn(n, 1, 6, 6), torch.randint(0, 3, (n,))
        made.append(Client(position, n, x, y, Batches(order, bounds), key=position + 1))
    return made


class Recorder:
    """Plays by calling again, into the results that the first call made."""

    def __init__(self) -> None:
        self.recorded = self.played = 0

    def __call__(self, work: Callable[[], Results], written: Sequence[Tensor]) -> Played:
        before = [tensor.clone() for tensor in written]
        results = work()
        for tensor, value in zip(written, before, strict=True):
            tensor.copy_(value)
        self.recorded += 1

        def play() -> None:
            self.played += 1
            # A card's graph knows no modes of autograd.
            with torch.inference_mode():
                for result, again in zip(results, work(), strict=True):
                    if result is not None and again is not None:
                        result.copy_(again)

        return Played(play, results)


def trained(section: ClientSection, record: cuda_graphs.Recorder | None, members: list[Client]) -> list[Tensor]:
    model, start = create(module, 0, torch.float32)
    layers = recognise(module())
    assert isinstance(layers, Recognised)
    rule = rule_for(section, sums_gradients=False, product_makes_step=True)
    trainer = Stacked(
        layers, model, task_for(3, None), rule, torch.float32, recorder=None if record is None else lambda: record
    )
    found = []
    weights: Weights = start
    for _ in range(2):
        (updates,) = trainer.train(weights, members, 0.1)
        found += [updates.delta.clone(), updates.loss, updates.correct]
    return found


@pytest.mark.parametrize(
    "section",
    [
        ClientSection(),
        ClientSection.model_validate({"optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9}, "max_grad_norm": 1.0}),
        ClientSection.model_validate({"correction": {"name": "prox", "mu": 0.1}}),
    ],
    ids=["plain", "momentum and clipping", "prox"],
)
def test_played_passes_are_the_same_bits(section: ClientSection) -> None:
    # Eleven steps, most of them of one shape, short last batches, and clients that finish on the way.
    members = clients([41, 44, 20, 44], batch=4)
    recorder = Recorder()
    for got, expected in zip(trained(section, recorder, members), trained(section, None, members), strict=True):
        assert torch.equal(got, expected)
    assert recorder.recorded >= 2
    assert recorder.played > recorder.recorded


def test_what_is_met_once_is_not_recorded() -> None:
    recorder = Recorder()
    members = clients([4, 4], batch=4)
    trained(ClientSection(), recorder, members)
    # Two rounds of one step each: the second is recorded.
    assert recorder.recorded == 1
    recorder = Recorder()
    trained(ClientSection(), recorder, clients([4, 8, 12], batch=4))
    assert recorder.played == recorder.recorded == 3


def test_shapes_that_come_seldom_are_recorded_as_far_as_playing_pays_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "FREE", 2)
    monkeypatch.setattr(cuda_graphs, "PLAYS_FOR_ONE", 3)
    recorder = Recorder()
    recordings = cuda_graphs.Recordings(lambda: lambda inputs, alpha: (2 * inputs[0],), (torch.zeros(1),), recorder)

    def run(length: int) -> None:
        (got,) = recordings.run((torch.ones(length),))
        assert got is not None
        assert torch.equal(got, torch.full((length,), 2.0))

    for length in (1, 1, 2, 2, 3, 3, 3):
        run(length)
    # The third shape has to wait: the first two were played once each, when they were recorded.
    assert recorder.recorded == recorder.played == 2
    run(1)
    assert recorder.played == 3
    run(3)
    assert recorder.recorded == 3


def test_a_pass_that_draws_is_not_recorded(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "raysim")
    recorder = Recorder()
    weights = torch.zeros(3)

    def masked(inputs: Sequence[Tensor], alpha: float) -> Results:
        return (nn.functional.dropout(inputs[0], 0.5, training=True),)

    recordings = cuda_graphs.Recordings(lambda: masked, (weights,), recorder)
    torch.manual_seed(0)
    got = [recordings.run((torch.ones(8),))[0] for _ in range(4)]
    torch.manual_seed(0)
    for one in got:
        assert one is not None
        assert torch.equal(one, nn.functional.dropout(torch.ones(8), 0.5, training=True))
    assert recorder.recorded == 0
    assert [record.message for record in caplog.records] == [
        "CUDA graphs are not used, because a local step draws random numbers from torch's generator"
    ]


def test_no_more_than_so_many_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "MOST", 1)
    members = clients([41, 44, 20, 44], batch=4)
    recorder = Recorder()
    for got, expected in zip(
        trained(ClientSection(), recorder, members), trained(ClientSection(), None, members), strict=True
    ):
        assert torch.equal(got, expected)


def test_where_recording_fails_passes_are_run_as_ever(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "raysim")

    def fails(work: Callable[[], Results], written: Sequence[Tensor]) -> Played:
        raise RuntimeError("operation not permitted when stream is capturing")

    members = clients([44, 44], batch=4)
    for got, expected in zip(
        trained(ClientSection(), fails, members), trained(ClientSection(), None, members), strict=True
    ):
        assert torch.equal(got, expected)
    assert [record.message for record in caplog.records] == [
        "CUDA graphs are not used, because a local step cannot be recorded: operation not permitted when stream is "
        "capturing"
    ]


def test_where_memory_runs_out_what_is_recorded_is_played_and_no_more_is_recorded() -> None:
    recorder = Recorder()

    def limited(work: Callable[[], Results], written: Sequence[Tensor]) -> Played:
        if recorder.recorded == 1:
            raise torch.OutOfMemoryError("recordings have taken their share")
        return recorder(work, written)

    members = clients([41, 44, 20, 44], batch=4)
    for got, expected in zip(
        trained(ClientSection(), limited, members), trained(ClientSection(), None, members), strict=True
    ):
        assert torch.equal(got, expected)
    assert recorder.recorded == 1
    assert recorder.played > 0


class Normed(nn.Module):
    """With running statistics, masks, and a connection past a layer: no stack takes it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(36), nn.Dropout(0.3)
        self.inner, self.head = nn.Linear(36, 36), nn.Linear(36, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x.flatten(1))
        out: Tensor = self.head(h + self.drop(torch.relu(self.inner(h))))
        return out


def by_recordings(
    section: ClientSection,
    recorder: Recorder | None,
    rates: Sequence[float],
    members: list[Client],
    lengths: Collection[int] = range(1, 5),
) -> list[Tensor]:
    model, start = create(Normed, 0, torch.float32)
    rule = rule_for(section, sums_gradients=False, product_makes_step=True)
    trainer = OneByOne(
        model,
        start,
        task_for(3, None),
        rule,
        torch.float32,
        recording=StepRecording(lengths, None if recorder is None else lambda: recorder),
    )
    return [
        tensor.clone()
        for lr in rates
        for updates in trainer.train(start, members, lr)
        for tensor in (updates.delta, updates.buffers, updates.counters, updates.loss, updates.correct)
    ]


@pytest.mark.parametrize(
    ("section", "recorded"),
    [
        (ClientSection(), 5),
        (ClientSection.model_validate({"optimizer": {"name": "adam", "lr": 0.1}, "max_grad_norm": 1.0}), 3),
        (ClientSection.model_validate({"correction": {"name": "prox", "mu": 0.1}}), 5),
    ],
    ids=["plain", "adam and clipping", "prox"],
)
def test_played_steps_of_any_module_are_the_same_bits(section: ClientSection, recorded: int) -> None:
    # A last batch of one cannot be recorded, because BatchNorm has no statistics of it: sizes leave two, three or none.
    members = clients([42, 44, 19, 43], batch=4)
    recorder, rates = Recorder(), (0.1, 0.1, 0.05)
    for got, expected in zip(
        by_recordings(section, recorder, rates, members), by_recordings(section, None, rates, members), strict=True
    ):
        assert torch.equal(got, expected)
    # Batches of four, three and two. A plain step holds its rate: another one is recorded anew, where it comes twice.
    assert recorder.recorded == recorded
    assert recorder.played > 20


def test_played_steps_and_others_follow_each_other() -> None:
    members = clients([44, 42, 40, 43], batch=4)
    recorder = Recorder()
    for got, expected in zip(
        by_recordings(ClientSection(), recorder, (0.1, 0.1), members, lengths=(4,)),
        by_recordings(ClientSection(), None, (0.1, 0.1), members, lengths=(4,)),
        strict=True,
    ):
        assert torch.equal(got, expected)
    assert recorder.recorded == 1
    assert recorder.played > 40


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no card: CUDA graphs are recorded on one only")
def test_a_graph_is_the_same_bits_on_a_card() -> None:
    from dataclasses import replace

    card = torch.device("cuda")
    members = [replace(c, x=c.x.to(card), y=c.y.to(card)) for c in clients([41, 44, 20, 44], batch=4)]
    model, start = create(module, 0, torch.float32)
    layers = recognise(module())
    assert isinstance(layers, Recognised)
    weights = Weights(start.params.to(card), start.buffers.to(card), start.counters.to(card))
    rule = rule_for(ClientSection(), sums_gradients=False, product_makes_step=True)
    found = []
    for recorder in (None, lambda: cuda_graphs.CardRecorder(card)):
        trainer = Stacked(layers, model, task_for(3, None), rule, torch.float32, recorder=recorder)
        for _ in range(2):
            (updates,) = trainer.train(weights, members, 0.1)
        found.append(updates.delta.clone())
    assert torch.equal(*found)
