"""Secure sums: the arithmetic of integers modulo 2^bits, to the bit, and that masks which cancel change no sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import raysim
from raysim.errors import ExperimentError
from raysim.models.layout import Layout
from raysim.server import secure_sum
from raysim.server.encoding import SentUpdate, centred
from raysim.server.secure_sum import SecureSum

Make = Callable[..., raysim.Experiment]


def summed(experiment: Make, section: dict[str, Any] | None, **sections: Any) -> raysim.Experiment:
    server = {} if section is None else {"secure_sum": section}
    engine = {"workers": 0, "dtype": "float64", "trainer": "one_by_one"}
    return experiment(**{"rounds": 1, "evaluation": {}, "engine": engine, **sections, "server": server})


def moved(exp: raysim.Experiment, data: raysim.FederatedDataset) -> tuple[torch.Tensor, Any]:
    """-g of the first round, and its metrics."""
    (made,) = raysim.rounds(exp, dataset=data)
    still, *_ = raysim.rounds(exp.changed(["server.optimizer.lr=0.0"]), dataset=data)
    flat = [torch.cat([value.flatten() for value in each.params.values()]) for each in (made, still)]
    return flat[0] - flat[1], made.metrics


def test_the_mean_is_that_of_fixed_point_numbers(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    # The sum of one client's integers is at hand: a cohort of one, then two.
    f, ids = 6, ["c1", "c4"]
    sizes = {"c1": 5, "c4": 11}
    replay = {"cohort": {"sampler": {"name": "replay", "cohorts": [ids]}}}
    alone = [
        moved(summed(experiment, None, cohort={"sampler": {"name": "replay", "cohorts": [[each]]}}), dataset)[0]
        for each in ids
    ]
    total = sum((2**f * sizes[each] * h).round() for each, h in zip(ids, alone, strict=True))
    got, metrics = moved(summed(experiment, {"bits": 24, "fraction_bits": f}, **replay), dataset)
    torch.testing.assert_close(got, total / 2**f / 16, rtol=1e-12, atol=1e-14)
    assert metrics["secure_sum/wrapped"] == 0
    assert metrics["bytes_up"] == 2 * -(-24 * len(got) // 8)


def test_sums_wrap_around_and_are_counted(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    wide, _ = moved(summed(experiment, {"bits": 40, "fraction_bits": 8}), dataset)
    (made,) = raysim.rounds(summed(experiment, {"bits": 10, "fraction_bits": 8}), dataset=dataset)
    narrow, metrics = moved(summed(experiment, {"bits": 10, "fraction_bits": 8}), dataset)
    weight = made.metrics["examples_held"] or 0
    totals = (wide * weight * 2**8).round()
    torch.testing.assert_close(narrow, centred(totals, 10) / 2**8 / weight, rtol=1e-9, atol=1e-12)
    assert metrics["secure_sum/wrapped"] == int(((totals < -512) | (totals > 511)).sum()) > 0


def test_the_server_learns_the_sum_only() -> None:
    # What the server gets of each client is its message plus masks: every pair of clients shares one, which cancels.
    bits, clients = 16, 4
    layout = Layout.of([("w", torch.zeros(5))])
    encoding = secure_sum.encoding(SecureSum(bits=bits, fraction_bits=4), layout)
    rng = np.random.default_rng(0)
    updates = torch.from_numpy(rng.normal(size=(clients, layout.size)))
    messages = torch.stack([encoding.encode(SentUpdate(h, 3.0, 0, i, 1.0)) for i, h in enumerate(updates)])
    masks = torch.from_numpy(rng.integers(0, 2**bits, size=(clients, clients, layout.size))).double()
    masked = messages.clone()
    for i in range(clients):
        for j in range(i + 1, clients):
            masked[i] += masks[i, j]
            masked[j] -= masks[i, j]
    masked = masked % 2**bits
    total = masked.sum(0)
    assert torch.equal(encoding.decode(0, total), encoding.decode(0, messages.sum(0)))
    # One message less, and nothing of the sum is left.
    part = masked[1:].sum(0)
    assert not torch.equal(encoding.decode(0, part), encoding.decode(0, messages[1:].sum(0)))
    torch.testing.assert_close(encoding.decode(0, total), 3 * updates.sum(0), rtol=0, atol=clients / 2 / 2**4)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["server.secure_sum.fraction_bits=32"], "fraction_bits < bits must hold, but got fraction_bits = 32"),
        (["server.aggregator.name=median"], "must be 'mean', but got 'median'"),
        (["server.weighting=ida"], "must be 'examples' or 'uniform', but got 'ida'"),
        (["client.compression.name=sign"], "client.compression"),
        (["server.fairness={name='tilt', t=1.0}"], "server.fairness"),
    ],
)
def test_what_a_secure_sum_is_not_defined_with(changes: list[str], said: str, experiment: Make) -> None:
    with pytest.raises(ExperimentError, match=said):
        summed(experiment, {}).changed(changes)


@pytest.mark.ray
def test_workers_change_no_bit(ray_cluster: Any, experiment: Make, dataset: raysim.FederatedDataset) -> None:
    exp = summed(experiment, {})
    here, there = (list(raysim.rounds(exp.changed([f"engine.workers={n}"]), dataset=dataset)) for n in (0, 2))
    for name, value in here[-1].params.items():
        assert torch.equal(value, there[-1].params[name])
