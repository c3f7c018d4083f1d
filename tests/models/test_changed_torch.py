"""What a script has put in the place of torch's own, or around it, is what clients are trained with."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import raysim
from raysim.client.trainers.recognise import KINDS
from raysim.errors import ExperimentError, ModelError
from raysim.models.changed_torch import changes, check_same

Make = Callable[..., raysim.Experiment]
Run = Callable[..., Tensor]

LINEAR = nn.Linear.forward
CROSS_ENTROPY = functional.cross_entropy


def doubled(x: Tensor, inplace: bool = False) -> Tensor:
    return 2 * x.clamp(min=0)


class Doubled(nn.Parameter):
    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            made = function(*args, **(kwargs or {}))
        return 2 * made if function is functional.linear else made


class Functions(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        return 2 * made if function is functional.linear else made


class Operators(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        return 2 * made if function is torch.ops.aten.relu.default else made


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))


def of_own_parameters() -> nn.Module:
    module = plain()
    module[0].weight = Doubled(module[0].weight.data)  # type: ignore[index]
    return module


def hooked() -> nn.Module:
    module = plain()
    module[0].weight.register_hook(lambda gradient: 0 * gradient)  # type: ignore[index]
    return module


def other_impl() -> nn.Module:
    module = nn.Sequential(nn.Flatten(), plain())
    layer: Any = module[0]
    layer._call_impl = lambda x: 2 * x
    return module


@pytest.fixture
def trained(experiment: Make, dataset: raysim.FederatedDataset) -> Run:
    def run(trainer: str, model: Callable[[], nn.Module] = plain, workers: int = 0) -> Tensor:
        exp = experiment(rounds=1, model=None, engine={"workers": workers, "trainer": trainer})
        (only,) = raysim.rounds(exp, model=model, dataset=dataset)
        return torch.cat([torch.as_tensor(value).flatten() for value in only.params.values()])

    return run


CHANGED: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "torch.nn.functional.relu": partial(mock.patch.object, functional, "relu", doubled),
    "Linear.forward": lambda: mock.patch.object(nn.Linear, "forward", lambda self, x: 2 * LINEAR(self, x)),
    "ReLU.forward": lambda: mock.patch.object(nn.ReLU, "forward", lambda self, x: doubled(x)),
    "torch.nn.functional.cross_entropy": lambda: mock.patch.object(
        functional, "cross_entropy", lambda *args, **named: 2 * CROSS_ENTROPY(*args, **named)
    ),
    "mode Functions": Functions,
    "mode Operators": Operators,
}


@pytest.mark.parametrize("name", CHANGED)
def test_what_replaces_torchs_own_is_trained_with(name: str, trained: Run) -> None:
    usual = trained("one_by_one")
    with CHANGED[name]():
        assert name in str(changes(tuple(KINDS)))
        expected = trained("one_by_one")
        assert (expected - usual).abs().max() > 1e-3
        assert torch.equal(trained("auto"), expected)
        for trainer in ("recorded", "fused", "stacked", "vmap"):
            with pytest.raises(ModelError, match=name):
                trained(trainer)
    assert not changes(tuple(KINDS))


@pytest.mark.parametrize(
    ("model", "refusing"),
    [
        (of_own_parameters, ["fused", "stacked", "vmap"]),
        (hooked, ["fused", "stacked", "vmap"]),
        (other_impl, ["fused", "stacked"]),
    ],
)
def test_what_a_module_has_of_its_own_is_trained_by_autograd(
    model: Callable[[], nn.Module], refusing: list[str], trained: Run
) -> None:
    torch.testing.assert_close(trained("auto", model), trained("one_by_one", model))
    for trainer in refusing:
        with pytest.raises(ModelError, match="cannot be used"):
            trained(trainer, model)


@pytest.mark.parametrize("wrong", [torch.tanh, functional.gelu, nn.ReLU])
def test_another_function_of_torch_is_a_change_too(wrong: Any) -> None:
    with mock.patch.object(functional, "relu", wrong):
        assert changes(()) == ("a function of its own in the place of torch.nn.functional.relu",)
    with mock.patch.object(nn.Tanh, "forward", nn.GELU.forward):
        assert changes(tuple(KINDS)) == ("a method of its own in the place of Tanh.forward",)


def test_torchs_own_default_device_is_none() -> None:
    with torch.device("cpu"):
        assert not changes(tuple(KINDS))


def test_a_hook_of_all_modules_is_a_change() -> None:
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert changes(()) == ("a hook of all modules",)
    finally:
        handle.remove()


def own_forward(module: nn.Module) -> None:
    module[1].forward = doubled  # type: ignore[index]


@pytest.mark.parametrize(
    ("change", "around"),
    [(own_forward, nullcontext), (lambda _: None, lambda: mock.patch.object(functional, "dropout", doubled))],
)
def test_a_dropout_that_is_not_torchs_is_refused(
    change: Callable[[nn.Module], None], around: Callable[[], AbstractContextManager[Any]], trained: Run
) -> None:
    def model() -> nn.Module:
        module = nn.Sequential(nn.Linear(5, 3), nn.Dropout(0.5))
        change(module)
        return module

    with around(), pytest.raises(ModelError, match=r"whose nn\.Dropout is torch's"):
        trained("auto", model)


def test_a_process_with_another_torch_is_refused() -> None:
    check_same(["one"], ["one"])
    with pytest.raises(ExperimentError, match="script's process has one, but a worker"):
        check_same(["one"], [])
    with pytest.raises(ExperimentError, match="A worker has other, but"):
        check_same([], ["other"])


@pytest.mark.ray
def test_workers_without_the_change_refuse_the_run(ray_cluster: Any, trained: Run) -> None:
    with Functions(), pytest.raises(ExperimentError, match="has an active mode Functions, but a worker"):
        trained("auto", workers=1)
