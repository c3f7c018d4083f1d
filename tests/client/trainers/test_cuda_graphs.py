"""Recorded passes: played back, they are the passes that they were recorded from.

A card's graph repeats kernels on fixed memory; here its stand-in repeats the Python call, on the same fixed memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from raysim.client.batches import Batches
from raysim.client.section import ClientSection
from raysim.client.trainer import Client
from raysim.client.trainers import cuda_graphs
from raysim.client.trainers.construction import rule_for
from raysim.client.trainers.cuda_graphs import Played
from raysim.client.trainers.recognise import Recognised, recognise
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
    """Plays by calling again, into the output that the first call made."""

    def __init__(self) -> None:
        self.recorded = self.played = 0

    def __call__(self, work: Callable[[], Tensor], written: Sequence[Tensor]) -> Played:
        before = [tensor.clone() for tensor in written]
        output = work()
        for tensor, value in zip(written, before, strict=True):
            tensor.copy_(value)
        self.recorded += 1

        def play() -> None:
            self.played += 1
            output.copy_(work())

        return Played(play, output)


def trained(section: ClientSection, record: cuda_graphs.Recorder | None, members: list[Client]) -> list[Tensor]:
    model, start = create(module, 0, torch.float32)
    layers = recognise(module())
    assert isinstance(layers, Recognised)
    rule = rule_for(section, sums_gradients=False, product_makes_step=True)
    trainer = Stacked(layers, model, task_for(3, None), rule, torch.float32, record=record)
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


def test_what_is_met_seldom_is_not_recorded() -> None:
    recorder = Recorder()
    trained(ClientSection(), recorder, clients([8, 8], batch=4))
    assert recorder.recorded == 0


def test_no_more_than_so_many_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "MOST", 1)
    members = clients([41, 44, 20, 44], batch=4)
    recorder = Recorder()
    for got, expected in zip(
        trained(ClientSection(), recorder, members), trained(ClientSection(), None, members), strict=True
    ):
        assert torch.equal(got, expected)


def test_where_recording_fails_passes_are_run_as_ever(caplog: pytest.LogCaptureFixture) -> None:
    def fails(work: Callable[[], Tensor], written: Sequence[Tensor]) -> Played:
        raise RuntimeError("operation not permitted when stream is capturing")

    members = clients([44, 44], batch=4)
    for got, expected in zip(
        trained(ClientSection(), fails, members), trained(ClientSection(), None, members), strict=True
    ):
        assert torch.equal(got, expected)
    assert [record.message for record in caplog.records] == [
        "local steps cannot be recorded here, so they are launched one by one: operation not permitted when stream is "
        "capturing"
    ]


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
    for record in (None, cuda_graphs.on_card):
        trainer = Stacked(layers, model, task_for(3, None), rule, torch.float32, record=record)
        for _ in range(2):
            (updates,) = trainer.train(weights, members, 0.1)
        found.append(updates.delta.clone())
    assert torch.equal(*found)
