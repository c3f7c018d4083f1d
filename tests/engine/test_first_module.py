"""What a script's factory makes is tried before the first round: nothing that raysim would get wrong gets through."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import raysim
from raysim.errors import ModelError

Make = Callable[..., raysim.Experiment]


class Linear(nn.Linear):
    """Five features, three classes."""

    def __init__(self) -> None:
        super().__init__(5, 3)


class NumpyNoise(Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + float(np.random.random())


class TrainingNoise(Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (random.random() if self.training else 1.0)


class NoiseInEvaluation(Linear):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(super().forward(x), 0.5, training=True)


class OwnNoise(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(1)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * float(self.rng.random())


class Counting(Linear):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) * self.calls


class Decaying(Linear):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight.mul_(0.5)
        return super().forward(x)


class OwnScale(Linear):
    """Each module has another number, as if it was drawn; two that were drawn may be too close to tell apart."""

    made = itertools.count(1)

    def __init__(self) -> None:
        super().__init__()
        self.scale = float(next(self.made))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale


class OwnMask(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.from_numpy(np.random.default_rng().random((64, 5)) < 0.5))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x @ self.mask.to(x.dtype).T @ self.mask.to(x.dtype))  # type: ignore[operator]


class ViewOfWeight(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.turned = [self.weight.data.T]

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.turned[0] + self.bias


class Caching(Linear):
    cached: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.cached is None:
            self.cached = self.weight.detach().clone()
        return super().forward(x) + x @ self.cached.T


class NewParameter(Linear):
    def forward(self, x: Tensor) -> Tensor:
        self.weight = nn.Parameter(self.weight.detach().clone())
        return super().forward(x)


class NewBuffer(Linear):
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(5))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return super().forward(x)


class ReturnsNothing(Linear):
    def train(self, mode: bool = True) -> Any:
        super().train(mode)


class TakesNothing(Linear):
    def train(self) -> Any:  # type: ignore[override]
        return super().train()


class OwnInitial(Linear):
    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            self.weight.copy_(torch.from_numpy(np.random.default_rng().normal(size=(3, 5))))


class TwoOfOneMemory(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        start = torch.randn(3, 5)
        self.a, self.b = nn.Parameter(start), nn.Parameter(start[1:])

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.a.T


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(5, 3, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return (x.to(torch.complex64) @ self.w).real


def with_buffer(buffer: Tensor) -> nn.Module:
    module = Linear()
    module.register_buffer("q", buffer)
    return module


def with_named(name: str) -> nn.Module:
    module = Linear()
    module.register_parameter(name, nn.Parameter(torch.zeros(1)))
    return module


def accumulating() -> nn.Module:
    module = Linear()
    module.weight.register_post_accumulate_grad_hook(lambda parameter: None)
    return module


def hooked_dropout() -> nn.Module:
    dropout = nn.Dropout(0.5)
    dropout.register_forward_hook(lambda module, x, made: made * 2)
    return nn.Sequential(Linear(), dropout)


def not_finite() -> nn.Module:
    module = Linear()
    nn.init.constant_(module.bias, float("inf"))
    return module


def failing() -> nn.Module:
    raise KeyError("no such file")


def on_meta() -> nn.Module:
    with torch.device("meta"):
        return Linear()


def scripted() -> Any:
    return torch.jit.script(nn.Linear(5, 3))


def traced() -> Any:
    return nn.Sequential(torch.jit.trace(nn.Linear(5, 3), torch.zeros(1, 5)))


class ClassMean(Linear):
    """Training moves a mean that belongs to the class; evaluation takes it away."""

    mean = torch.zeros(5)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            type(self).mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
            return super().forward(x)
        return super().forward(x - self.mean)


LAST: dict[str, Tensor] = {}


class GlobalMean(Linear):
    """The same in a variable of the file."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            LAST["mean"] = x.detach().mean(0)
            return super().forward(x)
        return super().forward(x - LAST.get("mean", torch.zeros(5)))


