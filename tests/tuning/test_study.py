"""Studies of real, tiny runs: what they find, what they record, and how they go on."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pyarrow.parquet as pq
import pytest
import torch

import raysim
import tuning
from raysim.server.optimizers.optimizer import Descent, ServerOptimizer, Stepped
from tuning import folder

Make = Callable[..., raysim.Experiment]

pytestmark = pytest.mark.usefixtures("no_pictures")


@pytest.fixture
def study(small: raysim.FederatedDataset, tuned: Make, tmp_path: Path) -> Callable[..., tuning.Study]:
    """Tune the smallest study with keys of [tuning], in the same folder each time."""

    def run(**keys: Any) -> tuning.Study:
        return tuning.tune(tuned(**keys), dataset=small, path=tmp_path / "study")

    return run


def outcomes(found: tuning.Study) -> list[str]:
    outcome: list[str] = found.trials["outcome"].to_pylist()
    return outcome


def alone(exp: raysim.Experiment, small: raysim.FederatedDataset, lr: float, seed: int) -> float:
    """A trial's figure from a run of its own."""
    changes = {"client.optimizer.lr": lr, "seed": seed, "cohort.seed": seed, "evaluation.split": "validation"}
    *_, last = raysim.rounds(exp.changed(changes), dataset=small.hold_out(0.2, 0), executor="local")
    value = last.metrics["eval/validation/accuracy"]
    assert value is not None
    return value


def test_a_trial_s_value_is_the_mean_over_seeds_of_runs_by_themselves(
    study: Callable[..., tuning.Study], small: raysim.FederatedDataset, tuned: Make
) -> None:
    found = study(seeds=2)
    for row in found.trials.to_pylist():
        expected = [alone(tuned(), small, row["client.optimizer.lr"], seed) for seed in (0, 1)]
        assert [row["value/0"], row["value/1"]] == expected
        assert row["value"] == pytest.approx(np.mean(expected))
        assert row["standard_error/seeds"] == pytest.approx(abs(expected[0] - expected[1]) / 2)
    values = [row["value"] for row in found.trials.to_pylist()]
    assert found.best.value == max(values)
    assert found.second is not None
    assert found.second.value == sorted(values)[-2]


