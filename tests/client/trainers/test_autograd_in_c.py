"""Autograd's steps with convolutions in C: torch's numbers, and torch where more than a gradient is asked."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import raysim
from raysim.client.trainers.autograd import convolution
from raysim.client.trainers.autograd.in_c import InC, by_kernels
from raysim.client.trainers.bound_module import BoundModule
from raysim.client.trainers.kernel.depthwise import Depthwise
from raysim.client.trainers.kernel.kernels import Kernels
from raysim.client.trainers.kernel.winograd import Winograd
from raysim.client.trainers.recording.recorded_steps import StepRecording
from raysim.models.model import create
from raysim.models.task import task_for
from tests.support.chosen_updates import Make
from tests.support.interrupted import same_records
from tests.support.kernel import needs_kernel
from tests.support.lying import as_it_is, last, part

DTYPE = torch.float64


LOOSE: Any = functional.conv2d
"""It takes more than its types say."""


class Calls(list[str]):
    """What was computed in C, in order."""


def counted(patch: pytest.MonkeyPatch, made: Calls, owner: type, name: str) -> None:
    method = getattr(owner, name)

    def called(*given: Any) -> Any:
        made.append(name)
        return method(*given)

    patch.setattr(owner, name, called)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    needs_kernel()
    made = Calls()
    counted(monkeypatch, made, Winograd, "convolution")
    counted(monkeypatch, made, Winograd, "gradients")
    counted(monkeypatch, made, Depthwise, "kernels_gradient")
    monkeypatch.setattr(convolution, "LEAST_PRODUCTS", 0)
    return made


def kernels(dtype: torch.dtype = DTYPE) -> Kernels:
    return Kernels(winograd=Winograd(dtype), depthwise=Depthwise(dtype))


def in_c() -> InC:
    return InC(kernels(), DTYPE)


def drawn(*shape: int, dtype: torch.dtype = DTYPE) -> Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape))).requires_grad_()


def both_ways(compute: Callable[..., Tensor], *operands: Tensor) -> tuple[Tensor, ...]:
    """The result and the gradients of the operands, in C; they are torch's."""
    made = []
    for block in (in_c(), nullcontext()):
        with block:
            y = compute(*operands)
            seed = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(1))
            made.append((y, *torch.autograd.grad(y, operands, seed)))
    for got, wanted in zip(*made, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-10)
    return made[0]


CONVOLUTIONS: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...], list[str]]] = {
    "3 x 3": (lambda x, w: functional.conv2d(x, w, padding=1), ((4, 16, 8, 8), (16, 16, 3, 3)), ["filter"]),
    "5 x 5, bias": (
        lambda x, w, b: functional.conv2d(x, w, b, 1, 2),
        ((4, 16, 8, 8), (24, 16, 5, 5), (24,)),
        ["filter"],
    ),
    "by name": (
        lambda x, w: torch.conv2d(input=x, weight=w, padding="same"),
        ((4, 16, 8, 8), (16, 16, 3, 3)),
        ["filter"],
    ),
    "valid": (lambda x, w: torch.conv2d(x, w, padding="valid"), ((2, 16, 9, 10), (16, 16, 3, 3)), ["filter"]),
    "kernels that are computed": (
        lambda x, w: functional.conv2d(x, w - w.mean((1, 2, 3), keepdim=True)),
        ((4, 16, 8, 8), (16, 16, 3, 3)),
        ["filter"],
    ),
    "depthwise": (
        lambda x, w: functional.conv2d(x, w, padding=3, groups=16),
        ((4, 16, 8, 8), (16, 1, 7, 7)),
        ["by channel"],
    ),
    "depthwise, one axis, even": (
        lambda x, w: functional.conv1d(x, w, stride=(2,), groups=16),
        ((4, 16, 30), (16, 1, 4)),
        ["by channel"],
    ),
    # Torch's.
    "stride 2": (lambda x, w: functional.conv2d(x, w, stride=2), ((4, 16, 8, 8), (16, 16, 3, 3)), []),
    "dilation 2": (lambda x, w: functional.conv2d(x, w, dilation=2), ((4, 16, 8, 8), (16, 16, 3, 3)), []),
    "few channels": (lambda x, w: functional.conv2d(x, w), ((4, 3, 8, 8), (16, 3, 3, 3)), []),
    "an example by itself": (lambda x, w: functional.conv2d(x, w), ((16, 8, 8), (16, 16, 3, 3)), []),
    "same, an even kernel": (
        lambda x, w: functional.conv1d(x, w, padding="same", groups=16),
        ((4, 16, 30), (16, 1, 4)),
        [],
    ),
    "no example": (lambda x, w: functional.conv2d(x[:0], w), ((4, 16, 8, 8), (16, 16, 3, 3)), []),
    "numbers of NumPy": (
        lambda x, w: LOOSE(x, w, stride=np.int64(1), padding=np.int64(1)),
        ((4, 16, 8, 8), (16, 16, 3, 3)),
        [],
    ),
    "a number that is a tensor": (
        lambda x, w: LOOSE(x, w, padding=torch.tensor(1)),
        ((4, 16, 8, 8), (16, 16, 3, 3)),
        [],
    ),
    "no channels": (lambda x, w: functional.conv2d(x[:, :0], w[:, :0]), ((4, 16, 8, 8), (16, 16, 3, 3)), []),
    "negated numbers": (
        lambda x, w: functional.conv2d(torch.complex(x, x).conj().imag, w),
        ((4, 16, 8, 8), (16, 16, 3, 3)),
        [],
    ),
}
IN_C = {"filter": ["convolution", "gradients"], "by channel": ["kernels_gradient"]}


@pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_numbers_and_layouts_are_torchs(name: str, calls: Calls) -> None:
    compute, shapes, by = CONVOLUTIONS[name]
    both_ways(compute, *(drawn(*shape) for shape in shapes))
    assert calls == [one for each in by for one in IN_C[each]]


@pytest.mark.parametrize("lying", [as_it_is, last, part])
def test_maps_behind_lie_as_torchs(lying: Callable[[Tensor], Tensor], calls: Calls) -> None:
    x, w = drawn(4, 16, 8, 8), drawn(16, 16, 3, 3)
    for map_of, kernels_of in ((lying, as_it_is), (as_it_is, lying)):
        operands = map_of(x.detach()), kernels_of(w.detach())
        wanted = functional.conv2d(*operands, padding=1)
        with in_c():
            got = functional.conv2d(*operands, padding=1)
        torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-10)
        assert got.stride() == wanted.stride()
        both_ways(lambda x, w, a=map_of, b=kernels_of: functional.conv2d(a(x), b(w), padding=1).relu(), x, w)
    assert calls == ["convolution", *IN_C["filter"]] * 2


def test_a_gradient_that_is_expanded(calls: Calls) -> None:
    """A sum's: no number of its own for each place."""
    both_ways(lambda x, w: functional.conv2d(x, w).sum(), drawn(4, 16, 8, 8), drawn(16, 16, 3, 3))
    assert calls == IN_C["filter"]


