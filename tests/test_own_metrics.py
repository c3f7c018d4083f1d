"""Metrics of one's own: their columns, by split and by client, are those of all examples looked at together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pyarrow.compute as pc
import pytest
import torch
from torch import Tensor, nn

import raysim
from raysim.config.own_part import OwnMetric
from raysim.evaluation.metric import Metrics
from raysim.experiment import metric_columns
from tests.support.executors import EXECUTORS, bits
from tests.support.small_data import make_clients

Make = Callable[..., raysim.Experiment]
TRAIN = make_clients([6, 9, 4, 12, 7])
# "c0" and "c3" are cut over batches and units of an evaluation.
TEST = {f"c{i}": own for i, own in enumerate(make_clients([3000, 1, 300, 700], seed=2).values())}
DATA = raysim.FederatedDataset.from_clients(train=TRAIN, test=TEST)
MODEL = partial(nn.Linear, 5, 3)


def margin(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.gather(1, targets[:, None])[:, 0] - outputs.mean(1)


def confusions(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of class 1: hits, false alarms, misses."""
    said, true = outputs.argmax(1) == 1, targets == 1
    return torch.stack([(said & true).sum(), (said & ~true).sum(), (~said & true).sum()])


def f1(sums: Tensor) -> float:
    hits, alarms, misses = sums.tolist()
    return 2 * hits / (2 * hits + alarms + misses) if hits + alarms + misses else float("nan")


METRICS: Metrics = {"margin": margin, "f1": raysim.Metric(confusions, f1)}


def scored(experiment: Make, **sections: Any) -> raysim.Experiment:
    base: dict[str, Any] = {
        "rounds": 2,
        "model": None,
        "cohort": {"size": 3},
        "evaluation": {"every": 1},
        "engine": {"workers": 0, "dtype": "float64"},
    }
    return experiment(**{**base, **sections})


def by_hand(params: Any, clients: Any) -> tuple[dict[str, float], dict[str, float]]:
    """(margin, F1 of class 1) by client, and of all examples under "all"."""
    outputs = {name: torch.from_numpy(x) @ params["weight"].T + params["bias"] for name, (x, _) in clients.items()}
    targets = {name: torch.from_numpy(y) for name, (_, y) in clients.items()}
    outputs["all"], targets["all"] = (torch.cat(list(part.values())) for part in (outputs, targets))
    margins = {name: float(margin(out, targets[name]).mean()) for name, out in outputs.items()}
    return margins, {name: f1(confusions(out, targets[name])) for name, out in outputs.items()}


def test_figures_are_those_of_all_rows_at_once_by_client_and_by_split(experiment: Make) -> None:
    for done in raysim.rounds(scored(experiment), dataset=DATA, model=MODEL, metrics=METRICS):
        margins, scores_of = by_hand(done.params, TEST)
        assert done.metrics["eval/test/margin"] == pytest.approx(margins["all"], rel=1e-12)
        assert done.metrics["eval/test/f1"] == scores_of["all"]
        assert done.clients is not None
        assert done.clients.num_rows == 4
        for row in done.clients.to_pylist():
            assert row["margin"] == pytest.approx(margins[row["client"]], rel=1e-12)
            assert row["f1"] == pytest.approx(scores_of[row["client"]], nan_ok=True)


def test_the_loss_as_a_metric_has_the_bits_of_the_loss(experiment: Make) -> None:
    again = {"again": partial(nn.functional.cross_entropy, reduction="none")}
    model = partial(nn.Linear, 5, 3)
    loss = partial(nn.functional.cross_entropy, reduction="none")
    done = list(raysim.rounds(scored(experiment), dataset=DATA, model=model, loss=loss, metrics=again))[-1]
    assert done.metrics["eval/test/again"] == done.metrics["eval/test/loss"]
    assert done.clients is not None
    assert done.clients["again"].to_pylist() == done.clients["loss"].to_pylist()


def test_metrics_change_nothing_else(experiment: Make) -> None:
    with_them = raysim.rounds(scored(experiment), dataset=DATA, model=MODEL, metrics=METRICS)
    for one, other in zip(with_them, raysim.rounds(scored(experiment), dataset=DATA, model=MODEL), strict=True):
        assert all(torch.equal(one.params[name], value) for name, value in other.params.items())
        assert one.metrics["eval/test/loss"] == other.metrics["eval/test/loss"]
        assert one.clients is not None
        assert one.clients.drop_columns(["margin", "f1"]) == other.clients


