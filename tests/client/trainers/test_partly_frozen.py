"""Partly frozen modules: each trainer that takes them follows a loop in plain PyTorch; the others refuse them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from raysim.client import local_training
from raysim.client.section import ClientSection
from raysim.client.trainers.step_obstacles import StepObstacles
from raysim.client.trainers.trainer_choice import TrainerName
from raysim.client.trainers.trainer_table import TrainingConditions, choose
from raysim.data.on_device import Examples
from raysim.errors import ModelError
from raysim.models.lora import Lora, WithLora
from raysim.models.model import bind, create
from raysim.models.name_patterns import FreezesByName
from raysim.models.task import task_for
from tests.support.local_updates import LR, assert_same, train
from tests.support.trainer_models import MODELS, SIZES, dataset

MLP, SHAPE = MODELS["mlp_tanh"]
DATA = dataset(SHAPE, classes=4)


class ShortBase(nn.Module):
    """A base in bfloat16 between inputs and outputs in the experiment's dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4)).to(torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.base(x.to(torch.bfloat16)).to(x.dtype)
        return made


def lora(factory: Callable[[], nn.Module] = MLP, **keys: Any) -> Callable[[], nn.Module]:
    return WithLora(factory, Lora(**{"r": 2, "alpha": 3.0, "targets": ("*",), **keys}))


FACTORIES: dict[str, Callable[[], nn.Module]] = {
    "below": FreezesByName(MLP, ("fc1.*",)),
    "above": FreezesByName(MLP, ("fc3.*", "*.bias")),
    "adapters": lora(),
    "adapters without A": lora(freeze_a=True),
    "adapters and a head": lora(targets=("fc[12]",), whole=("fc3",)),
}


def by_hand(factory: Callable[[], nn.Module], position: int, work: dict[str, Any], dtype: torch.dtype) -> torch.Tensor:
    """A client's update: torch.optim.SGD on the module as its factory makes it, batch after batch."""
    section = ClientSection.model_validate(work)
    model, weights = create(factory, 0, dtype)
    module = model.module()
    for parameter in module.parameters():
        if parameter.dtype != torch.bfloat16:
            parameter.data = parameter.data.to(dtype)
    trained = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    start = {name: parameter.detach().clone() for name, parameter in trained.items()}
    optimizer = torch.optim.SGD(trained.values(), LR, momentum=getattr(section.optimizer, "momentum", 0.0))
    (member,) = local_training.members(Examples(DATA), (position,), section, 0, 3, weights.params)
    order = torch.from_numpy(member.batches.order)
    for begin, end in pairwise(member.batches.bounds):
        optimizer.zero_grad()
        functional.cross_entropy(module(member.x[order[begin:end]]), member.y[order[begin:end]]).backward()
        optimizer.step()
    return model.params.flatten({name: trained[name].detach() - start[name] for name in trained}, dtype)


@pytest.mark.parametrize("work", [{"batch_size": 4, "epochs": 2}, {"batch_size": 4, "optimizer": {"momentum": 0.9}}])
@pytest.mark.parametrize("name", FACTORIES)
@pytest.mark.parametrize("trainer", ["one_by_one", "recorded", "interpreted", "vmap"])
def test_a_trainer_follows_plain_pytorch(trainer: str, name: str, work: dict[str, Any]) -> None:
    got = train(trainer, FACTORIES[name], DATA, work)
    for row in range(len(SIZES)):
        assert_same({"delta": got["delta"][row]}, {"delta": by_hand(FACTORIES[name], row, work, torch.float64)})


@pytest.mark.parametrize("trainer", ["one_by_one", "recorded", "interpreted", "vmap"])
def test_adapters_in_float32_are_trained_over_a_base_in_bfloat16(trainer: str) -> None:
    factory, work = lora(ShortBase), {"batch_size": 4, "epochs": 2}
    model, weights = create(factory, 0, torch.float32)
    assert {value.dtype for value in model.constants.values()} == {torch.bfloat16}
    assert weights.params.dtype == torch.float32
    got = train(trainer, factory, DATA, work, dtype=torch.float32)["delta"]
    for row in range(len(SIZES)):
        # The gradient at bfloat16's outputs is short too, so kernels may round it in other places.
        torch.testing.assert_close(got[row], by_hand(factory, row, work, torch.float32), rtol=0.02, atol=2e-4)
        assert got[row].any()


@pytest.mark.parametrize("name", ["below", "adapters"])
@pytest.mark.parametrize("trainer", ["fused", "stacked", "compiled"])
def test_trainers_with_hand_written_gradients_refuse_them(trainer: TrainerName, name: str) -> None:
    given = TrainingConditions(trainer, "auto", "float32", "float32", 1, "cpu", 4, by_kernel=True)
    with pytest.raises(ModelError, match="modules with frozen parameters"):
        choose(given, FACTORIES[name](), task_for(4, None), None, lambda *_: StepObstacles())


def test_dropout_of_adapters_has_addressed_masks() -> None:
    work = {"batch_size": 4, "epochs": 2}
    recorded, one_by_one, other_chunk = (
        train(trainer, lora(dropout=0.4), DATA, work, positions)["delta"]
        for trainer, positions in (("recorded", (0, 1, 2)), ("one_by_one", (0, 1, 2)), ("one_by_one", (2,)))
    )
    torch.testing.assert_close(recorded, one_by_one, rtol=1e-10, atol=1e-12)
    assert torch.equal(one_by_one[2], other_chunk[0])
    without = train("one_by_one", lora(), DATA, work, (0, 1, 2))["delta"]
    assert not torch.allclose(without, one_by_one)
    given = TrainingConditions("vmap", "auto", "float32", "float32", 1, "cpu", 4, by_kernel=True)
    with pytest.raises(ModelError, match="draws, which vmap does not do"):
        choose(given, lora(dropout=0.4)(), task_for(4, None), None, lambda *_: StepObstacles())


def test_all_modules_of_a_process_have_the_same_frozen_values() -> None:
    model, weights = create(FACTORIES["below"], 0, torch.float32)
    one, other = (bind(model, weights.clone(), torch.device("cpu")) for _ in range(2))
    name = "fc1.weight"
    assert one.get_parameter(name).data_ptr() == other.get_parameter(name).data_ptr()
    assert one.get_parameter(name).data_ptr() == model.constants[name].data_ptr()
