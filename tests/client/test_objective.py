"""A local objective of a script: what it is told, who trains it, and what is refused before the first round."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

import raysim
from raysim.client.trainers import output_objectives, trainer_table
from raysim.config import part, section_source
from raysim.config.section import Section
from raysim.engine.plan.resolve import resolve
from tests.support.executors import bits
from tests.support.interrupted import same_records

Make = Callable[..., raysim.Experiment]

TWO_WORKERS = {"workers": 2, "cpus_per_worker": 0.5}
CLIENT = {"optimizer": {"name": "sgd", "lr": 0.1}, "batch_size": 4, "local_steps": 3}
APFL = {"name": "apfl", "alpha": 0.5, "split": "train"}


def repeated(module: nn.Module, x: Tensor, y: Tensor, at: raysim.ObjectiveAt) -> Tensor:
    return F.cross_entropy(module(x), y, reduction="none")


def smoothed(module: nn.Module, x: Tensor, y: Tensor, at: raysim.ObjectiveAt) -> Tensor:
    return F.cross_entropy(module(x), y, reduction="none", label_smoothing=0.1)


def proximal(module: nn.Module, x: Tensor, y: Tensor, at: raysim.ObjectiveAt) -> Tensor:
    square = sum(((p - at.broadcast[name]) ** 2).sum() for name, p in module.named_parameters())
    return F.cross_entropy(module(x), y, reduction="none") + float(at.constants["mu"]) / 2 * square


def mixed(module: nn.Module, x: Tensor, y: Tensor, at: raysim.ObjectiveAt) -> Tensor:
    share = torch.rand((), generator=at.generator, dtype=x.dtype)
    other = torch.randperm(len(x), generator=at.generator)
    outputs = module(share * x + (1 - share) * x[other])
    first, second = (F.cross_entropy(outputs, targets, reduction="none") for targets in (y, y[other]))
    return share * first + (1 - share) * second


def distilled(module: nn.Module, x: Tensor, y: Tensor, at: raysim.ObjectiveAt) -> Tensor:
    with torch.no_grad():
        teacher = functional_call(module, at.broadcast, (x,)).log_softmax(1)
    outputs = module(x)
    apart = F.kl_div(outputs.log_softmax(1), teacher, log_target=True, reduction="none").sum(1)
    return F.cross_entropy(outputs, y, reduction="none") + apart


def all_bits(exp: raysim.Experiment, **how: Any) -> list[Any]:
    return [bits(finished) for finished in raysim.rounds(exp, **how)]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"correction": {"name": "mime"}},
        {"correction": {"name": "scaffold"}},
        {"optimizer": {"name": "adam", "lr": 0.01}},
        {"max_grad_norm": 0.5},
    ],
    ids=lambda more: next(iter(more), "plain"),
)
def test_called_with_the_module_it_has_the_bits_of_the_loss_that_it_repeats(
    more: dict[str, Any], dataset: raysim.FederatedDataset, experiment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_table, "CALL_AUTOGRAD", ())  # Steps of the task's own loss begin with it, too.

    def calls_the_module(module: nn.Module, x: Tensor, y: Tensor, at: raysim.ObjectiveAt) -> Tensor:
        assert (at.client, at.round, at.local_step, len(module.state_dict())) >= ("", 0, 0, 1)
        return F.cross_entropy(module(x), y, reduction="none")

    exp = experiment(client={**CLIENT, **more}, engine={"workers": 0, "trainer": "one_by_one"})
    assert resolve(exp, dataset=dataset, objective=calls_the_module).minimised.obstacle
    assert all_bits(exp, dataset=dataset, objective=calls_the_module) == all_bits(exp, dataset=dataset)


def test_one_that_repeats_the_task_s_loss_keeps_its_trainer_and_its_bits(
    dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    exp = experiment(client=CLIENT)
    expected, found = (resolve(exp, dataset=dataset, objective=given) for given in (None, repeated))
    assert (found.choice, found.minimised) == (expected.choice, expected.minimised)
    assert all_bits(exp, dataset=dataset, objective=repeated) == all_bits(exp, dataset=dataset)


def test_a_function_of_outputs_and_targets_is_trained_without_a_module(
    dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    exp = experiment(client=CLIENT)
    loss = partial(F.cross_entropy, reduction="none", label_smoothing=0.1)
    plan = resolve(exp, dataset=dataset, objective=smoothed)
    assert plan.choice == resolve(exp, dataset=dataset, loss=loss).choice
    assert plan.choice.trainer == "interpreted"
    by_autograd = experiment(client=CLIENT, engine={"workers": 0, "trainer": "one_by_one"})
    fast, slow = (list(raysim.rounds(e, dataset=dataset, objective=smoothed)) for e in (exp, by_autograd))
    for one, other in zip(fast, slow, strict=True):
        assert one.metrics["loss"] == pytest.approx(other.metrics["loss"], rel=1e-5)
        assert one.metrics["accuracy"] == pytest.approx(other.metrics["accuracy"])
        for name, value in one.params.items():
            torch.testing.assert_close(value, other.params[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("objective", "asked"),
    [
        (proximal, "asks for module.named_parameters"),
        (mixed, "asks for at.generator"),
        (distilled, "asks for at.broadcast"),
        (lambda module, x, y, at: repeated(module, x + 0.0, y, at), "does add with x"),
        (lambda module, x, y, at: repeated(module, torch.tanh(x), y, at), "computes with x"),
        (lambda module, x, y, at: repeated(module, x, y, at) + repeated(module, x, y, at), "more than once"),
    ],
    ids=["proximal", "mixed", "distilled", "operator", "function", "twice"],
)
def test_one_that_needs_the_module_is_trained_by_autograd_and_says_why(
    objective: Any, asked: str, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    own = {**CLIENT, "objective": {"name": "own", "constants": {"mu": 0.1}}}
    choice = resolve(experiment(client=own), dataset=dataset, objective=objective).choice
    assert choice.trainer == "one_by_one"
    assert asked in choice.why
    for trainer in ("fused", "stacked", "vmap", "compiled"):
        with pytest.raises(raysim.ModelError, match=r"cannot be used: objective= .*: take 'one_by_one'"):
            resolve(experiment(client=own, engine={"trainer": trainer}), dataset=dataset, objective=objective)


def test_a_proximal_term_is_fedprox(dataset: raysim.FederatedDataset, experiment: Make) -> None:
    engine = {"workers": 0, "dtype": "float64"}
    prox = experiment(client={**CLIENT, "correction": {"name": "prox", "mu": 0.7}}, engine=engine)
    own = {**CLIENT, "objective": {"name": "own", "constants": {"mu": 0.7}}}
    expected = list(raysim.rounds(prox, dataset=dataset))
    found = list(raysim.rounds(experiment(client=own, engine=engine), dataset=dataset, objective=proximal))
    for one, other in zip(expected, found, strict=True):
        for name, value in one.params.items():
            torch.testing.assert_close(value, other.params[name], rtol=1e-9, atol=1e-12)


def test_constants_are_the_objective_s(dataset: raysim.FederatedDataset, experiment: Make) -> None:
    made = []
    for mu in (0.0, 0.5):
        own = {**CLIENT, "objective": {"name": "own", "constants": {"mu": mu}}}
        *_, last = raysim.rounds(experiment(client=own), dataset=dataset, objective=proximal)
        made.append(last)
    assert bits(made[0]) != bits(made[1])
    *_, plain = raysim.rounds(experiment(client=CLIENT), dataset=dataset)
    assert made[0].metrics["loss"] == pytest.approx(plain.metrics["loss"], rel=1e-5)


@pytest.mark.parametrize("more", [{}, {"correction": {"name": "mime"}}], ids=["one gradient", "two gradients"])
def test_it_is_told_who_trains_and_when(
    more: dict[str, Any], dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    seen: list[tuple[Any, ...]] = []

    def notes(module: nn.Module, x: Tensor, y: Tensor, at: raysim.ObjectiveAt) -> Tensor:
        draws = torch.rand(2, generator=at.generator).tolist()
        seen.append((at.round, at.client, at.local_step, *draws))
        assert at.generator is at.generator
        assert not any(value.requires_grad for value in at.broadcast.values())
        if at.local_step == 0:
            assert all(torch.equal(p, at.broadcast[name]) for name, p in module.named_parameters())
        return F.cross_entropy(module(x), y, reduction="none")

    finished = list(raysim.rounds(experiment(client={**CLIENT, **more}), dataset=dataset, objective=notes))
    told = {(at, client, step) for at, client, step, *_ in seen}
    assert told >= {(one.index, client, step) for one in finished for client in one.cohort for step in range(3)}
    by_address: dict[Any, set[Any]] = {}
    for at, client, step, *draws in seen:
        by_address.setdefault((at, client, step), set()).add(tuple(draws))
    assert all(len(draws) == 1 for draws in by_address.values())
    assert len({next(iter(draws)) for draws in by_address.values()}) == len(by_address)


@pytest.mark.usefixtures("ray_cluster")
def test_mixup_has_the_same_bits_on_workers_and_in_other_chunks(
    dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    def of(**engine: Any) -> list[Any]:
        exp = experiment(client=CLIENT, rounds=2, engine=engine)
        return list(raysim.rounds(exp, dataset=dataset, objective=mixed))

    here, there, alone = of(workers=0, chunk_size=2), of(**TWO_WORKERS, chunk_size=2), of(workers=0, chunk_size=1)
    assert [bits(one) for one in there] == [bits(one) for one in here]
    # Other chunks are added up in another order, of the same updates.
    for one, other in zip(here, alone, strict=True):
        for name, value in one.params.items():
            torch.testing.assert_close(value, other.params[name], rtol=1e-5, atol=1e-7)


def test_hits_are_counted_on_the_module_s_outputs_for_x_itself(
    dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    fast = {"optimizer": {"name": "sgd", "lr": 1.0}, "batch_size": "full", "local_steps": 2}
    exp = experiment(client=fast, rounds=1)
    plain, teacher, mixup = (
        next(iter(raysim.rounds(exp, dataset=dataset, objective=given))).metrics for given in (None, distilled, mixed)
    )
    # In the first local step the teacher is the model itself, in the second it is another; the first steps agree.
    assert teacher["accuracy"] == pytest.approx(plain["accuracy"])
    assert mixup.get("accuracy") is None


def test_products_are_in_the_engine_s_precision(
    dataset: raysim.FederatedDataset, experiment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_table, "CALL_AUTOGRAD", ())  # As above.

    def needs_module(module: nn.Module, x: Tensor, y: Tensor, at: raysim.ObjectiveAt) -> Tensor:
        outputs = module(x)
        assert outputs.dtype == next(iter(at.broadcast.values())).dtype
        return F.cross_entropy(outputs, y, reduction="none")

    made, engine = {}, {"workers": 0, "trainer": "one_by_one"}
    for precision in ("float32", "bf16"):
        exp = experiment(client=CLIENT, rounds=1, engine={**engine, "precision": precision})
        made[precision] = all_bits(exp, dataset=dataset, objective=needs_module)
        assert made[precision] == all_bits(exp, dataset=dataset)
    assert made["float32"] != made["bf16"]


def test_a_run_is_resumed_and_replayed_with_its_objective(
    dataset: raysim.FederatedDataset, experiment: Make, tmp_path: Path
) -> None:
    keys = {"client": CLIENT, "checkpoint": {"every": 2}}
    whole = raysim.run(experiment(**keys, rounds=4), dataset=dataset, objective=mixed, path=tmp_path / "whole")
    raysim.run(experiment(**keys, rounds=2), dataset=dataset, objective=mixed, path=tmp_path / "half")
    with pytest.raises(raysim.ExperimentError, match=r"objective=, but none was passed"):
        raysim.resume(tmp_path / "half", dataset=dataset, rounds=4)
    same_records(raysim.resume(tmp_path / "half", dataset=dataset, objective=mixed, rounds=4), whole)
    again = raysim.replay(tmp_path / "whole", 3, dataset=dataset, objective=mixed)
    assert isinstance(again, raysim.Round)
    assert again.metrics["loss"] == whole.rounds["loss"][3].as_py()


class OneWay(torch.autograd.Function):
    """Has no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        raise ValueError("one way only")