def test_fine_tuned_clients_are_measured_before_and_after(experiment: Make) -> None:
    exp = scored(experiment, evaluation={"every": 1, "fine_tuning": {"steps": 3}})
    done = list(raysim.rounds(exp, dataset=DATA, model=MODEL, metrics=METRICS))[-1]
    assert done.clients is not None
    tuned = done.clients.filter(pc.equal(done.clients["split"], "fine_tuning/test"))
    plain = done.clients.filter(pc.equal(done.clients["split"], "test"))
    assert tuned["f1"].to_pylist() == pytest.approx(plain["f1"].to_pylist(), nan_ok=True)
    assert plain["tuned_f1"].null_count == plain.num_rows
    sizes = torch.tensor(tuned["examples"].to_pylist(), dtype=torch.float64)
    margins = torch.tensor(tuned["tuned_margin"].to_pylist(), dtype=torch.float64)
    assert done.metrics["eval_tuned/test/margin"] == pytest.approx(float((margins * sizes).sum() / sizes.sum()))
    assert done.metrics["eval_tuned/test/before/margin"] == pytest.approx(done.metrics["eval/test/margin"])
    assert done.metrics["eval_tuned/test/margin"] != done.metrics["eval_tuned/test/before/margin"]


def test_the_clients_mean_is_measured_beside_the_model(experiment: Make) -> None:
    client = {"optimizer": {"name": "sgd", "lr": 0.3}, "batch_size": 4, "correction": {"name": "feddyn", "mu": 0.1}}
    done = list(raysim.rounds(scored(experiment, client=client), dataset=DATA, model=MODEL, metrics=METRICS))[-1]
    assert done.metrics["eval_average/test/margin"] != done.metrics["eval/test/margin"]
    assert done.clients is not None
    assert done.clients.num_rows == len(TEST)


@pytest.mark.usefixtures("ray_cluster")
def test_figures_have_the_same_bits_for_any_number_of_workers(experiment: Make) -> None:
    evaluation = {"every": 1, "fine_tuning": {"steps": 1}}
    expected = raysim.rounds(scored(experiment, evaluation=evaluation), dataset=DATA, model=MODEL, metrics=METRICS)
    engine = {**EXECUTORS["2 workers"], "dtype": "float64"}
    got = raysim.rounds(
        scored(experiment, evaluation=evaluation, engine=engine), dataset=DATA, model=MODEL, metrics=METRICS
    )
    for one, other in zip(expected, got, strict=True):
        assert repr(bits(one)) == repr(bits(other))
        assert "eval/test/f1" in one.metrics


def test_a_folder_says_which_metrics_a_continuation_needs(experiment: Make, tmp_path: Path) -> None:
    path, how = tmp_path / "run", raysim.Parts(dataset=DATA, model=MODEL)
    measured = raysim.Parts(dataset=DATA, model=MODEL, metrics=METRICS)
    whole = raysim.run(scored(experiment, rounds=3), **measured, path=tmp_path / "whole")
    raysim.run(scored(experiment), **measured, path=path)
    with pytest.raises(raysim.ExperimentError, match=r"has 'margin', 'f1' of name = 'own'.*passes as metrics="):
        raysim.resume(path, **how)
    with pytest.raises(raysim.ExperimentError, match=r"has 'f1' of name = 'own'"):
        raysim.resume(path, dataset=DATA, model=MODEL, metrics={"margin": margin})
    done = raysim.resume(path, **measured, rounds=3)
    assert done.rounds["eval/test/f1"].to_pylist() == whole.rounds["eval/test/f1"].to_pylist()
    assert repr(done.clients.to_pylist()) == repr(whole.clients.to_pylist())


def test_trials_with_and_without_metrics_make_one_table(experiment: Make, tmp_path: Path) -> None:
    done = raysim.run_sweep(
        scored(experiment), {"evaluation.percentiles": [[50], [5]]}, dataset=DATA, model=MODEL, metrics=METRICS,
        path=tmp_path / "sweep", executor="local",
    )  # fmt: skip
    assert done.clients["f1"].null_count == 0
    assert done.rounds["eval/test/margin"].null_count == 0


