"""The compiled kernel: which modules it takes, and what it relies on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import raysim
from raysim.client import local_training
from raysim.client.batches import ClientBatches
from raysim.client.corrections import choice as corrections
from raysim.client.corrections.correction import ClientHalf, Correction, ProximalPoint
from raysim.client.optimizers.optimizer import ClientOptimizer
from raysim.client.proximal import Bounded, Shrunk
from raysim.client.section import ClientSection
from raysim.client.trainer import Client
from raysim.client.trainers.compiled import Compiled
from raysim.client.trainers.construction import make
from raysim.client.trainers.kernel.dense import Dense, dense
from raysim.client.trainers.kernel.kernel import DenseKernel, StartingPoint, Windows
from raysim.client.trainers.recognise import Recognised, recognise
from raysim.client.trainers.trainer_choice import TrainerChoice
from raysim.data.on_device import Examples
from raysim.errors import ClientError, ModelError
from raysim.models.model import create
from raysim.models.task import task_for
from tests.support.kernel import PROCESSORS, chosen, compiled_for, deltas, needs_kernel, wide

PROX = {"name": "prox", "mu": 0.3}


@pytest.fixture(autouse=True)
def _kernel() -> None:
    needs_kernel()


def line(module: nn.Module) -> Dense | str:
    recognised = recognise(module)
    assert isinstance(recognised, Recognised)
    return dense(recognised)


def test_a_line_is_read_off_a_module() -> None:
    module = nn.Sequential(
        nn.Flatten(), nn.Linear(6, 4), nn.ReLU(), nn.Identity(), nn.Linear(4, 3, bias=False), nn.Tanh(), nn.Linear(3, 2)
    )
    assert line(module) == Dense(
        widths=(6, 4, 3, 2),
        behind=(1, 2, 0),
        weights=("1.weight", "4.weight", "6.weight"),
        biases=("1.bias", None, "6.bias"),
        flattens=True,
    )


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5)), "no Dropout there"),
        (nn.Sequential(nn.Linear(3, 2), nn.Flatten()), "no Flatten there"),
        (nn.Sequential(nn.ReLU(), nn.Linear(3, 2)), "no ReLU there"),
        (nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Tanh()), "no Tanh there"),
        (nn.Sequential(nn.Conv2d(1, 1, 1), nn.Flatten(), nn.Linear(4, 2)), "no Conv2d there"),
        (nn.Sequential(nn.Linear(3, 2), nn.Linear(3, 2)), "3 inputs is behind one of 2 outputs"),
        (nn.Sequential(*(nn.Linear(1, 1) for _ in range(65))), "1 to 64 dense layers, and there are 65"),
    ],
)
def test_what_is_no_such_line_is_told_why(module: nn.Module, reason: str) -> None:
    assert reason in str(line(module))
    with pytest.raises(ModelError, match=r"engine\.trainer = 'compiled' cannot be used"):
        chosen(module, trainer="compiled")


@pytest.mark.parametrize(
    "work", [{"batch_size": 7, "epochs": 2}, {"batch_size": "full", "epochs": 3}, {"batch_size": 1}]
)
def test_sizes_that_fill_nothing_are_trained_alike(work: dict[str, Any]) -> None:
    sizes = (83, 1, 5, 40, 11)
    got, wanted = (deltas(wide, sizes, work, trainer, torch.float64) for trainer in ("compiled", "one_by_one"))
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-12)
    assert wanted.abs().max() > 0.01


RULES: dict[str, dict[str, Any]] = {
    "an offset": {"offset": 0.3},
    "a pull": {"pull": 0.7},
    "another beginning": {"begin": 0.2},
    "anchored": {"anchored": True},
    "averaged": {"windows": ((0, 3), (3, 4), (5, 7))},
    "averaged over nothing": {"windows": ()},
    "averaged and anchored": {"windows": ((1, 4), (4, 6)), "anchored": True, "offset": 0.1},
    "shrunk": {"point": Shrunk(0.05, ("*.weight",))},
    "shrunk from the first step": {"point": Shrunk(0.05, ("*0.*", "*4.bias")), "elapsed": 0.7},
    "bounded": {"point": Bounded(0.8, ("*0.weight", "*.bias"))},
    "bounded without effect": {"point": Bounded(1e3, ("*",))},
    "an affine optimizer": {"optimizer": "affine"},
    "all at once at y": {
        "offset": 0.3, "pull": 0.7, "begin": 0.2, "anchored": True, "windows": ((2, 5), (5, 6)), "optimizer": "affine",
    },
    "all at once but anchored": {
        "offset": 0.3, "pull": 0.7, "begin": 0.2, "windows": ((0, 1), (1, 6)), "optimizer": "affine",
    },
    "all at once at a shrunk point": {
        "offset": 0.3, "begin": 0.2, "anchored": True, "optimizer": "affine", "point": Shrunk(0.05, ("*",)),
    },
    "all at once at a bounded point": {
        "offset": 0.3, "begin": 0.2, "anchored": True, "optimizer": "affine", "point": Bounded(0.8, ("*",)),
    },
}  # fmt: skip


APART: list[dict[str, Any]] = [
    {"pull": 0.7, "point": Shrunk(0.05, ("*",))},
    {"windows": ((0, 3), (3, 7)), "point": Bounded(0.8, ("*",))},
]
"""They pull or average the point at which gradients are taken, not what is stepped, which the kernel does not know."""


def halved(params: Tensor, gradient: Tensor, state: Any, lr: Any) -> None:
    params.sub_(lr * (0.5 * gradient + state["m"]))


class HoldsWide(nn.Module):
    """More than its forward calls."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.line, self.behind = nn.Linear(4, 4), wide(), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.line(x)