class OwnMean(Linear):
    """The same in the module itself, but in no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.means: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.means.append(x.detach().mean(0))
            return super().forward(x)
        return super().forward(x - sum(self.means, torch.zeros(5)))


class DefaultMean(Linear):
    """The same in a default of an argument."""

    def forward(self, x: Tensor, means: list[Tensor] = []) -> Tensor:  # noqa: B006
        if self.training:
            means.append(x.detach().mean(0))
            return super().forward(x)
        return super().forward(x - sum(means, torch.zeros(5)))


def around() -> Callable[[], nn.Module]:
    """The same in a variable around the factory."""
    means: list[Tensor] = []

    class Surrounded(Linear):
        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                means.append(x.detach().mean(0))
                return super().forward(x)
            return super().forward(x - sum(means, torch.zeros(5)))

    return Surrounded


class ClassParameter(Linear):
    scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale


class ListOfLayers(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(5, 5)]

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.layers[0](x))


MADE: list[nn.Linear] = []


class Registered(Linear):
    """Every module computes with the weight of the last one."""

    def __init__(self) -> None:
        super().__init__()
        MADE.append(self)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x @ MADE[-1].weight.detach().T


class GrowingGradient(Linear):
    """The first call has another gradient than the second, and the same outputs."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        made = super().forward(x)
        if self.training:
            self.calls += 1
            by = self.calls
            made.register_hook(lambda gradient: by * gradient)
        return made


class AddsUp(Linear):
    """A gradient of its own in training, which an optimizer of torch would step by."""

    def forward(self, x: Tensor) -> Tensor:
        made = super().forward(x)
        if self.training:
            made.square().sum().backward(retain_graph=True)
        return made


class AddsUpLate(AddsUp):
    """The same on larger batches alone."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if len(x) > 2 else Linear.forward(self, x)


class Reentrant(Linear):
    """Its own part of the gradient is made when backward() passes by."""

    def forward(self, x: Tensor) -> Tensor:
        made = checkpoint(super().forward, x.requires_grad_(self.training), use_reentrant=True)
        assert isinstance(made, Tensor)
        return made


class ReentrantInside(nn.Module):
    """The same behind a layer, where torch.autograd.grad fails."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 5), Linear()

    def forward(self, x: Tensor) -> Tensor:
        made = checkpoint(self.last, self.first(x), use_reentrant=True)
        assert isinstance(made, Tensor)
        return made


class FreezesItself(Linear):
    def forward(self, x: Tensor) -> Tensor:
        self.bias.requires_grad_(not self.training)
        return super().forward(x)


class EvaluatesItself(Linear):
    def forward(self, x: Tensor) -> Tensor:
        self.eval()
        return super().forward(x)


class TrainsItself(Linear):
    def forward(self, x: Tensor) -> Tensor:
        self.train()
        return super().forward(x)


class BooleanBuffer(Linear):
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(5, dtype=torch.bool))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen |= (x > 0).any(0)
            return super().forward(x)
        return super().forward(x * self.seen)


class FirstCall(Linear):
    """The first batch alone is scaled, as by layers that choose their initial values by it."""

    begun: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("begun", torch.tensor(False))

    def forward(self, x: Tensor) -> Tensor:
        made = super().forward(x) * (1 if self.begun else 2)
        if self.training:
            self.begun.fill_(True)
        return made


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 3, sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.table((x > 0).sum(1))
        return made


BUFFER = torch.ones(5)