@pytest.mark.parametrize(
    "name", ["loss", "accuracy", "p5", "p50.5", "examples", "before", "tuned_f1", "a/b", "", "1st", "\udc80", 3]
)
def test_names_of_other_columns_are_refused(name: Any, experiment: Make) -> None:
    with pytest.raises(raysim.ExperimentError, match="a metric"):
        raysim.rounds(scored(experiment), dataset=DATA, model=MODEL, metrics={name: margin})


def test_every_column_of_records_is_refused_as_a_name(experiment: Make) -> None:
    exp = scored(experiment, evaluation={"every": 1, "fine_tuning": {"steps": 1}})
    done = list(raysim.rounds(exp, dataset=DATA, model=MODEL))[-1]
    assert done.clients is not None
    evaluated = [name.split("/")[2] for name in done.metrics if name.startswith("eval")]
    for name in (*done.clients.column_names, *evaluated):
        assert list(metric_columns.refusals([OwnMetric(label=name)])), name


def writes(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.sub_(1)[:, 0]


def draws(outputs: Tensor, targets: Tensor) -> Tensor:
    return torch.rand(len(targets))


def refuses_one(outputs: Tensor, targets: Tensor) -> Tensor:
    if len(targets) == 1:
        raise ValueError("no spread")
    return outputs[:, 0]


@pytest.mark.parametrize(
    ("metric", "match"),
    [
        (
            lambda outputs, targets: outputs,
            r"'mine' failed.*one figure per example, shape \(2,\), but got shape \(2, 3\)",
        ),
        (lambda outputs, targets: 0.5, r"one figure per example, shape \(2,\), but got float"),
        (lambda outputs: outputs, r"'mine' failed on outputs \(2, 3\) and targets \(2,\).*positional argument"),
        (lambda o, t: (o[:, :1] - t).abs().mean(1), "'mine' must return a figure of each example"),
        (lambda o, t: o.mean().expand(len(t)), "'mine' must return a figure of each example"),
        (writes, "'mine' writes to outputs"),
        (draws, "'mine' drew from a global generator"),
        # The whole batch has two examples.
        (refuses_one, r"'mine' failed on outputs \(1, 3\) and targets \(1,\) .*: no spread\. A client, or the last"),
        (
            raysim.Metric(lambda o, t: refuses_one(o, t).sum(0, keepdim=True), sum),
            r"'mine' failed on outputs \(1, 3\) and targets \(1,\) .*: no spread\. A client, or the last",
        ),
        ("f1", "'mine' must be a function .* but is 'f1'"),
        (
            raysim.Metric(lambda o, t: o.mean(), f1),
            r"sums\(outputs, targets\) must return .* \(S,\), but got shape \(\)",
        ),
        (raysim.Metric(lambda o, t: o.sum(0) / len(o), sum), "'mine' must return sums that add up over batches"),
        (raysim.Metric(lambda o, t: o[:, 0], sum), r"sums of one shape for every batch|that add up"),
        (
            raysim.Metric(confusions, cast(Any, lambda _: "much")),
            r"\(sums\) must return a number, but got 'much'",
        ),
        (
            raysim.Metric(confusions, cast(Any, lambda sums: sums)),
            r"\(sums\) must return a number, but got torch.float64 of shape",
        ),
    ],
)
def test_what_a_metric_must_not_do_is_said_before_the_first_round(metric: Any, match: str, experiment: Make) -> None:
    with pytest.raises(raysim.ExperimentError, match=f"(?s)metrics.*{match}"):
        raysim.rounds(scored(experiment), dataset=DATA, model=MODEL, metrics={"mine": metric})


def test_a_metric_without_sums_has_a_figure(experiment: Make) -> None:
    constant = raysim.Metric(lambda o, t: torch.zeros(0), lambda sums: 2.0)
    rows = [
        each.metrics for each in raysim.rounds(scored(experiment), dataset=DATA, model=MODEL, metrics={"c": constant})
    ]
    assert rows[-1]["eval/test/c"] == 2.0


def fails_later(outputs: Tensor, targets: Tensor) -> Tensor:
    if len(targets) > 100:
        raise KeyError("my own mistake")
    return outputs[:, 0]


def test_a_metric_that_fails_later_names_client_and_round(experiment: Make) -> None:
    with pytest.raises(raysim.ClientError, match=r"(?s)Evaluating client 'c0' failed in round 0.*the metric 'mine'"):
        list(raysim.rounds(scored(experiment), dataset=DATA, model=MODEL, metrics={"mine": fails_later}))
    lock = threading.Lock()

    def value(sums: Tensor) -> float:
        with lock:
            return 1 / (float(sums[0]) - 1)

    once = raysim.Metric(lambda outputs, targets: torch.tensor([float(len(targets))]), value)
    with pytest.raises(raysim.ClientError, match=r"(?s)metric 'mine' of client 'c1' failed in round 0.*ZeroDivision"):
        list(raysim.rounds(scored(experiment), dataset=DATA, model=MODEL, metrics={"mine": once}))


@pytest.mark.parametrize("as_sums", [False, True])
@pytest.mark.parametrize("name", ["outputs", "targets"])
def test_a_metric_that_writes_on_some_batches_alone_is_refused_there(
    name: str, as_sums: bool, experiment: Make
) -> None:
    def first(outputs: Tensor, targets: Tensor) -> Tensor:
        kept = outputs[:, 0].clone()
        if len(targets) > 2:
            (outputs if name == "outputs" else targets).mul_(0)
        return kept

    mine = raysim.Metric(lambda o, t: first(o, t).sum(0, keepdim=True), float) if as_sums else first
    with pytest.raises(raysim.ClientError, match=f"(?s)Evaluating client 'c0'.*metric 'mine' must not write to {name}"):
        list(raysim.rounds(scored(experiment), dataset=DATA, model=MODEL, metrics={"mine": mine, "margin": margin}))


@pytest.mark.parametrize(("given", "pieces"), [({}, [256, 44, 100, 2]), ({"batch_size": 100}, [100, 100, 100, 100, 2])])
def test_sums_of_a_metric_are_of_one_client_s_rows_each(given: dict[str, int], pieces: list[int]) -> None:
    seen: list[int] = []

    def sizes(outputs: Tensor, targets: Tensor) -> Tensor:
        seen.append(len(targets))
        return torch.tensor([len(targets)])

    exp = raysim.Experiment.model_validate(
        {"rounds": 1, "cohort": {"size": 1}, "engine": {"workers": 0}, "evaluation": given}
    )
    data = raysim.FederatedDataset.from_clients(train=make_clients([9]), test=make_clients([300, 100, 2]))
    metric = raysim.Metric(sizes, lambda sums: float(sums[0]))
    (only,) = raysim.rounds(exp, dataset=data, model=MODEL, metrics={"pieces": metric})
    assert seen[-len(pieces) :] == pieces
    assert only.clients is not None
    assert only.clients["pieces"].to_pylist() == [300.0, 100.0, 2.0]


def test_a_name_of_a_hundred_letters_is_a_metrics_and_a_longer_one_is_not(
    experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    def ones(outputs: Tensor, targets: Tensor) -> Tensor:
        return torch.ones(len(targets))

    raysim.rounds(experiment(), dataset=dataset, metrics={"m" * 100: ones})
    with pytest.raises(
        raysim.ExperimentError, match=r"^metrics=: a metric's name must be at most 100 letters, .* and more"
    ):
        raysim.rounds(experiment(), dataset=dataset, metrics={"m" * 101: ones})


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_figures_may_have_marks_of_torch_s(dtype: str, experiment: Make) -> None:
    scale = nn.Parameter(torch.tensor(2.0, dtype=getattr(torch, dtype)))

    def scaled(outputs: Tensor, targets: Tensor) -> Tensor:
        with torch.enable_grad(), torch.inference_mode(False):
            return scale * outputs.clone()[:, 0]

    def negative(outputs: Tensor, targets: Tensor) -> Tensor:
        return torch.complex(outputs, -2 * outputs).conj().imag[:, 0]

    metrics: Metrics = {
        "scaled": scaled,
        "negative": negative,
        "sums": raysim.Metric(lambda o, t: scaled(o, t).sum()[None], lambda sums: float(sums[0])),
    }
    exp = scored(experiment, engine={"workers": 0, "dtype": dtype})
    done = next(iter(raysim.rounds(exp, dataset=DATA, model=MODEL, metrics=metrics)))
    assert done.metrics["eval/test/scaled"] == done.metrics["eval/test/negative"]
    examples = sum(len(y) for _, y in TEST.values())
    sums = cast(float, done.metrics["eval/test/sums"])
    assert sums / examples == pytest.approx(done.metrics["eval/test/scaled"], rel=1e-3)
