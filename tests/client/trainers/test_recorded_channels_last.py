"""Recorded steps whose maps lie channels last compute what autograd does, with few copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from raysim.client.trainers.bound_module import BoundModule
from raysim.client.trainers.kernel.kernels import Kernels
from raysim.client.trainers.kernel.winograd import Winograd
from raysim.client.trainers.recording import channels_last, local_step
from raysim.client.trainers.recording.recorded_steps import StepRecording
from raysim.client.trainers.recording.simplify import Program
from raysim.models.model import create
from raysim.models.task import task_for
from tests.support.kernel import needs_kernel

TASK = task_for(4, None)
SIZE = 12


class OfMaps(nn.Module):
    """Layers and a forward of the test's own, from images of 3 x 12 x 12 to 4 outputs."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor], width: int = 8, **layers: nn.Module) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.out = nn.Linear(width, 4)
        self._own = forward

    def forward(self, x: Tensor) -> Tensor:
        maps = self._own(self, x.view(len(x), 3, SIZE, SIZE))
        return cast(Tensor, self.out(maps.mean((2, 3)) if maps.dim() == 4 else maps))


def residual(self: Any, x: Tensor) -> Tensor:
    h = torch.relu(self.norm(self.first(x)))
    return torch.relu(self.norm(self.conv(h)) + h)


def in_place(self: Any, x: Tensor) -> Tensor:
    h = functional.relu_(self.norm(self.first(x)))
    h = self.conv(h)
    h += 0.1
    return functional.relu_(h)


def by_channel(self: Any, x: Tensor) -> Tensor:
    h = functional.hardswish(self.first(x))
    return functional.hardswish(self.point(self.depth(h)))


def gated(self: Any, x: Tensor) -> Tensor:
    h = functional.gelu(self.first(x))
    return h * torch.sigmoid(h.mean((2, 3), keepdim=True)) * torch.linspace(0.5, 1, SIZE, dtype=h.dtype)


def flattened(self: Any, x: Tensor) -> Tensor:
    h = functional.max_pool2d(torch.relu(self.first(x)), 2)
    return self.reduce(h.view(len(x), -1))


def standardised(self: Any, x: Tensor) -> Tensor:
    kernel = self.conv.weight
    rows = kernel.view(len(kernel), -1)
    kernel = ((rows - rows.mean(1, keepdim=True)) / rows.std(1, keepdim=True)).view_as(kernel)
    return functional.conv2d(torch.relu(self.first(x)), kernel, None, padding=1)


def twice(self: Any, x: Tensor) -> Tensor:
    return self.conv(torch.tanh(self.conv(torch.tanh(self.first(x)))))


def turned(self: Any, x: Tensor) -> Tensor:
    h = self.conv(torch.relu(self.first(x)))
    # Neighbours in memory: a view that asks how its operand lies.
    return h.permute(0, 2, 3, 1).reshape(len(x), -1, 8).view(len(x), SIZE, SIZE, 8).permute(0, 3, 1, 2)


def written_through_a_view(self: Any, x: Tensor) -> Tensor:
    h = self.conv(torch.relu(self.first(x)))
    with torch.no_grad():
        h[:, 0].mul_(0.5)
    return h + self.conv(h)


def padded(self: Any, x: Tensor) -> Tensor:
    h = functional.pad(self.first(x), (1, 1, 1, 1), mode="replicate")
    return functional.avg_pool2d(self.conv(h), 2)


def drawing(self: Any, x: Tensor) -> Tensor:
    h = torch.relu(self.first(x))
    return self.conv(h * torch.empty_like(h).bernoulli_(0.5))