def by_rule(
    trainer: str, factory: Callable[[], nn.Module], rule: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> list[Tensor]:
    """Deltas and samples of clients whose correction is this one."""
    optimizer = ClientOptimizer(lambda params: {}, halved, affine=lambda state: (0.5, state["m"]))
    point = ProximalPoint(rule["point"], "E") if "point" in rule else None
    half = ClientHalf(
        pull=rule.get("pull", 0.0),
        anchored=rule.get("anchored", False),
        optimizer=optimizer if "optimizer" in rule else None,
        point=point,
        begin=(lambda begins: begins.params) if "begin" in rule else None,
        windows=(lambda work: rule["windows"]) if "windows" in rule else None,
    )
    monkeypatch.setattr(corrections, "make", lambda section: Correction(half))
    draw = np.random.default_rng(0)
    sizes = (50, 56, 49)
    data = raysim.FederatedDataset.from_clients(
        train={str(i): (draw.standard_normal((n, 33)), draw.integers(0, 7, n)) for i, n in enumerate(sizes)}
    )
    section = ClientSection(batch_size=7)
    model, weights = create(factory, 0, torch.float64)
    made = make(TrainerChoice.of_size(trainer, 3), model, weights, task_for(7, None), section, "float32")  # type: ignore[arg-type]
    assert isinstance(made, Compiled) == (trainer == "compiled" and rule not in APART)
    noise = torch.from_numpy(draw.standard_normal((7, model.params.size)))
    vectors = [model.params.flatten(model.params.views(own), torch.float64) for own in noise]
    changes: dict[str, Any] = {"received": {"E": torch.tensor([rule.get("elapsed", 0.0)], dtype=torch.float64)}}

    def corrected(member: Client) -> Client:
        if "offset" in rule:
            changes["offset"] = rule["offset"] * vectors[member.position]
        if "begin" in rule:
            changes["begin"] = weights.params + rule["begin"] * vectors[3 + member.position]
        return replace(member, windows=rule.get("windows", ()), **changes)

    plain = local_training.members(Examples(data), (0, 1, 2), section, 0, 0, weights.params)
    members = plain.with_each(corrected)
    start = {"m": vectors[6]} if "optimizer" in rule else None
    deltas, samples = [], list[Tensor]()
    for trained in local_training.train(made, weights, members, 0.3, model.params, start=start):
        deltas.append(trained.updates.delta.clone())
        if (squares := trained.updates.squared_norms) is not None:
            of_groups = [piece.square().sum(-1) for piece in model.params.pieces(deltas[-1])]
            torch.testing.assert_close(squares, torch.stack(of_groups, dim=1), rtol=1e-12, atol=1e-20)
        samples += [own.clone() for own in trained.updates.samples or ()]
    return [torch.cat(deltas), *samples]


@pytest.mark.parametrize("rule", [*RULES.values(), *APART], ids=[*RULES, "a pulled point", "an averaged point"])
@pytest.mark.parametrize("factory", [wide, HoldsWide], ids=["all called", "some not called"])
def test_rules_are_trained_alike(
    factory: Callable[[], nn.Module], rule: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the kernel in one call, and by a trainer that does one thing after the other to autograd's gradients."""
    got, wanted = (by_rule(trainer, factory, rule, monkeypatch) for trainer in ("compiled", "vmap"))
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-12)


class Holds(nn.Module):
    """More than its forward calls."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(4, 4)
        self.out = nn.Linear(33, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x)


ODD: dict[str, Callable[[], nn.Module]] = {
    "a layer that is not called": Holds,
    "a tanh at the end": lambda: nn.Sequential(nn.Linear(33, 9), nn.ReLU(), nn.Linear(9, 7), nn.Tanh()),
    "a relu at the end": lambda: nn.Sequential(nn.Linear(33, 7), nn.ReLU()),
    "no bias": lambda: nn.Sequential(nn.Linear(33, 9, bias=False), nn.Tanh(), nn.Linear(9, 7, bias=False)),
}


@pytest.mark.parametrize(
    "work",
    [{"batch_size": 4}, {"batch_size": 4, "optimizer": {"momentum": 0.9}}, {"batch_size": 4, "correction": PROX}],
    ids=["plain", "momentum", "prox"],
)
@pytest.mark.parametrize("factory", ODD.values(), ids=ODD)
def test_odd_modules_are_trained_alike(factory: Callable[[], nn.Module], work: dict[str, Any]) -> None:
    got, wanted = (deltas(factory, (9, 3), work, trainer, torch.float64) for trainer in ("compiled", "one_by_one"))
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-12)
    assert wanted.abs().max() > 0.01


def test_squared_errors_of_several_places_are_averaged() -> None:
    draw = np.random.default_rng(0)
    data = raysim.FederatedDataset.from_clients(
        train={"it": (draw.standard_normal((9, 4, 5)), draw.standard_normal((9, 4, 2)))}
    )
    section = ClientSection(batch_size=4)
    model, weights = create(lambda: nn.Linear(5, 2), 0, torch.float64)
    members = local_training.members(Examples(data), (0,), section, 0, 0, weights.params)
    got, wanted = (
        next(
            local_training.train(
                make(TrainerChoice.of_size(trainer, 1), model, weights, task_for(None, None), section, "float32"),
                weights,
                members,
                0.3,
                model.params,
            )
        ).updates
        for trainer in ("compiled", "one_by_one")
    )
    torch.testing.assert_close(got.delta, wanted.delta, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(got.loss, wanted.loss, rtol=1e-12, atol=0)


def test_large_and_small_numbers_are_as_torch_has_them() -> None:
    """Logits from -800 to 800, and activations of 1e-9, in either direction of the tanh."""
    draw = np.random.default_rng(0)
    scale = np.array([1e-9, 1e-4, 0.1, 0.3, 1.0, 3.0, 50.0, 800.0])
    x = np.concatenate([draw.standard_normal((8, 3)) * factor for factor in scale])
    data = raysim.FederatedDataset.from_clients(train={"it": (x, draw.integers(0, 3, len(x)))})

    def module() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 3, bias=False), nn.Tanh(), nn.Linear(3, 3, bias=False))

    for factory in (module, lambda: nn.Linear(3, 3)):
        section = ClientSection(batch_size=1, shuffle=False)
        model, weights = create(factory, 0, torch.float64)
        made = [
            make(TrainerChoice.of_size(trainer, 1), model, weights, task_for(3, None), section, "float32")
            for trainer in ("compiled", "one_by_one")
        ]
        members = local_training.members(Examples(data), (0,), section, 0, 0, weights.params)
        trained = [next(local_training.train(one, weights, members, 1e-6, model.params)) for one in made]
        got, wanted = (one.updates for one in trained)
        torch.testing.assert_close(got.delta, wanted.delta, rtol=1e-9, atol=0)
        torch.testing.assert_close(got.loss, wanted.loss, rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("processor", PROCESSORS)
def test_clients_are_trained_alike_with_other_vectors(processor: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """To the same bits, where they have a product and a sum in one as this one has."""
    work = {"batch_size": 6, "epochs": 2}
    wanted = deltas(wide, (50, 13), work, dtype=dtype)
    with compiled_for(processor, tmp_path):
        got = deltas(wide, (50, 13), work, dtype=dtype)
    assert wanted.abs().max() > 0.01
    if processor == "haswell" and contracts():
        assert torch.equal(got, wanted)
    rtol, atol = (1e-4, 1e-5) if dtype == torch.float32 else (1e-10, 1e-12)
    torch.testing.assert_close(got, wanted, rtol=rtol, atol=atol)


@pytest.mark.parametrize("rule", ["all at once but anchored", "shrunk", "all at once at a bounded point"])
@pytest.mark.parametrize("processor", PROCESSORS)
def test_rules_have_the_same_bits_with_other_vectors(
    processor: str, rule: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wanted = by_rule("compiled", wide, RULES[rule], monkeypatch)
    with compiled_for(processor, tmp_path):
        got = by_rule("compiled", wide, RULES[rule], monkeypatch)
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-12)
    if processor == "haswell" and contracts():
        assert all(torch.equal(*pair) for pair in zip(got, wanted, strict=True))


def contracts() -> bool:
    """Whether this processor has a product and a sum in one."""
    return "fma" in Path("/proc/cpuinfo").read_text(encoding="utf-8").split()


# What the kernel is handed by address


HANDED: dict[str, Any] = {
    "broadcast": torch.zeros(64), "x": torch.zeros(6, 4), "y": torch.zeros(6, dtype=torch.int64),
    "rows": np.array([3, 3]), "order": np.array([0, 1, 2, 0, 1]), "bounds": np.array([0, 2, 3, 0, 2]),
    "steps": np.array([2, 1]), "constants": None, "deltas": torch.zeros(1, 2, 64),
}  # fmt: skip
MISFITS: list[dict[str, Any]] = [
    {"broadcast": torch.zeros(63)},
    {"broadcast": torch.zeros(64, dtype=torch.float64)},
    {"broadcast": torch.zeros(128)[::2]},
    {"deltas": torch.zeros(1, 1, 64)},
    {"deltas": torch.zeros(2, 2, 64)},
    {"deltas": torch.zeros(1, 2, 32)},
    {"deltas": torch.zeros(1, 64, 2).mT},
    {"constants": torch.zeros(63)},
    {"constants": torch.zeros(1, 64)},
    {"constants": torch.zeros(1, 64).expand(2, 64)},
    {"x": torch.zeros(6, 3)},
    {"x": torch.zeros(5, 4)},
    {"y": torch.zeros(5, dtype=torch.int64)},
    {"y": torch.zeros(6, 2, dtype=torch.int64)},
    {"rows": np.array([3, 2])},
    {"rows": np.array([3, 3], np.int32)},
    {"rows": np.array([6])},
    {"order": np.array([0, 1, 3, 0, 1])},
    {"order": np.array([0, 1, -1, 0, 1])},
    {"order": np.array([0, 1, 2, 0])},
    {"order": np.array([0, 1, 2, 0, 1], np.int32)},
    {"order": np.array([0, 9, 1, 9, 2, 9, 0, 9, 1, 9])[::2]},
    {"bounds": np.array([0, 2, 3, 0])},
    {"bounds": np.array([0, 2, 1, 0, 2])},
    {"bounds": np.array([1, 2, 3, 0, 2])},
    {"bounds": np.array([0, 2, 3, 1, 2])},
    {"steps": np.array([2, 2])},
    {"steps": np.array([3, -1])},
    {"steps": np.array([2, 1, 0])},
]


def kernel() -> DenseKernel:
    module = nn.Sequential(nn.Linear(4, 2))
    model, _ = create(lambda: nn.Sequential(nn.Linear(4, 2)), 0, torch.float32)
    found = line(module)
    assert isinstance(found, Dense)
    return DenseKernel(found, model.params, torch.float32, squared=False)


def trained(
    made: DenseKernel, broadcast: Tensor, constants: Tensor | None, order: Any, bounds: Any, steps: Any, **handed: Any
) -> tuple[Tensor, Tensor]:
    batches = ClientBatches(order, bounds, steps)
    return made.train([StartingPoint(broadcast, -0.1, constants=constants)], batches=batches, **handed)


def test_what_fits_is_taken() -> None:
    outputs, _ = trained(kernel(), **HANDED)
    assert outputs.shape == (5, 2)
    kernel().gradient(torch.zeros(64), torch.zeros(3, 4), torch.zeros(3, dtype=torch.int64), 1.0, torch.zeros(64))


@pytest.mark.parametrize("changed", MISFITS, ids=str)
def test_what_does_not_fit_never_reaches_the_kernel(changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    made = kernel()
    monkeypatch.setattr(made, "_library", None)
    with pytest.raises(
        (RuntimeError, ValueError), match=r"kernel needs|do not fit|were expected|Batches do not fit|zip\("
    ):
        trained(made, **(HANDED | changed))


def windows(ranges: Any, counts: Any, means: Tensor | None = None) -> Windows:
    made = np.array(ranges, dtype=np.int64).reshape(-1, 2)
    return Windows(made, np.array(counts), torch.zeros(len(made), 64) if means is None else means)


WRONG_WINDOWS = [
    windows([[0, 3]], [1, 0]),
    windows([[0, 1]], [0, 2]),
    windows([[0, 1], [0, 1]], [2, 0]),
    windows([[1, 2], [0, 1]], [2, 0]),
    windows([[1, 1]], [1, 0]),
    windows([[-1, 1]], [1, 0]),
    windows([[0, 1]], [1]),
    windows([[0, 1]], [2, -1]),
    windows([[0, 1], [0, 1]], [1, 1], torch.zeros(1, 64)),
    Windows(np.array([[0, 9, 1, 9]])[:, ::2], np.array([1, 0]), torch.zeros(1, 64)),
    Windows(np.array([[0, 1]], np.int32), np.array([1, 0]), torch.zeros(1, 64)),
]


@pytest.mark.parametrize("given", WRONG_WINDOWS, ids=str)
def test_windows_that_do_not_fit_never_reach_the_kernel(given: Windows, monkeypatch: pytest.MonkeyPatch) -> None:
    made = kernel()
    assert trained(made, **HANDED, windows=windows([[0, 1], [1, 2], [0, 1]], [2, 1]))
    monkeypatch.setattr(made, "_library", None)
    with pytest.raises(RuntimeError, match=r"Windows do not fit|The kernel needs means"):
        trained(made, **HANDED, windows=given)


def test_a_beginning_that_does_not_fit_never_reaches_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    made = kernel()
    monkeypatch.setattr(made, "_library", None)
    handed = {name: HANDED[name] for name in ("x", "y", "rows", "deltas")}
    handed["batches"] = ClientBatches(*(HANDED[name] for name in ("order", "bounds", "steps")))
    with pytest.raises(RuntimeError, match="The kernel needs begins"):
        made.train([StartingPoint(HANDED["broadcast"], -0.1, begins=torch.zeros(1, 64))], **handed)


@pytest.mark.parametrize("changed", [{"params": torch.zeros(8)}, {"into": torch.zeros(63)}, {"y": torch.zeros(2)}])
def test_a_gradient_that_does_not_fit_never_reaches_the_kernel(
    changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = kernel()
    monkeypatch.setattr(made, "_library", None)
    fits = {"params": torch.zeros(64), "x": torch.zeros(3, 4), "y": torch.zeros(3), "into": torch.zeros(64)}
    with pytest.raises(RuntimeError, match=r"kernel needs|were expected"):
        made.gradient(**(fits | changed), scale=1.0)


def test_a_layer_whose_width_is_not_its_weights_is_refused() -> None:
    layer = nn.Linear(4, 2)
    layer.in_features = 400
    module = nn.Sequential(layer)
    model, _ = create(lambda: nn.Sequential(nn.Linear(4, 2)), 0, torch.float32)
    found = line(module)
    assert isinstance(found, Dense)
    with pytest.raises(
        ModelError, match=r"0\.weight must have the shape \(2, 400\), as its layer says, but has \(2, 4\)"
    ):
        DenseKernel(found, model.params, torch.float32, squared=False)


def test_a_target_that_is_no_class_is_an_error_not_a_write_elsewhere(
    experiment: Callable[..., raysim.Experiment],
) -> None:
    x = np.ones((6, 3), np.float32)
    data = raysim.FederatedDataset.from_clients(train={"a": (x, np.array([0, 1, 0, 1, 2, 0]))})
    exp = experiment(model=None, cohort={"size": 1}, engine={"workers": 0, "trainer": "compiled"})
    with pytest.raises((ClientError, ModelError)):
        list(raysim.rounds(exp, dataset=data, model=lambda: nn.Linear(3, 2)))
    model, weights = create(lambda: nn.Linear(3, 2), 0, torch.float32)
    for work in ({"batch_size": 2}, {"batch_size": 2, "optimizer": {"momentum": 0.9}}):
        section = ClientSection.model_validate(work)
        made = make(TrainerChoice.of_size("compiled", 1), model, weights, task_for(2, None), section, "float32")
        members = local_training.members(Examples(data), (0,), section, 0, 0, weights.params)
        with pytest.raises(local_training.ClientFailure) as raised:
            list(local_training.train(made, weights, members, 0.1, model.params))
        assert "A target is not a class: it is not in 0..1." in str(raised.value.__cause__)


@pytest.mark.parametrize("work", [{"batch_size": 2}, {"batch_size": 2, "optimizer": {"momentum": 0.9}}])
def test_examples_that_do_not_fit_are_an_error(work: dict[str, Any]) -> None:
    section = ClientSection.model_validate(work)
    for x, y, said in [
        (np.ones((4, 5)), np.zeros(4, int), r"Examples of shape \(5,\) do not fit 3 inputs"),
        (np.ones((4, 3)), np.zeros((4, 2), int), r"Targets of shape \(2,\) do not fit: an example has 1"),
    ]:
        data = raysim.FederatedDataset.from_clients(train={"a": (x, y)})
        model, weights = create(lambda: nn.Linear(3, 2), 0, torch.float32)
        made = make(TrainerChoice.of_size("compiled", 1), model, weights, task_for(2, None), section, "float32")
        members = local_training.members(Examples(data), (0,), section, 0, 0, weights.params)
        with pytest.raises(local_training.ClientFailure) as raised:
            list(local_training.train(made, weights, members, 0.1, model.params))
        assert raised.value.__cause__ is not None
        with pytest.raises(RuntimeError, match=said):
            raise raised.value.__cause__


class OutOfOrder(nn.Module):
    """Some 300,000 numbers: a call takes three such clients."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3000, 7)
        self.body = nn.Linear(90, 3000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.body(x)))