class CommonBuffer(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", BUFFER)


SAME = Linear()
BODY = nn.Linear(5, 5)
VALUES = torch.randn(3, 5)
COMMON = nn.Parameter(torch.randn(3, 5))


def with_common_memory() -> nn.Module:
    module = Linear()
    module.weight.data = VALUES
    return module


def with_common_parameter() -> nn.Module:
    module = Linear()
    module.weight = COMMON
    return module


REFUSED: dict[str, tuple[Any, str]] = {
    "draws by NumPy": (NumpyNoise, "drew from a global generator in evaluation"),
    "draws by Python in training": (TrainingNoise, "drew from NumPy's or Python's global generator"),
    "draws by torch in evaluation": (NoiseInEvaluation, "drew from a global generator in evaluation"),
    "draws by itself": (OwnNoise, "draws from a generator of its own"),
    "counts": (Counting, "other outputs or gradients for the same examples a second time"),
    "changes its weights in evaluation": (Decaying, "other outputs or gradients for the same examples a second time"),
    "holds a number that was drawn": (OwnScale, "Two modules of model= gave different outputs"),
    "holds a mask that was drawn": (OwnMask, "Two modules of model= gave different outputs"),
    "holds a view of its weight": (ViewOfWeight, "Two modules of model= gave different outputs"),
    "holds a copy of its weight": (Caching, "Two modules of model= gave different outputs"),
    "replaces a parameter": (NewParameter, "another tensor in the place of 'weight'"),
    "replaces a buffer": (NewBuffer, "another tensor in the place of 'mean'"),
    "starts anywhere": (OwnInitial, "'weight' of a later one has other values"),
    "two in one memory": (TwoOfOneMemory, "'a' and 'b' share"),
    "the same module": (lambda: SAME, "two of its modules are the same"),
    "a common layer": (lambda: nn.Sequential(BODY, Linear()), "have a layer in common"),
    "a common tensor": (with_common_memory, "'weight' of one lies in the memory of another one's 'weight'"),
    "a common parameter": (with_common_parameter, "'weight' of one lies in the memory of another one's 'weight'"),
    "a common buffer": (CommonBuffer, "'scale' of one lies in the memory of another one's 'scale'"),
    "a mean in the class": (ClassMean, "After forward passes in training .* other outputs in evaluation"),
    "a mean in a global variable": (GlobalMean, "After forward passes in training .* other outputs in evaluation"),
    "a mean in a list of its own": (OwnMean, "After forward passes in training .* other outputs in evaluation"),
    "a mean in a default": (DefaultMean, "After forward passes in training .* other outputs in evaluation"),
    "a mean around the factory": (around(), "After forward passes in training .* other outputs in evaluation"),
    "a parameter of the class": (ClassParameter, r"shape \(3,\) that wants a gradient and is none of its parameters"),
    "layers in a list": (ListOfLayers, "none of its parameters, so that it would not be trained"),
    "the last one's weight": (Registered, "gave other outputs when another one had other values"),
    "adds gradients up": (AddsUp, "forward calls backward"),
    "adds gradients up as it is computed again": (Reentrant, "use_reentrant=True"),
    "adds gradients up behind a layer": (ReentrantInside, "use_reentrant=True"),
    "freezes a parameter": (FreezesItself, "changes requires_grad of a parameter"),
    "turns itself to evaluation": (EvaluatesItself, r"changes the module's mode: it calls self.eval\(\)"),
    "turns itself to training": (TrainsItself, r"changes the module's mode: it calls self.train\(\)"),
    "writes to a mask": (BooleanBuffer, "writes to its buffer 'seen' of dtype torch.bool"),
    "writes to a mask once": (FirstCall, "writes to its buffer 'begun' of dtype torch.bool"),
    "sparse gradients": (Sparse, "leave sparse=True out"),
    "a gradient that grows": (GrowingGradient, "other outputs or gradients for the same examples a second time"),
    "complex": (Complex, "'w' has the dtype torch.complex64"),
    "complex buffer": (lambda: with_buffer(torch.zeros(2, dtype=torch.complex64)), "'q' has the dtype torch.complex64"),
    "float8": (lambda: with_buffer(torch.zeros(2, dtype=torch.float8_e4m3fn)), "'q' has the dtype torch.float8"),
    "sparse": (lambda: with_buffer(torch.eye(2).to_sparse()), "'q' is quantized or sparse"),
    "lazy": (lambda: nn.LazyLinear(3), "'weight' is lazy"),
    "lazy buffer": (lambda: nn.Sequential(Linear(), nn.LazyBatchNorm1d(affine=False)), "'1.running_mean' is lazy"),
    "meta": (on_meta, "'weight' is on the device 'meta'"),
    "meta buffer": (lambda: with_buffer(torch.zeros(2, device="meta")), "'q' is on the device 'meta'"),
    "a name of no text": (lambda: with_named("\ud800"), "a name that UTF-8 cannot hold"),
    "a hook that is not called": (accumulating, "'weight' has a hook for accumulated gradients"),
    "a hook on a dropout": (hooked_dropout, "layer '1' has some"),
    "not finite": (not_finite, r"must be finite, but 3 of the 3 of 'bias' are not"),
    "torch.jit.script": (scripted, "the module is compiled by torch.jit"),
    "torch.jit.trace": (traced, "layer '0' is compiled by torch.jit"),
    "a factory that raises": (failing, r"could not make a module: KeyError\('no such file'\)\n(.|\n)*in failing"),
    "a factory of an argument": (
        lambda section: Linear(),
        r"takes no arguments, such as lambda: .*, but called without arguments: .* missing 1 required[^\n]*\.$",
    ),
    "train returns nothing": (ReturnsNothing, r"train\(mode\) and eval\(\) return the module, .* returned None"),
    "train takes nothing": (TakesNothing, r"its eval\(\) raised TypeError.*torch's method is train\(self, mode=True\)"),
    "no function": ("mlp", "must be a function that returns a new module, but got 'mlp'"),
    "a module": (SAME, "got a module: pass `lambda"),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit", "ignore:Lazy modules")
@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_the_first_round(
    name: str, tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    factory, message = REFUSED[name]
    with pytest.raises(ModelError, match=message):
        raysim.run(experiment(engine={"workers": 0}), model=factory, dataset=dataset, path=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_forward_that_adds_gradients_up_later_is_refused_there(
    dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    exp = experiment(engine={"workers": 0, "trainer": "one_by_one"})
    with pytest.raises(raysim.ClientError, match=r"forward calls backward\(\)"):
        params(AddsUpLate, dataset, exp)


class ClearsGradients(Linear):
    """Computes with a gradient that it takes by backward(), and removes it."""

    def forward(self, x: Tensor) -> Tensor:
        made = super().forward(x)
        if self.training:
            made.square().sum().backward(retain_graph=True)
            assert self.weight.grad is not None
            made = made - self.weight.grad.sum()
            self.zero_grad()
        return made


def test_forward_may_take_gradients_that_it_removes(dataset: raysim.FederatedDataset, experiment: Make) -> None:
    assert params(ClearsGradients, dataset, experiment(engine={"workers": 0, "trainer": "one_by_one"}))


class Hooked(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.register_forward_hook(lambda module, x, made: 2 * made)


class Doubled(Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class GlobalInitial(Linear):
    """Starts where NumPy's and Python's global generators say, with a mask that torch's says."""

    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            self.weight.copy_(torch.from_numpy(np.random.normal(size=(3, 5))))
            self.bias.fill_(random.random())
        self.kept = torch.rand(5) < 0.8

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * self.kept)


TABLE = torch.linspace(0.5, 1.0, 5)
KEPT: dict[int, Tensor] = {}


class CommonTable(Linear):
    """What modules have in common and leave as it is; and what they make once, from nothing that training changes."""

    table = TABLE.clone()

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * TABLE * self.table * KEPT.setdefault(len(x), torch.ones(5)))


def test_what_modules_have_in_common_and_leave_as_it_is_is_no_fault(
    dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    assert params(CommonTable, dataset, experiment(engine={"workers": 0}))


class InputGradient(Linear):
    """Its input wants a gradient, as in a model that computes with the gradient of an energy."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.clone().requires_grad_(True))


def test_forward_may_make_what_wants_a_gradient(dataset: raysim.FederatedDataset, experiment: Make) -> None:
    assert params(InputGradient, dataset, experiment(engine={"workers": 0}))


def params(factory: Any, dataset: raysim.FederatedDataset, exp: raysim.Experiment) -> dict[str, Tensor]:
    *_, last = raysim.rounds(exp, model=factory, dataset=dataset)
    return last.params


class Evaluating(nn.Module):
    """Stays in evaluation, as a backbone whose norms must not learn does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.drop = Linear(), nn.BatchNorm1d(3), nn.Dropout(0.5)

    def train(self, mode: bool = True) -> Evaluating:
        return super().train(False)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.drop(self.norm(self.layer(x)))
        return outputs


class EvaluatedInside(nn.Module):
    """Computes what `Evaluating` does, and is itself turned to training."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = Linear(), nn.BatchNorm1d(3)

    def train(self, mode: bool = True) -> EvaluatedInside:
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.norm(self.layer(x))
        return outputs


def test_a_module_may_stay_in_evaluation(dataset: raysim.FederatedDataset, experiment: Make) -> None:
    exp = experiment(engine={"workers": 0, "trainer": "one_by_one"})
    whole, inside = (params(kind, dataset, exp) for kind in (Evaluating, EvaluatedInside))
    assert all(torch.equal(whole[name], inside[name]) for name in inside)


def trained_before() -> nn.Module:
    """Leaves the last gradients behind."""
    module = Linear()
    for _ in range(2):
        module(torch.eye(5)).square().sum().backward()
        with torch.no_grad():
            module.bias.sub_(0.1)
    return module


def moved_before() -> nn.Module:
    module = Linear()
    with torch.no_grad():
        module.bias.sub_(0.1).sub_(0.1)
    return module


@pytest.mark.parametrize("trainer", ["auto", "one_by_one"])
def test_a_factory_may_train_what_it_makes(trainer: str, dataset: raysim.FederatedDataset, experiment: Make) -> None:
    exp = experiment(engine={"workers": 0, "trainer": trainer})
    with torch.no_grad():
        trained, moved = (params(factory, dataset, exp) for factory in (trained_before, moved_before))
    assert all(torch.equal(trained[name], moved[name]) for name in moved)


def test_a_forward_hook_is_a_part_of_the_model(dataset: raysim.FederatedDataset, experiment: Make) -> None:
    exp = experiment(engine={"workers": 0})
    hooked, doubled = (params(kind, dataset, exp) for kind in (Hooked, Doubled))
    assert all(torch.equal(hooked[name], doubled[name]) for name in hooked)


def test_a_factory_may_draw_from_every_global_generator(dataset: raysim.FederatedDataset, experiment: Make) -> None:
    """They start at the seed, and a script's own draws stay as they are."""
    exp = experiment(engine={"workers": 0})
    before = random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state()  # type: ignore[index]
    first = params(GlobalInitial, dataset, exp)
    after = random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state()  # type: ignore[index]
    assert before[:2] == after[:2]
    assert torch.equal(before[2], after[2])
    np.random.random()
    random.random()
    second = params(GlobalInitial, dataset, exp)
    assert all(torch.equal(first[name], second[name]) for name in first)


LOSSES: dict[str, tuple[Any, str]] = {
    "draws by NumPy": (
        lambda outputs, y: nn.functional.cross_entropy(outputs, y, reduction="none") * float(np.random.random()),
        "drew from a global generator",
    ),
    "writes to outputs": (
        lambda outputs, y: nn.functional.cross_entropy(outputs.mul_(2), y, reduction="none"),
        "must not write to outputs",
    ),
    "writes to targets": (
        lambda outputs, y: nn.functional.cross_entropy(outputs, y.fill_(1), reduction="none"),
        "must not write to targets",
    ),
    "writes to outputs unseen by torch": (
        lambda outputs, y: nn.functional.cross_entropy(outputs, y, reduction="none") + outputs.data.mul_(2).sum() * 0,
        "must not write to outputs",
    ),
    "draws by a generator of its own": (
        lambda outputs, y: nn.functional.cross_entropy(outputs, y, reduction="none") * np.random.default_rng().random(),
        "returned something else when it was called again",
    ),
    "is complex": (lambda outputs, y: outputs.sum(1) * 1j, "must return real numbers, but they are of torch.complex64"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_that_no_worker_can_repeat_is_refused(
    name: str, tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    loss, message = LOSSES[name]
    exp = experiment(engine={"workers": 0})
    with pytest.raises(ModelError, match=message):
        raysim.run(exp, model=Linear, loss=loss, dataset=dataset, path=tmp_path / "run")


@pytest.mark.parametrize(("where", "trains"), [("Training", True), ("Evaluating", False)])
@pytest.mark.parametrize("name", ["outputs", "targets"])
def test_a_loss_that_writes_on_some_batches_alone_is_refused_there(
    name: str, where: str, trains: bool, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    """What is tried before the first round is a batch of two: accuracy would count what later ones are changed to."""

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        losses = nn.functional.cross_entropy(outputs.clone(), targets.clone(), reduction="none")
        if len(targets) > 2 and outputs.requires_grad == trains:
            (outputs if name == "outputs" else targets).mul_(0)
        return losses

    exp = experiment(engine={"workers": 0, "trainer": "one_by_one"})
    with pytest.raises(raysim.ClientError, match=rf"(?s){where} client.*must not write to {name}"):
        list(raysim.rounds(exp, model=Linear, loss=loss, dataset=dataset))


def linear_with(buffer: Tensor) -> Callable[[], nn.Module]:
    """A layer with a buffer that it does not use."""

    def made() -> nn.Module:
        module = Linear()
        module.register_buffer("q", buffer.clone())
        return module

    return made


BIG = 1.7e9 + torch.arange(100, dtype=torch.float64)


@pytest.mark.parametrize(
    ("buffer", "dtype", "lost"),
    [
        (BIG, "float32", True),
        (1 + 1e-12 * torch.arange(5, dtype=torch.float64), "float32", True),
        (torch.tensor([1.0, 1e-60], dtype=torch.float64), "float32", True),
        (torch.tensor([1.0, -1e60], dtype=torch.float64), "float32", True),
        (BIG, "float64", False),
        (BIG.float(), "float32", False),
        (torch.linspace(0, 1, 1000, dtype=torch.float64), "float32", False),
        (torch.logspace(-30, 30, 100, dtype=torch.float64), "float32", False),
        (torch.tensor([0.0, torch.inf, -torch.inf], dtype=torch.float64), "float32", False),
        (torch.full((3,), 0.1, dtype=torch.float64), "float32", False),
        (torch.randn(100_000, dtype=torch.float64), "float32", False),
        (torch.zeros(0, dtype=torch.float64), "float32", False),
        (torch.arange(3), "float32", False),
    ],
)
def test_values_of_a_buffer_that_rounding_loses_are_warned_of(
    buffer: Tensor,
    dtype: str,
    lost: bool,
    dataset: raysim.FederatedDataset,
    experiment: Make,
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = experiment(model=None, rounds=1, engine={"workers": 0, "dtype": dtype})
    list(raysim.rounds(made, model=linear_with(buffer), dataset=dataset))
    assert ("engine.dtype = 'float32', in which the values of 'q' are no longer told apart" in caplog.text) is lost
    assert ("no longer told apart" in caplog.text) is lost


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "around", [lambda net: net, lambda net: nn.Sequential(net[0], nn.Linear(4, 3))], ids=["itself", "a layer"]
)
def test_a_module_of_the_script_that_is_refused_stays_as_it_was(
    around: Callable[[nn.Module], nn.Module], dtype: str, experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    # A script that then copies it, as the message says, would go on with other values.
    body = nn.Linear(5, 4)
    body.weight.requires_grad_(False)
    net = nn.Sequential(body, nn.BatchNorm1d(4), nn.Linear(4, 3))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    held = [tensor.data_ptr() for tensor in net.parameters() if tensor.requires_grad]
    with pytest.raises(ModelError, match="two of its modules are the same"):
        list(
            raysim.rounds(experiment(engine={"workers": 0, "dtype": dtype}), dataset=dataset, model=lambda: around(net))
        )
    after = net.state_dict()
    assert all(torch.equal(after[name], value) and after[name].dtype == value.dtype for name, value in before.items())
    assert [tensor.data_ptr() for tensor in net.parameters() if tensor.requires_grad] == held
    body.weight.data.add_(1.0)