def one_way(module: nn.Module, x: Tensor, y: Tensor, at: raysim.ObjectiveAt) -> Any:
    return OneWay.apply(module(x).sum(1))  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("objective", "said"),
    [
        (lambda module, x, y: x, r"must be a function of \(module, x, y, at\)"),
        (lambda module, x, y, at: 1.0, r"objective= must return one loss per example, shape \(2,\), but got float"),
        (
            lambda module, x, y, at: module(x).mean(),
            r"shape \(2,\), but got \(\)\. A loss of torch\.nn does so by reduction='none'",
        ),
        (
            lambda module, x, y, at: module(x).argmax(1),
            r"objective= must return real numbers, but they are of torch\.int64",
        ),
        (lambda module, x, y, at: module(x.detach()).detach().sum(1), "so they have no gradient"),
        (lambda module, x, y, at: module(x.mul_(2.0)).sum(1), "must not write to x"),
        (lambda module, x, y, at: module(x).sum(1) + y.add_(0), "must not write to y"),
        (
            lambda module, x, y, at: module(x).sum(1) + next(iter(at.broadcast.values())).mul_(1.0).sum(),
            "must not write to at.broadcast",
        ),
        (
            lambda module, x, y, at: module(x).sum(1) + next(iter(at.broadcast.values())).data.mul_(2.0).sum(),
            "must not write to at.broadcast",
        ),
        (lambda module, x, y, at: module(x).sum(1) + x.data.mul_(2.0).sum(), "must not write to x"),
        (lambda module, x, y, at: module(x).sum(1) + float(y.numpy().fill(7) or 0), "must not write to y"),
        (
            lambda module, x, y, at: module(x).sum(1) + next(module.parameters()).data.mul_(2.0).sum(),
            "must not write to the module's parameters",
        ),
        (
            lambda module, x, y, at: module(x).sum(1) * float(np.random.default_rng().random()),
            "returned something else when it was called again",
        ),
        (lambda module, x, y, at: F.dropout(module(x)).sum(1), "drew from a global generator .*at.generator"),
        (lambda module, x, y, at: module(x) @ y, "objective= failed on a batch x of shape"),
        (one_way, r"gradient cannot .* ValueError \(.*: one way only"),
    ],
    ids=[
        "signature",
        "type",
        "shape",
        "dtype",
        "gradient",
        "x",
        "y",
        "broadcast",
        "broadcast unseen",
        "x unseen",
        "y unseen",
        "parameters",
        "own draws",
        "draws",
        "fails",
        "backward fails",
    ],
)
def test_what_is_no_objective_is_refused_before_the_first_round(
    objective: Any, said: str, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    with pytest.raises(raysim.ModelError, match=said):
        raysim.rounds(experiment(client=CLIENT), dataset=dataset, objective=objective)


def test_draws_of_the_module_are_not_the_objective_s(dataset: raysim.FederatedDataset, experiment: Make) -> None:
    def make() -> nn.Module:
        # Draws from torch's generator, and writes to its input.
        return nn.Sequential(nn.ReLU(inplace=True), nn.RReLU(), nn.Flatten(), nn.Dropout(0.5), nn.LazyLinear(9))

    def built() -> nn.Module:
        module = make()
        module(torch.zeros(2, *dataset.x.shape))
        return module

    assert resolve(experiment(client=CLIENT), dataset=dataset, model=built, objective=mixed)


@pytest.mark.parametrize("fails", ["shape", "asks"])
def test_what_goes_wrong_later_names_client_and_round(
    fails: str, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    calls: list[None] = []

    def turns(module: nn.Module, x: Tensor, y: Tensor, at: raysim.ObjectiveAt) -> Tensor:
        calls.append(None)
        losses = F.cross_entropy(module(x), y, reduction="none", label_smoothing=0.1)
        if len(calls) > 12:
            return losses.sum() if fails == "shape" else losses * at.round
        return losses

    # A recorded local step calls it no more.
    by_layers = experiment(client=CLIENT, engine={"workers": 0, "trainer": "fused"})
    with pytest.raises(raysim.ClientError, match=r"client 'c\d+'.* failed in round") as caught:
        list(raysim.rounds(by_layers, dataset=dataset, objective=turns))
    wanted = "must return one loss per example" if fails == "shape" else "set engine.trainer = 'one_by_one'"
    assert wanted in str(caught.value)


@pytest.mark.parametrize(
    ("wrote", "keys"),
    [
        ("y", {}),
        *(
            (wrote, keys)
            for wrote in ("y", "broadcast")
            for keys in (
                {"engine": {"workers": 0, "trainer": "one_by_one"}},
                {"client": {**CLIENT, "personalisation": APFL}},
            )
        ),
    ],
    ids=["fused y", "one by one y", "several points y", "one by one broadcast", "several points broadcast"],
)
def test_one_that_writes_to_what_it_was_given_later_is_refused_too(
    wrote: str, keys: dict[str, Any], dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    calls: list[None] = []

    def later(module: nn.Module, x: Tensor, y: Tensor, at: raysim.ObjectiveAt) -> Tensor:
        calls.append(None)
        if len(calls) > 12:
            (y if wrote == "y" else next(iter(at.broadcast.values()))).add_(0)
        return F.cross_entropy(module(x), y, reduction="none", label_smoothing=0.1)

    with pytest.raises(raysim.ClientError, match=rf"objective= must not write to (at\.)?{wrote}"):
        list(raysim.rounds(experiment(**{"client": CLIENT, **keys}), dataset=dataset, objective=later))


def test_fine_tuning_minimises_the_objective(dataset: raysim.FederatedDataset, experiment: Make) -> None:
    def still(module: nn.Module, x: Tensor, y: Tensor, at: raysim.ObjectiveAt) -> Tensor:
        return 0.0 * F.cross_entropy(module(x), y, reduction="none")

    exp = experiment(
        client=CLIENT, rounds=1, evaluation={"every": 1, "fine_tuning": {"steps": 2, "lr": 5.0, "split": "train"}}
    )
    for objective, moves in ((still, False), (smoothed, True)):
        *_, last = raysim.rounds(exp, dataset=dataset, objective=objective)
        assert last.clients is not None
        rows = [row for row in last.clients.to_pylist() if row["tuned_loss"] is not None]
        assert rows
        assert any(row["tuned_loss"] != row["loss"] for row in rows) is moves


class Smoothed(Section):
    """A package's objective."""

    name: Literal["smoothed"] = "smoothed"
    by: float = 0.1


def make_smoothed(section: Smoothed) -> Any:
    def objective(module: nn.Module, x: Tensor, y: Tensor, at: raysim.ObjectiveAt) -> Tensor:
        assert at.constants == {"by": section.by}
        return F.cross_entropy(module(x), y, reduction="none", label_smoothing=section.by)

    return objective


SMOOTHED = raysim.Part("objective", "smoothed", Smoothed, make_smoothed)


def test_a_package_s_objective_is_a_name_and_its_keys_are_its_constants(
    dataset: raysim.FederatedDataset, experiment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = EntryPoint("smoothed", f"{__name__}:SMOOTHED", section_source.GROUP)
    monkeypatch.setattr(part, "entry_points", lambda group: [entry])
    part.load_installed.cache_clear()
    try:
        exp = experiment(client={**CLIENT, "objective": {"name": "smoothed", "by": 0.1}})
        assert all_bits(exp, dataset=dataset) == all_bits(
            experiment(client=CLIENT), dataset=dataset, objective=smoothed
        )
    finally:
        part.load_installed.cache_clear()


def test_a_constant_that_is_not_there_is_answered_with_those_that_are(
    dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    def misspelt(module: nn.Module, x: Tensor, y: Tensor, at: raysim.ObjectiveAt) -> Tensor:
        scaled: Tensor = at.constants["gamma"] * module(x).sum(1)
        return scaled

    exp = experiment(client={**CLIENT, "objective": {"name": "own", "constants": {"gama": 2.0}}})
    with pytest.raises(
        raysim.ModelError, match=r"constants has no 'gamma': it has gama; .* constants = \{ gamma = 0.1 \}"
    ):
        raysim.run(exp, dataset=dataset, objective=misspelt)


def test_an_objective_for_which_memory_is_lacking_does_not_choose_another_trainer() -> None:
    """Else the last digits of a run would depend on what else is in memory."""

    def lacking(*_: object) -> Tensor:
        raise MemoryError

    with pytest.raises(MemoryError):
        output_objectives.obstacle(cast(Any, SimpleNamespace(function=lacking)), torch.zeros(2, 3), torch.zeros(2))