def test_gaps_between_parameters_stay_zero_and_groups_are_of_any_size() -> None:
    """More clients than a call takes, and again fewer."""
    draw = np.random.default_rng(0)
    data = raysim.FederatedDataset.from_clients(
        train={str(i): (draw.standard_normal((5, 90)), draw.integers(0, 7, 5)) for i in range(9)}
    )
    section = ClientSection(batch_size=2)
    model, weights = create(OutOfOrder, 0, torch.float32)
    made = make(TrainerChoice.of_size("compiled", 9), model, weights, task_for(7, None), section, "float32")
    in_gaps = torch.ones(model.params.size, dtype=torch.bool)
    for piece in model.params.pieces(in_gaps):
        piece.fill_(False)
    assert in_gaps.any()
    rows = []
    for positions in (range(9), range(2)):
        members = local_training.members(Examples(data), tuple(positions), section, 0, 0, weights.params)
        taken = []
        for trained in local_training.train(made, weights, members, 0.1, model.params):
            taken.append(trained.updates.delta.clone())
            squares = torch.stack([p.double().square().sum(-1) for p in model.params.pieces(taken[-1])], dim=-1)
            torch.testing.assert_close(trained.squared_norms, squares, rtol=1e-12, atol=0)
        assert sum(map(len, taken)) == len(positions)
        assert len(taken) == (1 if len(positions) == 2 else 3)
        rows.append(torch.cat(taken))
    assert torch.equal(rows[0][:2], rows[1])
    assert not rows[0][:, in_gaps].any()