class KeepsMaps(OfMaps):
    """With a buffer of four images' maps."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor], **layers: nn.Module) -> None:
        super().__init__(forward, 8, **layers)
        self.register_buffer("kept", torch.zeros(4, 8, SIZE, SIZE))


def written_to_a_buffer(self: Any, x: Tensor) -> Tensor:
    h = self.conv(torch.relu(self.first(x)))
    with torch.no_grad():
        self.kept.add_(h)
    return h * self.kept


def of_five_dimensions(self: Any, x: Tensor) -> Tensor:
    h = self.first(x) * torch.linspace(0.5, 1, 16, dtype=x.dtype).view(2, 1, 8, 1, 1)
    return self.conv(h.as_strided((2 * len(x), 8, SIZE, SIZE), (8 * SIZE**2, SIZE**2, SIZE, 1)))[: len(x)]


def far_from_0(self: Any, x: Tensor) -> Tensor:
    return torch.relu(self.norm(self.first(x) + 100.0))


def joined(self: Any, x: Tensor) -> Tensor:
    h = self.norm(self.first(x))
    # The gradient of the norm's maps is the sum of a slice and of what a convolution made.
    return self.reduce(torch.cat([h, self.conv(h)], 1))


def conv(**options: Any) -> nn.Conv2d:
    return nn.Conv2d(8, 8, 3, padding=1, **options)


def given_channels_last(self: Any, x: Tensor) -> Tensor:
    h = self.conv(self.first(x).permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2))
    # A view that torch's layout allows.
    rows = h.permute(0, 2, 3, 1).view(len(x), SIZE, SIZE * 8).view(len(x), -1, 8)
    return torch.relu(rows).mean(1)


MODULES: dict[str, Callable[[], nn.Module]] = {
    "residual": lambda: OfMaps(residual, norm=nn.GroupNorm(2, 8), conv=conv(bias=False)),
    "in place": lambda: OfMaps(in_place, norm=nn.BatchNorm2d(8), conv=conv()),
    "a kernel for each channel": lambda: OfMaps(by_channel, depth=conv(groups=8), point=nn.Conv2d(8, 8, 1)),
    "gated": lambda: OfMaps(gated),
    "flattened": lambda: OfMaps(flattened, reduce=nn.Linear(8 * 36, 8)),
    "standardised kernel": lambda: OfMaps(standardised, conv=conv()),
    "one kernel twice": lambda: OfMaps(twice, conv=conv()),
    "turned": lambda: OfMaps(turned, conv=conv()),
    "written through a view": lambda: OfMaps(written_through_a_view, conv=conv()),
    "padded": lambda: OfMaps(padded, conv=nn.Conv2d(8, 8, 3)),
    "written to a buffer": lambda: KeepsMaps(written_to_a_buffer, conv=conv()),
    "of five dimensions": lambda: OfMaps(of_five_dimensions, conv=conv()),
    "joined": lambda: OfMaps(joined, norm=nn.GroupNorm(2, 8), conv=conv(), reduce=nn.Conv2d(16, 8, 1)),
    "draws": lambda: OfMaps(drawing, conv=conv()),
    "given channels last": lambda: OfMaps(given_channels_last, conv=conv()),
}


def bound_to(
    model: Any, weights: Any, plain: bool, lengths: tuple[int, ...], winograd: Winograd | None = None
) -> BoundModule:
    recording = StepRecording(lengths, kernels=Kernels(winograd))
    made = BoundModule(model, weights, TASK, weights.params.dtype, plain=plain, recording=recording)
    made.load(weights)
    return made


def source(bound: BoundModule, length: int) -> str:
    recorded = bound._recorded._steps[length]
    assert recorded is not None
    return str(recorded.__doc__)


@pytest.fixture
def any_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Maps lie channels last, however many copies that takes."""
    monkeypatch.setattr(channels_last, "MOST_COPIED", 100.0)


