"""The model that a run leaves, newest or best: other programs load it, and it can be scored again."""

from __future__ import annotations

import os
import shutil
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

import raysim
from raysim.api import kept_model
from raysim.run_folder import files
from raysim.run_folder.writer import RunFolder
from raysim.storage import sealed
from tests.support.small_data import make_clients

Make = Callable[..., raysim.Experiment]


FULL: dict[str, Any] = {"optimizer": {"name": "sgd", "lr": 0.3}, "batch_size": "full"}


class Everything(nn.Module):
    """Trainable, frozen and tied parameters; buffers of every kind that a module keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.frozen = nn.Linear(8, 8)
        self.frozen.requires_grad_(False)
        self.again = self.first
        self.register_buffer("mask", torch.arange(8) % 2 == 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.frozen(torch.relu(self.norm(self.first(x)))) * self.mask
        outputs: torch.Tensor = self.last(hidden)
        return outputs


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_module_takes_the_exported_model(
    dtype: torch.dtype, tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    parts: Any = {"dataset": dataset, "model": Everything}
    e = experiment(model=None, client=FULL, engine={"workers": 0, "dtype": str(dtype).removeprefix("torch.")})
    result = raysim.run(e, path=tmp_path / "run", **parts)
    assert kept_model.export(tmp_path / "run", tmp_path / "out" / "model.safetensors", **parts) == 4
    held = load_file(tmp_path / "out" / "model.safetensors")
    module = Everything().to(dtype)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    assert module.load_state_dict(held, strict=True)
    for name, tensor in result.params.items():
        assert torch.equal(module.state_dict()[name], tensor)
    assert not torch.equal(before["first.weight"], held["first.weight"])
    assert int(held["norm.num_batches_tracked"]) > 0
    assert torch.equal(held["mask"], before["mask"])
    # Another run of the factory would draw other frozen values: those of the run are exported.
    assert not torch.equal(before["frozen.weight"], held["frozen.weight"])


class LeavesOut(nn.Module):
    """Buffers that no state_dict holds: one as it was made, one that training changes, one that is drawn."""

    still: torch.Tensor
    scale: torch.Tensor
    drawn: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(5, 3)
        self.register_buffer("still", torch.ones(5), persistent=False)
        self.register_buffer("scale", torch.ones(5), persistent=False)
        self.register_buffer("drawn", torch.rand(5), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            with torch.no_grad():
                self.scale.mul_(0.9)
        outputs: torch.Tensor = self.last(x * self.scale * self.still * self.drawn)
        return outputs


def test_numbers_that_no_state_dict_holds_are_named(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make, caplog: pytest.LogCaptureFixture
) -> None:
    parts: Any = {"dataset": dataset, "model": LeavesOut}
    raysim.run(experiment(model=None, client=FULL, engine={"workers": 0}), path=tmp_path / "run", **parts)
    caplog.clear()
    kept_model.export(tmp_path / "run", tmp_path / "model.safetensors", **parts)
    assert "registers scale, drawn with persistent=False" in caplog.text
    assert set(load_file(tmp_path / "model.safetensors")) == {"last.weight", "last.bias"}


def test_a_folder_holds_frozen_values_that_a_script_has_given(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    parts: Any = {"dataset": dataset, "model": Everything}
    torch.manual_seed(1)
    given = {name: value.detach() for name, value in Everything().named_parameters()}
    e = experiment(model=None, client=FULL, engine={"workers": 0})
    result = raysim.run(e, path=tmp_path / "run", params=given, **parts)
    kept_model.export(tmp_path / "run", tmp_path / "model.safetensors", **parts)
    held = load_file(tmp_path / "model.safetensors")
    assert torch.equal(held["frozen.weight"], given["frozen.weight"])
    scores = raysim.evaluate(tmp_path / "run", **parts)
    assert str(scores).startswith(f"the model after {scores.rounds} rounds\neval/")
    assert "pyarrow" not in repr(scores)
    assert scores.metrics["eval/test/loss"] == result.rounds.to_pylist()[-1]["eval/test/loss"]


@pytest.mark.parametrize(
    ("client", "cohort"),
    [
        ({"correction": {"name": "fedpd", "mu": 0.1}}, None),
        ({"personalisation": {"name": "ditto", "lam": 0.1, "split": "train"}}, 2),
    ],
)
def test_the_model_of_clients_with_states_is_scored_and_has_a_line(
    client: dict[str, Any], cohort: int | None, tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    size = cohort or len(dataset.train)
    e = experiment(model=None, client={**FULL, **client}, cohort={"size": size}, engine={"workers": 0})
    parts: Any = {"dataset": dataset, "model": lambda: nn.Linear(5, 3)}
    last = raysim.run(e, path=tmp_path / "run", **parts).rounds.to_pylist()[-1]
    assert raysim.evaluate(tmp_path / "run", **parts).metrics["eval/test/loss"] == last["eval/test/loss"]
    zeros = {"weight": torch.zeros(3, 5), "bias": torch.zeros(3)}
    line = raysim.interpolate(e, tmp_path / "run", zeros, [1.0], **parts)
    assert line["loss"][0].as_py() == pytest.approx(last["eval/test/loss"], rel=1e-5)


def test_one_of_several_models_is_not_chosen_unsaid(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    clusters = {"personalisation": {"name": "clusters", "count": 2, "split": "train"}}
    parts: Any = {"dataset": dataset, "model": lambda: nn.Linear(5, 3)}
    raysim.run(
        experiment(model=None, client={**FULL, **clusters}, engine={"workers": 0}), path=tmp_path / "run", **parts
    )
    with pytest.raises(raysim.RaysimError, match="has the models of 2 clusters, and this takes one"):
        raysim.evaluate(tmp_path / "run", **parts)


def test_what_reads_a_folder_with_another_model_does_not_advise_to_overwrite_it(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    parts: Any = {"dataset": dataset, "model": Everything}
    e = experiment(model=None, rounds=1, client=FULL, engine={"workers": 0})
    raysim.run(e, path=tmp_path / "run", **parts)
    others: Any = {**parts, "model": Unlike}
    acts: list[Callable[[], Any]] = [
        lambda: kept_model.export(tmp_path / "run", tmp_path / "out", **others),
        lambda: raysim.replay(tmp_path / "run", 0, **others),
    ]
    for act in acts:
        with pytest.raises(raysim.RunFolderError, match="Pass the parts that the run had") as caught:
            act()
        assert "overwrite" not in str(caught.value)


class Unlike(Everything):
    """Another layer is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.last.requires_grad_(False)