def test_small_convolutions_are_torchs(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = drawn(4, 16, 8, 8), drawn(16, 16, 3, 3)
    for least, by in ((4 * 64 * w.numel() + 1, []), (4 * 64 * w.numel(), IN_C["filter"])):
        monkeypatch.setattr(convolution, "LEAST_PRODUCTS", least)
        both_ways(lambda x, w: functional.conv2d(x, w, padding=1), x, w)
        assert calls == by


def test_only_wanted_gradients_are_made(calls: Calls) -> None:
    x, w = drawn(4, 16, 8, 8).detach(), drawn(16, 16, 3, 3)
    (dw,) = both_ways(lambda w: functional.conv2d(x, w), w)[1:]
    assert dw.shape == w.shape
    with in_c(), torch.no_grad():
        assert not functional.conv2d(x, w).requires_grad
    assert calls == [*IN_C["filter"], "convolution"]


def test_second_derivatives_are_torchs(calls: Calls) -> None:
    x, w = drawn(4, 16, 8, 8), drawn(16, 16, 3, 3)

    def curved(x: Tensor, w: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad(functional.conv2d(x, w, padding=1).tanh().sum(), w, create_graph=True)
        return slope.square().sum()

    both_ways(curved, x, w)
    # The last gradient is not to be differentiated.
    assert calls == IN_C["filter"]


def test_checkpointed_convolutions_may_be_computed_again(calls: Calls) -> None:
    def block(x: Tensor, w: Tensor) -> Tensor:
        return functional.conv2d(x, w, padding=1).tanh()

    both_ways(
        lambda x, w: cast(Tensor, checkpoint(block, x, w, use_reentrant=False)), drawn(4, 16, 8, 8), drawn(16, 16, 3, 3)
    )
    assert calls == IN_C["filter"]


class Nothing(torch.autograd.Function):
    """Its result depends on nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> None:
        return None


def test_what_nothing_behind_depends_on_has_no_gradient(calls: Calls) -> None:
    x, w = drawn(4, 16, 8, 8), drawn(16, 16, 3, 3)
    with in_c():
        y = Nothing.apply(functional.conv2d(x, w)).sum()  # type: ignore[no-untyped-call]
        assert [*torch.autograd.grad(y, (x, w), allow_unused=True)] == [None, None]
    assert calls == ["convolution"]


def test_kernels_that_are_not_trained_are_torchs(calls: Calls) -> None:
    x, w = drawn(4, 16, 8, 8), drawn(16, 1, 7, 7).detach()
    both_ways(lambda x: functional.conv2d(x, w, padding=3, groups=16), x)
    assert not calls


@pytest.mark.parametrize("fullgraph", [False, True])
def test_what_torch_compiles_is_compiled(fullgraph: bool, calls: Calls) -> None:
    def block(x: Tensor, w: Tensor) -> Tensor:
        return functional.conv2d(x, w).relu()

    torch._dynamo.reset()
    both_ways(torch.compile(block, backend="eager", fullgraph=fullgraph), drawn(4, 16, 8, 8), drawn(16, 16, 3, 3))
    # By this backend, which calls torch's functions.
    assert calls == IN_C["filter"]


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
def test_a_condition_of_torch_is_torchs(calls: Calls) -> None:
    def branching(x: Tensor, w: Tensor) -> Tensor:
        return cast(Tensor, torch.cond(x.mean() > 0, lambda x: x.sin(), lambda x: x.cos(), (functional.conv2d(x, w),)))

    both_ways(branching, drawn(4, 16, 8, 8), drawn(16, 16, 3, 3))
    assert calls == IN_C["filter"]


def hooked(module: nn.Module) -> nn.Module:
    module.second.register_backward_hook(lambda *_: None)  # type: ignore[union-attr]
    return module


def test_only_modules_that_gain_are_looked_into() -> None:
    needs_kernel()
    large = nn.Sequential(nn.Conv2d(32, 32, 3))
    taken = (large, hooked(Branching(32)), nn.Conv2d(8, 8, 3), nn.Linear(200, 100), nn.Conv2d(8, 8, 5, groups=8))
    blocks = [by_kernels(module, kernels(), DTYPE) for module in taken]
    assert [isinstance(block, InC) for block in blocks] == [True, False, False, False, True]
    assert not isinstance(by_kernels(large, Kernels(depthwise=Depthwise(DTYPE)), DTYPE), InC)


def by_grad(x: Tensor, w: Tensor) -> Tensor:
    return torch.func.grad(lambda w: functional.conv2d(x, w).square().sum())(w)


def by_vmap(x: Tensor, w: Tensor) -> Tensor:
    return torch.vmap(lambda one: functional.conv2d(one[None], w))(x)


def by_tangent(x: Tensor, w: Tensor) -> Tensor:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(w, torch.ones_like(w))
        return cast(Tensor, forward_ad.unpack_dual(functional.conv2d(x, dual)).tangent)


def by_autocast(x: Tensor, w: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return functional.conv2d(x.float(), w.float()).to(x.dtype)


def in_float32(x: Tensor, w: Tensor) -> Tensor:
    return functional.conv2d(x.float(), w.float()).to(x.dtype)


class Named(Tensor):
    """A subclass, which may do anything."""


def of_a_subclass(x: Tensor, w: Tensor) -> Tensor:
    return functional.conv2d(x.as_subclass(Named), w).as_subclass(Tensor)


class Seen(TorchDispatchMode):
    """Whoever looks at operators sees torch's."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        return 2 * made if func is torch.ops.aten.convolution.default else made


def by_operators(x: Tensor, w: Tensor) -> Tensor:
    with Seen():  # type: ignore[no-untyped-call]
        return functional.conv2d(x, w)


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize(
    "compute", [by_grad, by_vmap, by_tangent, by_autocast, by_operators, in_float32, of_a_subclass]
)
def test_others_are_torchs(compute: Callable[[Tensor, Tensor], Tensor], calls: Calls) -> None:
    x, w = (drawn(*shape).detach() for shape in ((4, 16, 8, 8), (16, 16, 3, 3)))
    with in_c():
        got = compute(x, w)
    assert torch.equal(got, compute(x, w))
    assert not calls


@pytest.mark.parametrize(
    ("x", "w", "more"),
    [
        ((4, 15, 8, 8), (16, 16, 3, 3), {}),
        ((4, 16, 8), (16, 16, 3, 3), {}),
        ((4, 16, 8, 8), (16, 16, 3, 3), {"bias": torch.zeros(3, dtype=DTYPE)}),
        ((4, 16, 8, 8), (16, 16, 3, 3), {"padding": (1, 1, 1)}),
        ((4, 16, 8, 8), (16, 16, 3, 3), {"pading": 1}),
        ((4, 16, 8, 8), (16, 16, 3, 3), {"padding": (1, -1)}),
        ((4, 16, 8, 8), (16, 16, 3, 3), {"padding": "x"}),
        ((4, 16, 8, 8), (16, 1, 3, 3), {"padding": "reflect", "groups": 16}),
        ((4, 16, 8, 8), (16, 1, 7, 7), {"padding": "same", "stride": 2, "groups": 16}),
        ((4, 16, 8, 8), (16, 16, 3, 3), {"padding": "same", "dilation": (1, 1, 1)}),
        ((4, 16, 2, 2), (16, 16, 3, 3), {}),
    ],
)
def test_torch_says_what_is_wrong(x: Any, w: Any, more: dict[str, Any], calls: Calls) -> None:
    said = []
    for block in (in_c(), nullcontext()):
        with block, pytest.raises((RuntimeError, TypeError)) as raised:
            functional.conv2d(drawn(*x), drawn(*w), **more)
        said.append(str(raised.value))
    assert said[0] == said[1]
    assert not calls


class Branching(nn.Module):
    """No recording holds for other numbers: it goes by what it sees."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.out = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.first(x).relu()
        if seen.mean().item() > -1:
            seen = self.second(seen).relu()
        return cast(Tensor, self.out(seen.mean((2, 3))))


@pytest.mark.parametrize("from_outputs", [True, False])
def test_a_bound_modules_steps_are_torchs(from_outputs: bool, calls: Calls) -> None:
    model, weights = create(Branching, 0, DTYPE)
    x, y = drawn(6, 1, 8, 8).detach(), torch.arange(6) % 4
    made = []
    for by in (kernels(), Kernels()):
        recording = StepRecording(kernels=by, from_outputs=from_outputs)
        bound = BoundModule(model, weights, task_for(4, None), DTYPE, plain=False, recording=recording)
        bound.load(weights)
        bound.differentiate(x, y, None, 1.0)
        made.append(bound.gradient.clone())
    torch.testing.assert_close(*made, rtol=1e-10, atol=1e-12)
    assert calls == ["convolution", "gradients"]


def test_a_run_by_autograd_computes_in_c_and_goes_on_so(experiment: Make, tmp_path: Any, calls: Calls) -> None:
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 1, 8, 8, generator=draw), torch.arange(40) % 4
    parts: dict[str, Any] = {
        "dataset": raysim.FederatedDataset.from_clients(train={str(k): (x[k::4], y[k::4]) for k in range(4)}),
        "model": Branching,
    }
    settings: Any = {"engine": {"workers": 0, "trainer": "one_by_one"}, "cohort": {"size": 3}}
    whole = raysim.run(experiment(rounds=3, **settings), path=tmp_path / "whole", **parts)
    raysim.run(experiment(rounds=2, **settings), path=tmp_path / "run", **parts)
    assert "gradients" in calls
    calls.clear()
    same_records(raysim.resume(tmp_path / "run", rounds=3, **parts), whole)
    assert "gradients" in calls