def check_by_autograd(name: str, plain: bool, winograd: Winograd | None) -> str:
    """Assert that recorded steps are autograd's; return their source."""
    model, weights = create(MODULES[name], 0, torch.float64)
    x, y = torch.randn(4, 3 * SIZE**2, dtype=torch.float64), torch.tensor([0, 1, 2, 3])
    got, wanted = (bound_to(model, weights, plain, lengths, winograd) for lengths in ((4,), ()))
    assert got.record([x], [y], [4])
    for batch in (x, x.flip(0)):
        for bound in (got, wanted):
            torch.manual_seed(0)
            with torch.no_grad():
                bound.differentiate(batch, y, None, -0.1 if plain else 1.0)
        torch.testing.assert_close(got.gradient, wanted.gradient, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(got.weights.buffers, wanted.weights.buffers, rtol=1e-10, atol=1e-12)
    assert not torch.equal(got.gradient, weights.params)
    return source(got, 4)


@pytest.mark.usefixtures("any_copies")
@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("name", MODULES)
def test_maps_channels_last_leave_the_numbers_as_they_are(name: str, plain: bool) -> None:
    assert "memory_format" in check_by_autograd(name, plain, None)


@pytest.mark.parametrize("copies", ["few", "any"])
@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("name", MODULES)
def test_convolutions_by_minimal_filtering_are_autograds(
    name: str, plain: bool, copies: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_kernel()
    if copies == "any":
        monkeypatch.setattr(channels_last, "MOST_COPIED", 100.0)
    winograd = Winograd(torch.float64)
    calls = [count_calls(monkeypatch, winograd, one) for one in ("convolution", "gradients")]
    check_by_autograd(name, plain, winograd)
    # Of 8 channels, each with any of the others.
    filters = name not in ("a kernel for each channel", "gated", "flattened")
    # Once where the recording is tried, and in each local step.
    assert [len(one) > 2 for one in calls] == [filters, filters]


def count_calls(patch: pytest.MonkeyPatch, winograd: Winograd, name: str) -> list[None]:
    """A list that has an entry for each call of the method."""
    calls: list[None] = []
    method = getattr(winograd, name)

    def counted(*given: Any) -> Any:
        calls.append(None)
        return method(*given)

    patch.setattr(winograd, name, counted)
    return calls


def layouts(forward: Callable[[Any, Tensor], Tensor], **layers: nn.Module) -> list[torch.memory_format]:
    """Of the maps that minimal filtering makes, forward before backward."""
    made: list[torch.memory_format] = []

    class Watched(Winograd):
        def convolution(self, *given: Any) -> Tensor:
            made.append(given[-1])
            return super().convolution(*given)

        def gradients(self, *given: Any) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
            made.append(given[-1])
            return super().gradients(*given)

    model, weights = create(lambda: OfMaps(forward, 16, **layers), 0, torch.float64)
    bound = bound_to(model, weights, True, (20,), Watched(torch.float64))
    x, y = torch.randn(20, 3 * SIZE**2, dtype=torch.float64), torch.arange(20) % 4
    assert bound.record([x], [y], [20])
    made.clear()
    with torch.no_grad():
        bound.differentiate(x, y, None, -0.1)
    return made


def test_maps_lie_as_their_readers_want_them() -> None:
    needs_kernel()

    def normed(self: Any, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(torch.relu(self.norm(self.first(x))))))

    def pooled(self: Any, x: Tensor) -> Tensor:
        return functional.max_pool2d(torch.relu(self.conv(torch.relu(self.first(x)))), 2)

    def one() -> nn.Conv2d:
        return nn.Conv2d(16, 16, 3, padding=1)

    # A group norm takes the usual order, and a pooling gains by the other one.
    assert layouts(normed, norm=nn.GroupNorm(2, 16), conv=one()) == [torch.contiguous_format] * 2
    assert layouts(pooled, conv=one()) == [torch.channels_last] * 2


def test_a_layer_behind_another_needs_no_copy_of_its_maps() -> None:
    model, weights = create(lambda: OfMaps(residual, norm=nn.BatchNorm2d(8), conv=conv(bias=False)), 0, torch.float64)
    bound = bound_to(model, weights, True, (4,))
    assert bound.record([torch.randn(4, 3 * SIZE**2, dtype=torch.float64)], [torch.tensor([0, 1, 2, 3])], [4])
    # The images, two kernels, the last maps, and their gradient, which a mean over places made.
    assert source(bound, 4).count("memory_format") == 5


@pytest.mark.usefixtures("any_copies")
def test_a_group_norm_of_maps_far_from_0_is_as_precise_as_before() -> None:
    model, weights = create(lambda: OfMaps(far_from_0, norm=nn.GroupNorm(1, 8)), 0, torch.float32)
    x, y = torch.randn(4, 3 * SIZE**2), torch.tensor([0, 1, 2, 3])
    got, wanted = (bound_to(model, weights, False, lengths) for lengths in ((4,), ()))
    assert got.record([x], [y], [4])
    assert "memory_format" in source(got, 4)
    with torch.no_grad():
        outputs, expected = (bound.differentiate(x, y, None, 1.0)[0] for bound in (got, wanted))
    # With the variance as E[x^2] - E[x]^2 they differ by a thousandth.
    torch.testing.assert_close(outputs, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "is_used"), [("one kernel twice", True), ("residual", False), ("gated", False)])
def test_maps_that_need_a_copy_at_each_convolution_stay_as_they_are(name: str, is_used: bool) -> None:
    model, weights = create(MODULES[name], 0, torch.float64)
    bound = bound_to(model, weights, True, (4,))
    assert bound.record([torch.randn(4, 3 * SIZE**2, dtype=torch.float64)], [torch.tensor([0, 1, 2, 3])], [4])
    assert ("memory_format" in source(bound, 4)) == is_used


def test_poolings_work_channels_last_where_convolutions_do_not() -> None:
    def pooled(self: Any, x: Tensor) -> Tensor:
        return functional.max_pool2d(torch.relu(self.norm(self.first(x))), 2)

    model, weights = create(lambda: OfMaps(pooled, 32, norm=nn.GroupNorm(2, 32)), 0, torch.float64)
    bound = bound_to(model, weights, True, (8,))
    assert bound.record([torch.randn(8, 3 * SIZE**2, dtype=torch.float64)], [torch.arange(8) % 4], [8])
    # Of the maps before, and of what the pooling made: maps and places. Its backward pass works as it was recorded.
    assert source(bound, 8).count("memory_format") == 3


