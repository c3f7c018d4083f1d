"""What every server optimizer promises."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import raysim
from raysim.config.section import Section
from raysim.models.model import Weights
from raysim.run_folder import checkpoint
from raysim.server.optimizers.choice import OPTIMIZERS
from raysim.server.optimizers.lars import Lars
from raysim.server.optimizers.optimizer import Descent, ServerOptimizer
from raysim.server.state import ServerState
from tests.support.optimizer_path import LAYOUT, path, values, vector
from tests.support.small_data import make_clients

Make = Callable[..., raysim.Experiment]

SECTIONS: list[Any] = [section() for section in OPTIMIZERS.makers] + [
    section(**keys)
    for section in OPTIMIZERS.makers
    for keys in (
        {"dampened": True},
        {"bias_correction": "epsilon_hat"},
        {"bias_correction": "kingma"},
        {"beta1": 0.5},
        {"weight_decay": 0.1},
        {"eps": 0},
        {"v0": 1e-4},
    )
    if keys.keys() <= section.model_fields.keys()
]


@pytest.fixture(params=SECTIONS, ids=str)
def section(request: pytest.FixtureRequest) -> Section:
    return request.param


@pytest.fixture
def optimizer(section: Section) -> ServerOptimizer:
    return OPTIMIZERS.makers[type(section)](section)


def gradients(count: int, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    made = []
    for _ in range(count):
        a, b = torch.randn(2, generator=generator), torch.randn(1, generator=generator)
        made.append(vector(a.tolist(), b.tolist(), dtype))
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_is_kept_and_arguments_are_not_written_to(optimizer: ServerOptimizer, dtype: torch.dtype) -> None:
    params, (g,) = vector([1, -1], [2], dtype), gradients(1, dtype)
    state = optimizer.init(params)
    before = [t.clone() for t in (params, g, *state.values())]
    stepped = optimizer.step(params, Descent(LAYOUT, g, 0.1, 1, (0.5, 2.0)), state)
    assert {t.dtype for t in (stepped.params, *stepped.state.values())} == {dtype}
    assert stepped.state.keys() == state.keys()
    for left, right in zip(before, (params, g, *state.values()), strict=True):
        assert torch.equal(left, right)
    assert not torch.equal(stepped.params, params)
    values(stepped.params)


def test_a_state_read_back_in_mid_run_goes_on_to_the_same_bits(optimizer: ServerOptimizer, tmp_path: Path) -> None:
    params = vector([1, -1], [2], torch.float32)
    state = optimizer.init(params)
    runs = []
    for interrupted in (False, True):
        x, s = params, state
        for k, g in enumerate(gradients(6, torch.float32), start=1):
            if interrupted and k == 4:
                nothing = torch.zeros(0)
                whole = ServerState(3, Weights(x, nothing, nothing.long()), s, {}, {}, {}, {})
                checkpoint.write(whole, tmp_path / "state", "print")
                back = checkpoint.read(tmp_path / "state", "print")
                x, s = back.weights.params, back.optimizer
            x, s, _ = optimizer.step(x, Descent(LAYOUT, g, 0.1, k), s)
        runs.append((x, s))
    (x, s), (y, r) = runs
    assert torch.equal(x, y)
    assert all(torch.equal(s[name], r[name]) for name in s)


def test_a_zero_gradient_from_the_start_leaves_the_model(optimizer: ServerOptimizer, section: Section) -> None:
    if getattr(section, "weight_decay", 0):
        pytest.skip("weight decay moves it")
    start = vector([1, -1], [2])
    assert path(optimizer, start, [vector([0, 0], [0])] * 3, lr=0.5)[-1] == values(start)


def test_zero_params_are_moved_by_a_finite_step(optimizer: ServerOptimizer) -> None:
    (moved,) = path(optimizer, vector([0, 0], [0]), [vector([1, -2], [3])], lr=0.1)
    assert [x < 0 for x in moved] == [True, False, True]
    assert all(abs(x) < 1e4 for x in moved)


def test_lr_zero_leaves_the_model(optimizer: ServerOptimizer) -> None:
    start = vector([1, -1], [2])
    assert path(optimizer, start, gradients(3), lr=0.0)[-1] == values(start)


def test_a_factor_of_one_is_no_factor(optimizer: ServerOptimizer) -> None:
    start = vector([1, -1], [2])
    plain, ones = (path(optimizer, start, gradients(4), 0.1, factors) for factors in (None, (1.0, 1.0)))
    assert plain == [pytest.approx(x, rel=1e-14) for x in ones]


def test_the_first_step_is_multiplied_by_the_factor_of_its_group(optimizer: ServerOptimizer) -> None:
    # Numerator-only: at the first step every method's step is linear in f, second moments and ratios being without it.
    start, g = vector([1, -1], [2]), gradients(1)
    (plain,), (scaled,) = (path(optimizer, start, g, 0.1, factors) for factors in (None, (0.5, 3.0)))
    steps = [y - x for x, y in zip(values(start), plain, strict=True)]
    expected = [x + f * d for x, f, d in zip(values(start), (0.5, 0.5, 3.0), steps, strict=True)]
    assert scaled == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("made", [m for m in OPTIMIZERS.makers if "eps" in m.model_fields], ids=lambda m: m.__name__)
@pytest.mark.parametrize("eps", [1e-30, 1e-40, 1e-60, 1e-320])
def test_an_eps_below_the_dtype_moves_no_weight_that_had_no_gradient(made: Any, eps: float) -> None:
    start, g = vector([1, -1], [2], torch.float32), vector([0, 0], [3], torch.float32)
    *_, (first, second, third) = path(OPTIMIZERS.makers[made](made(eps=eps)), start, [g] * 2, lr=0.1)
    assert (first, second) == (1, -1)
    assert third < 2


def test_a_direction_of_nearly_nothing_is_stretched_to_the_length_of_the_model() -> None:
    # |x| / |m| is no number of float32.
    start, g = vector([3, 4], [0], torch.float32), vector([3e-43, 4e-43], [0], torch.float32)
    (moved,) = path(OPTIMIZERS.makers[Lars](Lars(beta1=0, eps=0)), start, [g], lr=0.5)
    assert moved == pytest.approx([1.5, 2, 0], rel=1e-2)


@pytest.mark.parametrize("name", ["adam", "yogi", "adagrad", "lamb"])
def test_a_sum_of_squares_beyond_the_dtype_is_an_error_of_its_round(name: str, experiment: Make) -> None:
    # Divided by an infinite root, the weights would never move again.
    attack = {"name": "scale", "factor": 1e22, "clients": ["c1"]}
    exp = experiment(server={"optimizer": {"name": name}}, adversary=attack)
    data = raysim.FederatedDataset.from_clients(train=make_clients([5] * 7))
    rounds = raysim.rounds(exp, dataset=data)
    with pytest.raises(raysim.DivergedError, match=rf"diverged in round 0: .* the state of .*{name}.* are not finite"):
        next(rounds)
    fitting = exp.changed(["engine.dtype=float64"])
    assert len(list(raysim.rounds(fitting, dataset=data))) == fitting.rounds


@pytest.mark.parametrize(
    ("key", "wrong"),
    [("lr", -1), ("beta1", 1.0), ("beta2", -0.1), ("eps", -1e-3), ("weight_decay", -1), ("v0", -1), ("lr", "fast")],
)
@pytest.mark.parametrize("made", list(OPTIMIZERS.makers), ids=lambda made: made.__name__)
def test_an_invalid_argument_names_itself(made: type[Section], key: str, wrong: object, experiment: Make) -> None:
    name = made.model_fields["name"].default
    message = f"server.optimizer.{key} must be .*, but got {wrong!r}"
    if key not in made.model_fields:
        message = rf"unknown key 'server.optimizer.{key}': \[server.optimizer\] with name = '{name}' takes"
    with pytest.raises(raysim.ExperimentError, match=message):
        experiment(server={"optimizer": {"name": name, key: wrong}})
