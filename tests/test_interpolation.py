"""`raysim interpolate`: the loss between two models, as in figure 1 of McMahan et al. (2017)."""

from __future__ import annotations

import csv
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import raysim
from raysim.api.interpolation import between_runs
from raysim.cli.output import MISUSED
from raysim.engine.rounds.interpolation import THETAS, between
from raysim.models.model import Weights
from raysim.report.gallery import interpolated
from tests.support.command import Raysim
from tests.support.drawn import drawn


def made(**model: Any) -> raysim.Experiment:
    """One round on digits, in this process."""
    return raysim.Experiment.model_validate(
        {
            "name": "made",
            "rounds": 1,
            "data": {"name": "digits", "clients": 20, "test_clients": "pooled"},
            "model": model,
            "cohort": {"size": 2},
            "engine": {"workers": 0, "dtype": "float64"},
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs from two initial models, and one of a model of another kind."""
    top = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        raysim.run(made(name="linear", seed=seed), path=top / f"seed-{seed}")
    raysim.run(made(name="mlp", hidden=[3]), path=top / "mlp")
    return top


def test_the_line_is_the_paper_s() -> None:
    assert np.allclose(THETAS, np.linspace(-0.2, 1.2, 50))
    w, other = (Weights(torch.tensor([n]), torch.tensor([10 * n]), torch.tensor([int(n)])) for n in (3.0, 5.0))
    made = between(w, other, 0.75)
    assert [made.params.item(), made.buffers.item(), made.counters.item()] == [3.5, 35.0, 3]
    assert [between(w, other, theta) for theta in THETAS if theta in (0.0, 1.0)] == [
        Weights(other.params, other.buffers, w.counters),
        w,
    ]


@pytest.mark.parametrize("theta", [-0.2, 0.0, 0.5, 1.0])
def test_infinity_that_both_have_in_a_buffer_stays(theta: float) -> None:
    """Such as -inf in a mask: 0 or less times it would be no number."""
    none = torch.zeros(0, dtype=torch.int64)
    w, other = (Weights(torch.zeros(1), torch.tensor([-torch.inf, value]), none) for value in (1.0, 3.0))
    assert between(w, other, theta).buffers.tolist() == pytest.approx([-torch.inf, theta + 3 * (1 - theta)])


def test_rows_are_the_losses_of_the_models_between(folder: Path) -> None:
    # The evaluation's sample has no part in it.
    experiment = made(name="linear").changed({"evaluation.examples": 10})
    rows = raysim.interpolate(experiment, folder / "seed-1", folder / "seed-0").to_pylist()
    assert list(rows[0]) == ["theta", "loss", "accuracy"]
    assert [row["theta"] for row in rows] == list(THETAS)
    w, other = (raysim.resume(folder / f"seed-{seed}").params for seed in (1, 0))
    test = raysim.dataset_of(made(name="linear")).test
    assert test is not None
    x, y = (torch.from_numpy(np.asarray(part)) for part in test.client(0))
    for row in (rows[0], rows[7], rows[20], rows[42], rows[49]):
        weight, bias = (row["theta"] * w[key] + (1 - row["theta"]) * other[key] for key in sorted(w, reverse=True))
        outputs = x.double().flatten(1) / 16 @ weight.T + bias
        assert row["loss"] == pytest.approx(nn.functional.cross_entropy(outputs, y).item(), rel=1e-9)
        assert row["accuracy"] == pytest.approx((outputs.argmax(1) == y).double().mean().item())


def test_the_dashed_line_is_spoken_of_where_both_models_were_scored() -> None:
    rows = [{"theta": theta, "loss": loss} for theta, loss in ((0.0, 2.0), (0.5, 1.0), (1.0, 3.0))]
    whole, inner = (interpolated.figure(some, ("a", "b"), "test") for some in (rows, rows[1:]))
    assert whole.caption.endswith("the dashed line is the better of the two.")
    assert "dashed" not in inner.caption
    dashed = [[line for line in drawn(each)[0].get_lines() if line.is_dashed()] for each in (whole, inner)]
    assert [[np.asarray(line.get_ydata()).tolist() for line in lines] for lines in dashed] == [[[2.0, 2.0]], []]


def test_models_are_given_by_value_or_by_any_checkpoint(folder: Path) -> None:
    experiment, a, b, thetas = made(name="linear"), folder / "seed-1", folder / "seed-0", [0.0, 0.25]
    w, other = (raysim.resume(run).params for run in (a, b))
    first, second = (next((run / "checkpoints").glob("*.safetensors")) for run in (a, b))
    wanted = raysim.interpolate(experiment, a, b, thetas)
    assert wanted.column("theta").to_pylist() == thetas
    assert raysim.interpolate(experiment, w, other, np.array(thetas)) == wanted
    assert raysim.interpolate(experiment, first, second, thetas) == wanted
    with pytest.raises(raysim.ModelError, match=r"fc\.bias"):
        raysim.interpolate(experiment, w, {"fc.weight": other["fc.weight"]})


def test_targets_that_are_numbers_have_no_accuracy() -> None:
    data = raysim.FederatedDataset.from_clients({0: (np.array([[1.0], [2.0]]), np.array([2.0, 4.0]))})
    experiment = made(name="linear").changed({"data": None, "evaluation.split": "train", "cohort.size": 1})
    a, b = ({"fc.weight": np.array([[weight]]), "fc.bias": np.zeros(1)} for weight in (2.0, 4.0))
    rows = raysim.interpolate(experiment, a, b, [1.0, 0.5], dataset=data).to_pylist()
    # At theta = 1/2 the weight is 3, and residuals are 1 and 2.
    assert rows == [{"theta": 1.0, "loss": 0.0, "accuracy": None}, {"theta": 0.5, "loss": 2.5, "accuracy": None}]


def test_what_has_no_line_between_is_refused(folder: Path, tmp_path: Path) -> None:
    first, experiment = folder / "seed-0", made(name="linear")
    with pytest.raises(raysim.RunFolderError, match=r"mlp must have a model of the experiment's kind, with \d+ params"):
        raysim.interpolate(experiment, first, folder / "mlp")
    # 12 and 15 numbers lie in vectors of one length.
    kinds = [made(name="mlp", hidden=[3, width]) for width in (4, 5)]
    for place, kind in enumerate(kinds):
        raysim.run(kind, path=tmp_path / f"kind-{place}")
    with pytest.raises(
        raysim.RunFolderError, match=r"kind, but there fc2\.weight had shape \(5, 3\), and has \(4, 3\)"
    ):
        raysim.interpolate(kinds[0], tmp_path / "kind-0", tmp_path / "kind-1")
    with pytest.raises(raysim.DataError, match="no split 'validation'"):
        between_runs(first, folder / "seed-1", split="validation", out=tmp_path / "out")
    with pytest.raises(raysim.ExperimentError, match=r"evaluation\.split has train and test: name one of train, test"):
        raysim.interpolate(experiment.changed({"evaluation.split": ["train", "test"]}), first, first)
    with pytest.raises(raysim.ExperimentError, match=r"thetas must be finite numbers, at least one, but got \[nan\]"):
        raysim.interpolate(experiment, first, first, [float("nan")])
    (tmp_path / "same").symlink_to(first)
    for same in (first, f"{first}/../seed-0/", tmp_path / "same", raysim.resume(first).params):
        with pytest.raises(raysim.ExperimentError, match="a and b have the same values, so there is no line"):
            raysim.interpolate(experiment, first, same)
    begun = shutil.copytree(first, tmp_path / "begun")
    for file in (begun / "checkpoints").iterdir():
        file.unlink()
    with pytest.raises(raysim.RunFolderError, match="begun has no checkpoint"):
        raysim.interpolate(experiment, first, begun)


def test_the_command_draws_the_loss(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    out = tmp_path / "between"
    called = Raysim(folder)
    assert called("interpolate", "seed-1", "seed-0", "--split", "test", "--out", str(out)) == 0
    zero, one, least, *files = called.out.splitlines()
    assert (zero.split(":")[0], one.split(":")[0]) == ("theta = 0", "theta = 1")
    assert least.startswith("least at theta = ")
    assert files == [f"{out / 'interpolation.csv'}, .pdf, .png, .svg"]
    assert (out / "interpolation.png").read_bytes().startswith(b"\x89PNG")
    with (out / "interpolation.csv").open() as file:
        points = {float(row["theta"]): row for row in csv.DictReader(file)}
    assert sorted(points) == list(THETAS)
    assert f"theta = 1: test loss {float(points[1.0]['loss']):.4g}" == one
    assert points[1.0]["group"] == "seed-1 and seed-0"
    assert called("interpolate", "seed-1", "nothing") == MISUSED
    assert called("interpolate", "seed-1", "seed-0", "--split", "test", "--out", str(out)) == 0, "its own files"


def test_the_least_loss_is_a_number(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = {-0.2: math.nan, 0.0: math.nan, 0.5: 2.0, 1.0: 3.0}
    rows = pa.Table.from_pylist([{"theta": theta, "loss": loss} for theta, loss in losses.items()])
    monkeypatch.setattr("raysim.api.interpolation.interpolate", lambda *given: rows)
    called = Raysim(folder)
    assert called("interpolate", str(folder / "seed-1"), str(folder / "seed-0"), "--out", str(tmp_path / "out")) == 0
    assert "least at theta = 0.5: train loss 2" in called.out.splitlines()
    figure = interpolated.figure(rows.to_pylist(), ("a", "b"), "train")
    assert not any(line.is_dashed() for line in drawn(figure)[0].get_lines())


def test_runs_with_conditions_by_another_split_have_a_line(tmp_path: Path) -> None:
    """The split that is scored is not the one by whose figures a run keeps its best model, or stops."""
    for seed in (0, 1):
        exp = made(name="linear", seed=seed).changed(
            {
                "checkpoint.best": {"metric": "eval/test/loss"},
                "stop": {"target": {"metric": "eval/test/accuracy", "value": 0.99}},
            }
        )
        raysim.run(exp, path=tmp_path / f"seed-{seed}", progress=False)
    rows = between_runs(tmp_path / "seed-0", tmp_path / "seed-1", split="train", out=tmp_path / "out")
    assert rows.num_rows == len(THETAS)


def test_a_file_of_others_is_refused_before_the_models_are_scored(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "interpolation.csv"
    mine.write_bytes(b"mine")
    monkeypatch.setattr("raysim.api.interpolation.interpolate", None)
    with pytest.raises(raysim.RunFolderError, match=r"interpolation\.csv is none of the pictures"):
        between_runs(folder / "seed-1", folder / "seed-0", split="test", out=tmp_path)
    assert mine.read_bytes() == b"mine"


def test_models_with_other_frozen_parameters_have_none_between_them(
    experiment: Callable[..., raysim.Experiment], dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))

    exp = experiment(rounds=1, model={"name": "own", "freeze": ["0.*"]}, evaluation={"split": "train"})
    for name, seed, of_run in (("a", 1, 1), ("b", 2, 1), ("c", 1, 2)):
        run = exp.changed({"model.seed": seed, "seed": of_run})
        raysim.run(run, dataset=dataset, model=model, path=tmp_path / name)
    first = exp.changed({"model.seed": 1})
    raysim.interpolate(first, tmp_path / "a", tmp_path / "c", [0.5], dataset=dataset, model=model)
    with pytest.raises(raysim.RunFolderError, match=r"b: the frozen parameters '0\.bias', '0\.weight' have"):
        raysim.interpolate(first, tmp_path / "a", tmp_path / "b", [0.5], dataset=dataset, model=model)


def test_a_module_that_may_compute_otherwise_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def with_relu() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.ReLU())

    def with_tanh() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Tanh())

    experiment = made(name="own")
    for seed, model in enumerate((with_relu, with_tanh)):
        raysim.run(experiment.changed({"seed": seed}), path=tmp_path / str(seed), model=model)
    caplog.clear()
    raysim.interpolate(experiment, tmp_path / "0", tmp_path / "1", [0.5], model=with_relu)
    assert [each for each in caplog.messages if "scored" in each] == [
        f"{tmp_path / '1'}: model= has other code than when the run began; its values are scored in the experiment's "
        f"module"
    ]


def test_data_that_were_prepared_otherwise_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not other examples of the same source: the paper's models are of such."""
    rng = np.random.default_rng(0)
    table = {"client": np.arange(40) % 4, "x": list(rng.normal(size=(40, 3))), "y": np.arange(40) % 2}
    pq.write_table(pa.table(table), tmp_path / "train.parquet")
    data = {"name": "arrow", "train": str(tmp_path / "train.parquet")}
    experiment = made(name="linear").changed({"data": data, "evaluation.split": "train"})
    changed: dict[str, dict[str, Any]] = {
        "own": {},
        "halved": {"data.scale": 0.5, "seed": 1},
        "fewer": {"data.clients": 2, "data.seed": 2, "seed": 2},
    }
    for name, changes in changed.items():
        raysim.run(experiment.changed(changes), path=tmp_path / name)
    caplog.clear()
    for name in ("halved", "fewer"):
        raysim.interpolate(experiment, tmp_path / "own", tmp_path / name, [0.5])
    assert [each for each in caplog.messages if "scored" in each] == [
        f"{tmp_path / 'halved'} was trained on data that were prepared otherwise: data.scale was 0.5, and is 1.0; its "
        f"values are scored on the experiment's data"
    ]