def test_the_runs_know_what_is_to_come_before_it_begins(
    small: raysim.FederatedDataset, tuned: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a study of many short trials, few at a time, moves to workers."""
    told: list[int] = []
    monkeypatch.setattr(raysim.Runs, "expect", lambda runs, rounds: told.append(rounds))
    tuning.tune(tuned(seeds=2, concurrent=1, final=0), dataset=small, path=tmp_path / "study")
    # Three rates, two seeds, four rounds.
    assert told == [24]
    told.clear()
    budget = {"sampler": {"name": "random"}, "budget": {"rounds": 12}, "concurrent": 1, "final": 0}
    tuning.tune(tuned(**budget), dataset=small, path=tmp_path / "budget")
    # How many trials it is enough for shows once one has ended.
    assert told == [4, 4, 8, 4, 0]


def test_a_budget_that_is_used_up_is_said(
    small: raysim.FederatedDataset, tuned: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = {"sampler": {"name": "random"}, "concurrent": 1, "final": 0}
    first = tuning.tune(tuned(**keys, budget={"rounds": 8}), dataset=small, path=tmp_path)
    assert not caplog.records
    again = tuning.tune(tuned(**keys, budget={"rounds": 5}), dataset=small, path=tmp_path)
    used = int(first.spent["rounds"])
    assert [record.getMessage() for record in caplog.records] == [
        f"the study has used {used} rounds already, and tuning.budget.rounds = 5: no further trial begins"
    ]
    assert again.spent == first.spent


def test_a_study_with_a_budget_ends_if_fewer_trials_are_asked_for_than_are_there(
    small: raysim.FederatedDataset, tuned: Make, tmp_path: Path
) -> None:
    keys = {"sampler": {"name": "random"}, "concurrent": 1, "final": 0, "budget": {"rounds": 100}}
    tuning.tune(tuned(**keys, trials=3), dataset=small, path=tmp_path)
    assert len(tuning.tune(tuned(**keys, trials=1), dataset=small, path=tmp_path).trials) == 1


def test_trials_of_one_budget_of_client_updates(small: raysim.FederatedDataset, tuned: Make, tmp_path: Path) -> None:
    """Cohorts of 2 take four rounds of them, cohorts of 4 two: each is evaluated where its budget is used up."""
    keys = {"space": {"cohort.size": {"grid": [2, 4]}}, "final": 1}
    exp = tuned(**keys).changed(["rounds=20", "evaluation.every=20", "stop={budget={client_updates=8}}"])
    found = tuning.tune(exp, dataset=small, path=tmp_path / "study")
    rows = {row["cohort.size"]: row for row in found.trials.to_pylist()}
    for size, rounds in ((2, 4), (4, 2)):
        alike = exp.changed([f"cohort.size={size}", f"rounds={rounds}", "evaluation.split=validation"])
        *_, last = raysim.rounds(alike, dataset=small.hold_out(0.2, 0))
        assert rows[size]["value"] == last.metrics["eval/validation/accuracy"]
    assert found.best.test["eval/test/accuracy"]["mean"] is not None


def test_a_target_that_is_not_reached_is_said_and_has_no_number(
    study: Callable[..., tuning.Study], small: raysim.FederatedDataset, tuned: Make
) -> None:
    best = {}
    for lr in (0.01, 0.1, 1.0):
        exp = tuned().changed({"client.optimizer.lr": lr, "evaluation.split": "validation"})
        done = list(raysim.rounds(exp, dataset=small.hold_out(0.2, 0), executor="local"))
        best[lr] = max(one.metrics.get("eval/validation/accuracy") or 0.0 for one in done)
    target = (min(best.values()) + max(best.values())) / 2
    assert min(best.values()) < target
    found = study(final=0, objective={"name": "rounds_to_target", "target": target})
    rows = found.trials.to_pylist()
    for row in rows:
        if best[row["client.optimizer.lr"]] >= target:
            assert row["outcome"] == "finished"
            assert 1 <= row["value"] <= 4
            assert row["why"] is None
        else:
            assert (row["outcome"], row["value"], row["value/0"]) == ("not reached", None, None)
            assert row["why"].startswith("not reached: ")
    assert found.best.missed is None
    assert found.best.value == min(row["value"] for row in rows if row["value"] is not None)


def test_a_study_that_never_reaches_its_target_names_the_nearest(
    study: Callable[..., tuning.Study], tmp_path: Path
) -> None:
    found = study(final=0, objective={"name": "rounds_to_target", "target": 1.0})
    nearest = max(found.trials.to_pylist(), key=lambda row: row["eval/validation/accuracy"])
    assert found.counts == {"not reached": 3}
    assert found.best.missed is not None
    assert found.best.number == nearest["trial"]
    said = dict(tuning.lines(found))["best"]
    assert "rounds to 100.0 % validation accuracy not reached: " in said
    assert "not reached" in (tmp_path / "study" / "best.toml").read_text()


def test_what_lies_in_the_folder(study: Callable[..., tuning.Study], tmp_path: Path) -> None:
    found = study()
    where = tmp_path / "study"
    assert pq.read_table(where / "trials.parquet").num_rows == 3
    assert {"best.toml", "study.db", "trials", "final", "trials.parquet"} <= {path.name for path in where.iterdir()}
    best = raysim.load(where / "best.toml")
    assert best.client.optimizer.lr == found.best.values["client.optimizer.lr"]
    assert best.name == "test-best"
    stored = optuna.load_study(study_name="test", storage=f"sqlite:///{where / 'study.db'}")
    assert stored.best_params == {"client.optimizer.lr": found.best.values["client.optimizer.lr"]}
    assert [sorted(trial.intermediate_values) for trial in stored.trials] == [[2, 4]] * 3
    stored._storage.remove_session()
    stored._storage._backend.engine.dispose()  # type: ignore[attr-defined]


def test_the_best_two_are_evaluated_on_test_after_all_training_clients(
    study: Callable[..., tuning.Study], small: raysim.FederatedDataset, tuned: Make
) -> None:
    found = study()
    assert found.second is not None
    for one in (found.best, found.second):
        exp = tuned().changed(one.values)
        *_, last = raysim.rounds(exp, dataset=small, executor="local")
        assert one.test["eval/test/accuracy"]["mean"] == last.metrics["eval/test/accuracy"]


def test_a_study_that_is_done_is_read(study: Callable[..., tuning.Study], tmp_path: Path) -> None:
    first = study()
    written = {file: file.stat().st_mtime_ns for file in (tmp_path / "study").rglob("rounds.parquet")}
    again = study()
    assert again.best == first.best
    assert again.trials == first.trials
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "study").rglob("rounds.parquet")} == written


def test_a_folder_that_was_half_made_is_made_anew(study: Callable[..., tuning.Study], tmp_path: Path) -> None:
    first = study(final=1)
    assert first.second is not None
    (tmp_path / "study" / "final" / f"{first.second.number:04d}" / "seed-0" / "checkpoints").mkdir(parents=True)
    whole = study(final=2)
    assert whole.second is not None
    assert "eval/test/accuracy" in whole.second.test


def test_a_study_can_have_more_trials_than_before(study: Callable[..., tuning.Study]) -> None:
    first = study(trials=1)
    assert first.trials.num_rows == 1
    whole = study()
    assert whole.trials.num_rows == 3
    assert sorted(whole.trials["client.optimizer.lr"].to_pylist()) == [0.01, 0.1, 1.0]
    assert whole.trials.slice(0, 1)["value"] == first.trials["value"]


def test_a_notebook_and_print_show_what_the_command_closes_with(
    study: Callable[..., tuning.Study], tmp_path: Path
) -> None:
    found = study()
    (tmp_path / "study" / "curves.png").write_bytes(b"png")
    closing = [(label, text) for label, text in tuning.lines(found) if label != "picture"]
    assert {"test, best", "how sure"} <= {label for label, _ in closing}
    shown = found._repr_html_()
    cells = re.findall(r"<th [^>]*>(.*?)</th><td [^>]*>(.*?)</td>", shown)
    assert [(label, html.unescape(text)) for label, text in cells] == closing
    assert shown.count('src="data:image/png;base64,cG5n"') == 1
    printed = [re.split(r"  +", line, maxsplit=1) for line in str(found).splitlines()]
    assert printed == [list(line) for line in tuning.lines(found)]
    assert "pyarrow" not in repr(found)


def test_a_study_that_goes_on_knows_the_best_of_before(
    small: raysim.FederatedDataset, tuned: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tuning.tune(tuned(trials=2), dataset=small, path=tmp_path, progress=True)
    capsys.readouterr()
    values = tuning.tune(tuned(trials=3), dataset=small, path=tmp_path, progress=True).trials["value"].to_pylist()
    # Else the last trial is the best whether or not the ones before count.
    assert max(values) != values[-1]
    assert "(best so far)" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"space": {"client.optimizer.lr": {"grid": [0.1, 1.0]}}},
            r"space\.client\.optimizer\.lr\.grid was \[0\.01, 0\.1, 1\.0\]",
        ),
        ({"seeds": 2}, r"tuning\.seeds was 1, and is 2"),
        ({"objective": {"name": "loss"}}, r"tuning\.objective\.name was 'accuracy', and is 'loss'"),
        ({"sampler": {"name": "random"}}, r"tuning\.sampler\.name was 'grid', and is 'random'"),
        ({"holdout": 0.4}, "content of the data was"),
    ],
)
def test_another_study_is_not_gone_on_with(
    changes: dict[str, Any], said: str, study: Callable[..., tuning.Study]
) -> None:
    study(trials=1, final=0)
    with pytest.raises(tuning.StudyError, match=said):
        study(trials=1, final=0, **changes)


def test_a_study_of_other_parts_is_another_study(small: raysim.FederatedDataset, tuned: Make, tmp_path: Path) -> None:
    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")

    tuning.tune(tuned(trials=1, final=0), dataset=small, loss=loss, path=tmp_path)
    with pytest.raises(tuning.StudyError, match=r"tuning\.passed was \['loss'\]"):
        tuning.tune(tuned(trials=2, final=0), dataset=small, path=tmp_path)


def test_a_folder_is_of_one_study(study: Callable[..., tuning.Study], tmp_path: Path) -> None:
    study(trials=1, final=0)
    written = {file: file.read_bytes() for file in (tmp_path / "study" / "trials").rglob("rounds.parquet")}
    said = r"is the folder of the study 'test' in sqlite:///study\.db, and this is 'test' in .*another folder \(--path"
    with pytest.raises(tuning.StudyError, match=said):
        study(trials=1, final=0, storage=f"sqlite:///{tmp_path / 'other.db'}")
    assert {file: file.read_bytes() for file in (tmp_path / "study" / "trials").rglob("rounds.parquet")} == written
    assert not (tmp_path / "other.db").exists()


def test_two_studies_of_a_storage_have_a_folder_each(
    small: raysim.FederatedDataset, tuned: Make, tmp_path: Path
) -> None:
    one = tuned(trials=1, final=0, storage=f"sqlite:///{tmp_path / 'shared.db'}")
    tuning.tune(one, dataset=small, path=tmp_path / "study")
    with pytest.raises(tuning.StudyError, match=r"folder of the study 'test' in .*shared\.db, and this is 'other'"):
        tuning.tune(one.changed({"name": "other"}), dataset=small, path=tmp_path / "study")
    found = tuning.tune(one.changed({"name": "other"}), dataset=small, path=tmp_path / "second")
    assert found.counts == {"finished": 1}


def test_a_folder_that_was_moved_goes_on(
    study: Callable[..., tuning.Study], small: raysim.FederatedDataset, tuned: Make, tmp_path: Path
) -> None:
    first = study(trials=1, final=0)
    (tmp_path / "study").rename(tmp_path / "moved")
    again = tuning.tune(tuned(trials=1, final=0), dataset=small, path=tmp_path / "moved")
    assert again.trials == first.trials


@pytest.mark.parametrize(
    ("has_storage", "has_folder", "said"),
    [
        (False, False, "another name or folder (--path, path=)."),
        (False, True, "another folder (--path, path=)."),
        (True, False, "another name."),
        (True, True, "another name, and a folder of its own (--path, path=)."),
    ],
)
def test_only_what_helps_is_advised(has_storage: bool, has_folder: bool, said: str) -> None:
    assert folder.way_out(has_storage, has_folder) == f"Give this one {said}"


def test_another_experiment_is_another_study(
    study: Callable[..., tuning.Study], small: raysim.FederatedDataset, tuned: Make, tmp_path: Path
) -> None:
    study(trials=1, final=0)
    with pytest.raises(tuning.StudyError, match="rounds was 4, and is 3"):
        tuning.tune(tuned().changed(["rounds=3"]), dataset=small, path=tmp_path / "study")
    with pytest.raises(tuning.StudyError, match=r"client\.batch_size was 4, and is 5"):
        tuning.tune(tuned().changed(["client.batch_size=5"]), dataset=small, path=tmp_path / "study")


def test_trials_that_begin_at_other_values_are_another_study(
    small: raysim.FederatedDataset, tuned: Make, tmp_path: Path
) -> None:
    one = tuned(trials=1, final=0)
    params = raysim.run(one, dataset=small, path=tmp_path / "run").params
    tuning.tune(one, dataset=small, params=params, path=tmp_path / "study")
    assert tuning.tune(one, dataset=small, params=dict(params), path=tmp_path / "study").counts == {"finished": 1}
    moved = {name: value + 1 for name, value in params.items()}
    with pytest.raises(tuning.StudyError, match=r"params was '\w+', and is '\w+'"):
        tuning.tune(one, dataset=small, params=moved, path=tmp_path / "study")


def exploding(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A loss whose gradient has no number, once the model has moved."""
    loss = torch.nn.functional.cross_entropy(outputs, targets, reduction="none")
    return loss * math.nan if outputs.abs().max() > 1e3 else loss


def test_what_diverges_is_stopped_and_said_to(small: raysim.FederatedDataset, tuned: Make, tmp_path: Path) -> None:
    space = {"client.optimizer.lr": {"grid": [0.01, 1e6]}}
    found = tuning.tune(tuned(), space, dataset=small, loss=exploding, path=tmp_path)
    assert found.counts == {"diverged": 1, "finished": 1}
    (row,) = [row for row in found.trials.to_pylist() if row["outcome"] == "diverged"]
    assert row["client.optimizer.lr"] == 1e6
    assert row["value"] is None
    assert "in round" in row["why"]
    assert row["rounds"] < 4
    assert found.best.values == {"client.optimizer.lr": 0.01}


def overshooting(section: Any) -> ServerOptimizer:
    """A server optimizer that steps to no number, once the updates are large."""

    def step(params: torch.Tensor, descent: Descent, state: Any) -> Stepped:
        return Stepped(params * (math.inf if descent.g.abs().max() > 1e3 else 1.0) - descent.fg, {})

    return ServerOptimizer(lambda params: {}, step)


def test_a_server_step_to_no_number_is_a_divergence(
    small: raysim.FederatedDataset, tuned: Make, tmp_path: Path
) -> None:
    space = {"client.optimizer.lr": {"grid": [0.01, 1e6]}}
    found = tuning.tune(tuned(), space, dataset=small, server_optimizer=overshooting, path=tmp_path)
    assert found.counts == {"diverged": 1, "finished": 1}
    (why,) = [row["why"] for row in found.trials.to_pylist() if row["outcome"] == "diverged"]
    assert "not finite after the step of server_optimizer=" in why


@pytest.mark.parametrize(("maximise", "choose"), [(True, max), (False, min)])
def test_a_metric_of_the_script_is_optimised(
    maximise: bool, choose: Any, small: raysim.FederatedDataset, tuned: Make, tmp_path: Path
) -> None:
    spread: raysim.Parts = {"metrics": {"spread": lambda outputs, targets: outputs.std(1)}}
    exp = tuned(objective={"name": "metric", "metric": "spread", "maximise": maximise})
    found = tuning.tune(exp, dataset=small, path=tmp_path / "study", **spread)
    values = {row["client.optimizer.lr"]: row["value"] for row in found.trials.to_pylist()}
    assert len(set(values.values())) == 3
    assert found.best.values == {"client.optimizer.lr": choose(values, key=values.__getitem__)}
    with pytest.raises(raysim.ExperimentError, match=r"must be a metric of .* \(there is none\), but got 'spread'"):
        tuning.tune(exp, dataset=small, path=tmp_path / "other")


def test_where_all_diverge_it_says_what_to_try(small: raysim.FederatedDataset, tuned: Make, tmp_path: Path) -> None:
    space = {"client.optimizer.lr": {"grid": [1e5, 1e6]}}
    with pytest.raises(tuning.StudyError, match=r"All 2 trials diverged.*smaller values of client\.opt.*clip"):
        tuning.tune(tuned(), space, dataset=small, loss=exploding, path=tmp_path)
    assert pq.read_table(tmp_path / "trials.parquet")["outcome"].to_pylist() == ["diverged", "diverged"]


def test_a_configuration_that_cannot_be_run_is_one_trial_less(study: Callable[..., tuning.Study]) -> None:
    # Eight clients are left to train.
    found = study(space={"cohort.size": {"grid": [4, 9]}})
    assert found.counts == {"failed": 1, "finished": 1}
    (why,) = [row["why"] for row in found.trials.to_pylist() if row["outcome"] == "failed"]
    assert "9" in why


def too_large(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A loss for which a card's memory is too small, in large batches."""
    if len(targets) == 8:
        raise torch.OutOfMemoryError("CUDA out of memory")
    return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")


def test_a_trial_that_runs_out_of_memory_is_one_trial_less(
    small: raysim.FederatedDataset, tuned: Make, tmp_path: Path
) -> None:
    space = {"client.batch_size": {"grid": [2, 8]}}
    found = tuning.tune(tuned(), space, dataset=small, loss=too_large, path=tmp_path)
    assert found.counts == {"failed": 1, "finished": 1}
    assert found.best.values == {"client.batch_size": 2}
    (why,) = [row["why"] for row in found.trials.to_pylist() if row["outcome"] == "failed"]
    assert "giving up after 1 of 1 retries" in why
    assert "Lower engine.chunk_size" in why


def test_a_key_may_have_numbers_and_words(study: Callable[..., tuning.Study]) -> None:
    found = study(space={"client.batch_size": {"choices": [4, "full"]}}, final=0)
    assert sorted(found.trials["client.batch_size"].to_pylist()) == ['"full"', "4"]
    assert found.best.values["client.batch_size"] in (4, "full")


def test_without_a_figure_in_the_rounds_that_count_a_trial_fails(study: Callable[..., tuning.Study]) -> None:
    # All clients sleep in rounds 2 and 3.
    asleep = {"name": "availability", "day": 4.0, "open": 0.5, "spread": 1e-6}
    space = {"cohort.sampler": {"choices": [{"name": "uniform"}, asleep]}}
    found = study(space=space, objective={"name": "train_loss"}, final=0)
    assert found.counts == {"failed": 1, "finished": 1}
    (why,) = [row["why"] for row in found.trials.to_pylist() if row["outcome"] == "failed"]
    assert "with seed 0 there is no training loss in rounds 3 to 3" in why


def test_a_later_seed_that_cannot_begin_is_one_trial_less(
    study: Callable[..., tuning.Study], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = raysim.Runs.start

    def picky(self: raysim.Runs, runs: list[tuple[raysim.Experiment, Path]], **how: bool) -> list[int]:
        if any(path.parts[-2:] == ("0001", "seed-1") for _, path in runs):
            raise raysim.ModelError("not with this seed")
        return start(self, runs, **how)

    monkeypatch.setattr(raysim.Runs, "start", picky)
    found = study(trials=2, seeds=5, pruner={"name": "wilcoxon", "p": 0.1}, final=0)
    assert outcomes(found) == ["finished", "failed"]
    assert found.trials["why"].to_pylist() == [None, "not with this seed"]


def test_a_users_error_is_kept_with_the_trial(small: raysim.FederatedDataset, tuned: Make, tmp_path: Path) -> None:
    def broken(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if outputs.requires_grad:
            raise RuntimeError("my own mistake")
        return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")

    with pytest.raises(tuning.StudyError, match=r"No trial finished \(3 failed\)(?s:.*)my own mistake"):
        tuning.tune(tuned(), dataset=small, loss=broken, path=tmp_path)


@pytest.mark.parametrize(
    "keys",
    [
        {"sampler": {"name": "random"}},
        {"sampler": {"name": "tpe", "startup": 2}, "pruner": {"name": "median", "startup": 1}},
        {"sampler": {"name": "gp", "startup": 2}},
        {"sampler": {"name": "random"}, "pruner": {"name": "halving", "min_rounds": 2}},
        {"sampler": {"name": "random"}, "pruner": {"name": "hyperband", "min_rounds": 2}},
    ],
)
def test_every_sampler_and_pruner_carries_a_study(keys: dict[str, Any], study: Callable[..., tuning.Study]) -> None:
    found = study(space={"client.optimizer.lr": {"log": [1e-3, 1]}}, trials=5, final=0, concurrent=2, **keys)
    assert found.trials.num_rows == 5
    assert set(outcomes(found)) <= {"finished", "pruned"}
    assert len(set(found.trials["client.optimizer.lr"].to_pylist())) == 5


def test_a_pruned_trial_is_stopped_before_its_end(study: Callable[..., tuning.Study]) -> None:
    rates = [1.0, 0.5, 1e-5, 1e-6]
    keys: dict[str, Any] = {"space": {"client.optimizer.lr": {"grid": rates}}, "concurrent": 1}
    found = study(**keys, sampler={"name": "grid", "seed": 3}, pruner={"name": "median", "startup": 1}, final=0)
    for row in found.trials.to_pylist():
        assert row["rounds"] == {"finished": 4, "pruned": 2}[row["outcome"]]
        assert (row["value"] is None) == (row["outcome"] == "pruned")
    assert outcomes(found)[0] == "finished"
    assert "pruned" in outcomes(found)


def test_wilcoxon_compares_seeds_and_spares_the_last(study: Callable[..., tuning.Study]) -> None:
    space = {"client.optimizer.lr": {"grid": [1.0, 1e-6]}}
    found = study(space=space, seeds=6, pruner={"name": "wilcoxon", "p": 0.1}, concurrent=1, final=0)
    rows = {row["client.optimizer.lr"]: row for row in found.trials.to_pylist()}
    # The good rate runs all its seeds; the bad one is given up once enough of its seeds were worse, if it came second.
    assert rows[1.0]["rounds"] == 6 * 4
    assert rows[1e-6]["rounds"] <= 6 * 4


def test_the_best_on_the_edge_is_said(study: Callable[..., tuning.Study]) -> None:
    found = study(space={"client.optimizer.lr": {"grid": [1e-6, 1e-5, 0.3]}}, final=0)
    assert found.edges == ("client.optimizer.lr = 0.3 is the largest that was tried: extend it up",)


def test_a_run_s_folder_is_not_a_study_s(small: raysim.FederatedDataset, tuned: Make, tmp_path: Path) -> None:
    raysim.run(tuned(), dataset=small, path=tmp_path / "run")
    with pytest.raises(tuning.StudyError, match="is a run's folder"):
        tuning.tune(tuned(), dataset=small, path=tmp_path / "run")


@pytest.mark.parametrize(
    ("storage", "said"),
    [
        ("postgresql://me:secret@127.0.0.1:1/x", r"postgresql://me:\*\*\*@127\.0\.0\.1:1/x cannot be opened"),
        ("sqlite:////nowhere/at/all/study.db", "cannot be opened: .*unable to open database file"),
        ("journal:/nowhere/at/all/journal.log", "cannot be opened"),
        ("study.db", "A storage is journal:PATH or a database's URL"),
    ],
)
def test_a_storage_that_cannot_be_reached(
    storage: str, said: str, small: raysim.FederatedDataset, tuned: Make, tmp_path: Path
) -> None:
    if storage.startswith("postgresql"):
        pytest.importorskip("psycopg", reason="needs PostgreSQL's driver: pip install 'psycopg[binary]'")
    with pytest.raises(tuning.StorageError, match=said) as caught:
        tuning.tune(tuned(storage=storage), dataset=small, path=tmp_path / "study")
    assert "secret" not in str(caught.value)
    assert not (tmp_path / "study").exists()