def test_the_best_model_is_that_of_the_first_best_evaluation(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    e = experiment(
        rounds=9,
        client={"optimizer": {"name": "sgd", "lr": 5.0}, "batch_size": 4},
        evaluation={"every": 1},
        checkpoint={"best": "eval/test/loss"},
    )
    rows = raysim.run(e, dataset=dataset, path=tmp_path / "run").rounds.to_pylist()
    losses = [row["eval/test/loss"] for row in rows]
    first = losses.index(min(losses))
    assert first < 8, "the last model is the best, so this shows nothing"
    assert kept_model.export(tmp_path / "run", tmp_path / "best", best=True, dataset=dataset) == first + 1
    for best, row in ((True, rows[first]), (False, rows[-1])):
        scores = kept_model.evaluate(tmp_path / "run", best=best, dataset=dataset)
        assert scores.metrics == {name: row[name] for name in row if name.startswith("eval/")}
        assert scores.clients["client"].to_pylist() == ["t0", "t1", "t2", "t3"]
    again = raysim.replay(tmp_path / "run", first, dataset=dataset)
    assert isinstance(again, raysim.Round)
    for name, tensor in load_file(tmp_path / "best").items():
        assert torch.equal(again.params[name], tensor)


@pytest.fixture
def with_best(tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make) -> tuple[raysim.Experiment, int]:
    """A run of nine rounds in tmp_path/run, and the number of rounds after which it was the best; not at its end."""
    e = experiment(
        rounds=9,
        client={"optimizer": {"name": "sgd", "lr": 5.0}, "batch_size": 4},
        evaluation={"every": 1},
        checkpoint={"best": "eval/test/loss"},
    )
    losses = [row["eval/test/loss"] for row in raysim.run(e, dataset=dataset, path=tmp_path / "run").rounds.to_pylist()]
    done = losses.index(min(losses)) + 1
    assert done < 9
    return e, done


def test_a_best_model_that_was_lost_is_not_replaced_by_another(
    with_best: tuple[raysim.Experiment, int], tmp_path: Path, dataset: raysim.FederatedDataset
) -> None:
    e, done = with_best
    files.best_file(tmp_path / "run", done).unlink()
    said = rf"best-{done:06}\.safetensors is missing: the best model of .* is that after {done} rounds"
    with pytest.raises(raysim.RunFolderError, match=said):
        kept_model.export(tmp_path / "run", tmp_path / "out", best=True, dataset=dataset)
    with pytest.raises(raysim.RunFolderError, match=said):
        raysim.run(e.changed({"rounds": 12}), dataset=dataset, path=tmp_path / "run", resume=True)


@pytest.mark.parametrize("method", ["write_best", "checkpoint"])
def test_a_round_that_is_broken_off_leaves_the_best_model_of_those_before_it(
    method: str, tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    e = experiment(
        rounds=6,
        client={"optimizer": {"name": "sgd", "lr": 0.1}},
        evaluation={"every": 1},
        checkpoint={"every": 3, "keep": 1, "best": "eval/test/loss"},
        engine={"workers": 0},
    )
    whole = raysim.run(e, dataset=dataset, path=tmp_path / "whole")
    losses = whole.rounds["eval/test/loss"].to_pylist()
    assert losses[0] > losses[1] > losses[2], "the third model is not better than those before, so this shows nothing"
    act = getattr(RunFolder, method)
    broken_off = list[str]()

    def interrupted(folder: RunFolder, *arguments: Any) -> None:
        if method == "write_best":
            act(folder, *arguments)
        if len(folder.rows) == 3 and not broken_off:
            broken_off.append(method)
            raise KeyboardInterrupt
        if method == "checkpoint":
            act(folder, *arguments)

    monkeypatch.setattr(RunFolder, method, interrupted)
    with pytest.raises(KeyboardInterrupt):
        raysim.run(e, dataset=dataset, path=tmp_path / "run")
    assert list(files.checkpoints(tmp_path / "run")) == [2]
    again = raysim.run(e, dataset=dataset, path=tmp_path / "run", resume=True)
    assert again.rounds["eval/test/loss"].to_pylist() == losses
    assert [list(files.best_models(each)) for each in (again.path, whole.path)] == [[6], [6]]
    for best in (True, False):
        models = []
        for each in (again, whole):
            kept_model.export(each.path, tmp_path / "out", best=best, dataset=dataset)
            models.append((tmp_path / "out").read_bytes())
        assert models[0] == models[1]


def test_a_model_that_was_put_beside_the_best_is_not_taken(
    with_best: tuple[raysim.Experiment, int], tmp_path: Path, dataset: raysim.FederatedDataset
) -> None:
    _, done = with_best
    shutil.copy(files.checkpoint_file(tmp_path / "run", 9), files.best_file(tmp_path / "run", 9))
    assert kept_model.export(tmp_path / "run", tmp_path / "out", best=True, dataset=dataset) == done


def test_a_bit_that_changed_in_an_exported_model_is_noticed(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    raysim.run(experiment(), dataset=dataset, path=tmp_path / "run")
    out = tmp_path / "out.safetensors"
    kept_model.export(tmp_path / "run", out, dataset=dataset)
    begun = experiment().changed({"model.init": str(out)})
    assert raysim.run(begun, dataset=dataset, path=tmp_path / "whole")
    content = bytearray(out.read_bytes())
    content[-2] ^= 4
    out.write_bytes(content)
    with pytest.raises(raysim.ModelError, match=r"out\.safetensors is damaged: .* Export the model again\."):
        raysim.run(begun, dataset=dataset, path=tmp_path / "flipped")


def test_two_exports_of_one_model_are_the_same_bytes(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    # The head of the file is written once more, and must have these letters as before.
    odd = 'a "name", \\ \t \x01 \x7f \u00e9 \u2028 \U0001f600'
    parts: Any = {"dataset": dataset, "model": lambda: nn.Sequential(OrderedDict({odd: nn.Linear(5, 3)}))}
    raysim.run(experiment(rounds=1, model=None), path=tmp_path / "run", **parts)
    for place in range(8):
        kept_model.export(tmp_path / "run", tmp_path / f"{place}", **parts)
    assert len({(tmp_path / f"{place}").read_bytes() for place in range(8)}) == 1
    sealed.check(tmp_path / "0", raysim.ModelError, "")
    assert set(load_file(tmp_path / "0")) == {f"{odd}.weight", f"{odd}.bias"}
    with safe_open(tmp_path / "0", framework="pt") as opened:
        assert opened.metadata()["rounds"] == "1"


def test_ties_go_to_the_earlier(tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make) -> None:
    still = {"optimizer": {"name": "sgd", "lr": 0.0}, "batch_size": 4}
    e = experiment(client=still, evaluation={"every": 1}, checkpoint={"best": "eval/test/loss", "every": 1})
    raysim.run(e, dataset=dataset, path=tmp_path / "run")
    assert list(files.best_models(tmp_path / "run")) == [1]


def test_other_data_are_scored_if_they_are_alike(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    raysim.run(experiment(), dataset=dataset, path=tmp_path / "run")
    own = kept_model.evaluate(tmp_path / "run", dataset=dataset, split="train").metrics
    swapped = raysim.FederatedDataset.from_clients(
        train=make_clients([25] * 4, seed=1, prefix="t"), test=make_clients([3 + 2 * i for i in range(20)])
    )
    other = kept_model.evaluate(tmp_path / "run", dataset=dataset, data=swapped).metrics
    assert [other[f"eval/test/{name}"] for name in ("loss", "accuracy")] == [
        own[f"eval/train/{name}"] for name in ("loss", "accuracy")
    ]
    narrow = raysim.FederatedDataset.from_clients(train={"a": ([[1.0]], [2])})
    with pytest.raises(raysim.DataError, match=r"examples of shape \(5,\), 3 classes"):
        kept_model.evaluate(tmp_path / "run", dataset=dataset, data=narrow)
    with pytest.raises(raysim.DataError, match="no split 'tset'"):
        kept_model.evaluate(tmp_path / "run", dataset=dataset, split=["tset"])


def test_a_best_model_that_is_not_there_or_damaged_is_named(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    raysim.run(experiment(), dataset=dataset, path=tmp_path / "none")
    with pytest.raises(raysim.RunFolderError, match=r"has no best model: checkpoint\.best keeps one"):
        kept_model.export(tmp_path / "none", tmp_path / "out", best=True, dataset=dataset)
    e = experiment(checkpoint={"best": "eval/test/loss"})
    raysim.run(e, dataset=dataset, path=tmp_path / "run")
    for file in files.best_models(tmp_path / "run").values():
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
    with pytest.raises(raysim.RunFolderError, match=r"The best model of .* cannot be read"):
        kept_model.evaluate(tmp_path / "run", best=True, dataset=dataset)


@pytest.mark.parametrize(
    "name",
    [
        "experiment.json",
        "rounds.parquet",
        "checkpoints/round-000004.safetensors",
        "checkpoints/new.safetensors",
        "clients/round-000003.parquet",
        "../run/checkpoints/../rounds.parquet",
    ],
)
def test_an_export_does_not_replace_what_a_run_has_recorded(
    name: str, tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    run = tmp_path / "run"
    parts: Any = {"dataset": dataset, "model": Everything}
    raysim.run(experiment(model=None, client=FULL, engine={"workers": 0}), path=run, **parts)
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    with pytest.raises(raysim.RunFolderError, match=r"is a file of what .*/run records: choose another place"):
        raysim.export(run, run / name, **parts)
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before
    for _ in range(2):
        # An export lies there by default, and is replaced by the next one.
        assert raysim.export(run, run / "model.safetensors", **parts) == 4


@pytest.mark.parametrize("out", ["", ".", "..", "here", "pipe", "link to the pipe", "stream"])
def test_an_export_replaces_nothing_but_a_file(
    out: str,
    tmp_path: Path,
    dataset: raysim.FederatedDataset,
    experiment: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pipe stands for a device, which only root can make: a file would take the place of /dev/null."""
    monkeypatch.chdir(tmp_path)
    parts: Any = {"dataset": dataset, "model": Everything}
    raysim.run(experiment(model=None, client=FULL, engine={"workers": 0}), path="run", **parts)
    Path("here").mkdir()
    os.mkfifo("pipe")
    Path("link to the pipe").symlink_to("pipe")
    Path("stream").symlink_to("/proc/self/fd/1")
    before = {file: file.lstat().st_mode for file in tmp_path.rglob("*")}
    with pytest.raises(
        raysim.RunFolderError, match=r"an empty text|is a folder: name a file|must be a file, but is a pipe|a stream"
    ):
        raysim.export("run", out, **parts)
    with pytest.raises(raysim.RunFolderError, match="is no folder, and adapters are written into one"):
        raysim.export("run", "pipe", adapter=True, **parts)
    assert {file: file.lstat().st_mode for file in tmp_path.rglob("*")} == before