def test_joined_maps_need_no_copy() -> None:
    def joining(self: Any, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        return self.reduce(torch.relu(torch.cat([h, torch.relu(self.conv(h))], 1)))

    model, weights = create(lambda: OfMaps(joining, conv=conv(), reduce=nn.Conv2d(16, 8, 3)), 0, torch.float64)
    bound = bound_to(model, weights, True, (4,))
    assert bound.record([torch.randn(4, 3 * SIZE**2, dtype=torch.float64)], [torch.tensor([0, 1, 2, 3])], [4])
    # The images, three kernels, the last maps and their gradient, and the gradient of the joined maps.
    assert source(bound, 4).count("memory_format") == 7


def first_convolution(channels: int, size: int, width: int) -> nn.Module:
    maps = nn.Unflatten(1, (channels, size, size)), nn.Conv2d(channels, width, 3), nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(*maps, nn.Flatten(), nn.LazyLinear(4))


@pytest.mark.parametrize(
    ("channels", "size", "width", "is_used"),
    [(3, 12, 4, True), (1, 28, 4, False), (3, 11, 4, False), (3, 12, 64, False)],
)
def test_small_maps_few_channels_and_large_kernels_stay_as_they_are(
    channels: int, size: int, width: int, is_used: bool
) -> None:
    made = first_convolution(channels, size, width)
    x, y = torch.randn(2, channels * size**2, dtype=torch.float64), torch.tensor([0, 1])
    made.double()(x)
    model, weights = create(lambda: made, 0, torch.float64)
    bound = bound_to(model, weights, True, (2,))
    assert bound.record([x], [y], [2])
    assert ("memory_format" in source(bound, 2)) == is_used


def test_a_layout_that_cannot_be_carried_out_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Program] = []

    def failing(program: Program, values: Any) -> Program:
        given.append(program)
        # Without its last operator the step lacks a gradient.
        return Program(program.ops[:-1], program.constants, program.roots, program.wanted)

    monkeypatch.setattr(channels_last, "channels_last", failing)
    model, weights = create(MODULES["residual"], 0, torch.float64)
    x, y = torch.randn(4, 3 * SIZE**2, dtype=torch.float64), torch.tensor([0, 1, 2, 3])
    got, wanted = (bound_to(model, weights, True, lengths) for lengths in ((4,), ()))
    assert got.record([x], [y], [4])
    assert given
    with torch.no_grad():
        for bound in (got, wanted):
            bound.differentiate(x, y, None, -0.1)
    torch.testing.assert_close(got.gradient, wanted.gradient, rtol=1e-10, atol=1e-12)


def test_a_layout_for_which_memory_is_lacking_is_not_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its last digits would depend on what else is in memory."""
    compiled = local_step._compiled
    made: list[Program] = []

    def lacking(program: Program, *given: Any) -> Any:
        made.append(program)
        if len(made) > 1:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
        return compiled(program, *given)

    monkeypatch.setattr(local_step, "_compiled", lacking)
    model, weights = create(MODULES["one kernel twice"], 0, torch.float64)
    bound = bound_to(model, weights, True, (4,))
    with pytest.raises(RuntimeError, match="allocate memory"):
        bound.record([torch.randn(4, 3 * SIZE**2, dtype=torch.float64)], [torch.tensor([0, 1, 2, 3])], [4])


class Pooled(nn.Module):
    """Its relu leaves many equal numbers in a window."""

    def __init__(self, channels: int, pool: Callable[..., Tensor] = functional.max_pool2d) -> None:
        super().__init__()
        self.pool = pool
        self.conv = nn.Conv2d(1, channels, 3, padding=1)
        self.out = nn.Linear(channels * 64, 4)

    def forward(self, x: Tensor) -> Tensor:
        maps = torch.relu(self.conv(x.view(-1, 1, 16, 16)) - 0.2)
        return cast(Tensor, self.out(self.pool(maps, 2).view(len(x), -1)))


@pytest.mark.parametrize(
    ("channels", "pool", "is_used"),
    [(16, functional.max_pool2d, True), (16, functional.avg_pool2d, True), (3, functional.max_pool2d, False)],
)
def test_pooling_works_channels_last_with_the_same_numbers(channels: int, pool: Any, is_used: bool) -> None:
    model, weights = create(lambda: Pooled(channels, pool), 0, torch.float64)
    got, wanted = (bound_to(model, weights, True, lengths) for lengths in ((4,), ()))
    x, y = torch.randn(4, 256, dtype=torch.float64), torch.tensor([0, 1, 2, 3])
    assert got.record([x], [y], [4])
    assert ("memory_format" in source(got, 4)) == is_used
    with torch.no_grad():
        got.differentiate(x, y, None, -0.1)
    wanted.differentiate(x, y, None, -0.1)
    torch.testing.assert_close(got.weights.params, wanted.weights.params, rtol=1e-12, atol=1e-12)
    assert not torch.equal(got.weights.params, weights.params)
