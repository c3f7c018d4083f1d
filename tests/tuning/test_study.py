"""Studies of real, tiny runs: what they find, what they record, and how they go on."""

from __future__ import annotations

import dataclasses
import html
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pyarrow.parquet as pq
import pytest
from torch import nn

import raysim
import tuning
from tests.support.small_data import make_clients

Make = Callable[..., raysim.Experiment]


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


def test_a_budget_below_one_trial_is_said(
    small: raysim.FederatedDataset, tuned: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = tuning.tune(tuned(budget={"client_updates": 31}, seeds=2), dataset=small, path=tmp_path)
    assert found.spent["client_updates"] == 32
    assert [record.getMessage() for record in caplog.records] == [
        "tuning.budget.client_updates = 31 is less than one trial with its 2 seeds uses, 32 client updates: the study "
        "will have one trial"
    ]


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


def test_fewer_trials_than_are_there_are_refused_under_a_budget_too(
    small: raysim.FederatedDataset, tuned: Make, tmp_path: Path
) -> None:
    keys = {"sampler": {"name": "random"}, "concurrent": 1, "final": 0, "budget": {"rounds": 100}}
    tuning.tune(tuned(**keys, trials=3), dataset=small, path=tmp_path)
    with pytest.raises(tuning.StudyError, match=r"tuning\.trials = 1 would leave 2 of them out"):
        tuning.tune(tuned(**keys, trials=1), dataset=small, path=tmp_path)


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
    said = dict(tuning.lines(found))["nearest"]
    assert "rounds to 100 % validation accuracy not reached: " in said
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


def test_how_sure_a_choice_is_names_seeds_and_a_second_best_that_is_near(
    study: Callable[..., tuning.Study],
) -> None:
    found = study()
    best = dataclasses.replace(found.best, value=0.5, by_seed=(0.4, 0.6), seeds_error=0.03, clients_error=None)

    def sure(second: float) -> str:
        other = dataclasses.replace(best, value=second, seeds_error=0.04)
        return dict(tuning.lines(dataclasses.replace(found, best=best, second=other)))["how sure"]

    of_seeds = "; 2 seeds each, whose spread this leaves out"
    near = f"{of_seeds}; best and second best differ by less than their standard errors together"
    assert sure(0.451).endswith(near)
    assert sure(0.449).endswith(of_seeds)


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
    chosen = f"Configuration(number={found.best.number}, values={found.best.values}, value={found.best.value})"
    assert repr(found) == f"Study(name='test', best={chosen}, path={found.path!r})"
    assert re.fullmatch(
        rf"client\.optimizer\.lr = [\d.]+: 0\.\d+ \+- 0\.\d+ \(trial {found.best.number}\)", str(found.best)
    )
    missed = replace(found.best, missed="not reached")
    assert str(missed).endswith(f": not reached (trial {found.best.number})")


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


def test_a_key_may_have_numbers_and_words(study: Callable[..., tuning.Study]) -> None:
    found = study(space={"client.batch_size": {"choices": [4, "full"]}}, final=0)
    assert sorted(found.trials["client.batch_size"].to_pylist()) == ['"full"', "4"]
    assert found.best.values["client.batch_size"] in (4, "full")


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
    # Optuna's Gaussian process before 5.0 may propose an edge of the space again.
    least = 4 if keys["sampler"]["name"] == "gp" else 5
    assert len(set(found.trials["client.optimizer.lr"].to_pylist())) >= least


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


def test_a_space_over_the_data_is_said(
    tuned: Callable[..., raysim.Experiment], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    exp = tuned(final=0, trials=1, sampler={"name": "random"}, space={"data.clients": {"grid": [10, 20]}})
    exp = exp.changed({"data": {"name": "digits", "clients": 10}, "rounds": 1})
    tuning.tune(exp, path=tmp_path / "study")
    assert "tuning.space varies data.clients: trials differ in their data" in caplog.text


def test_what_runs_the_best_passes_what_the_study_was_passed(
    study: Callable[..., tuning.Study], tmp_path: Path
) -> None:
    best = tmp_path / "study" / "best.toml"
    assert dict(tuning.lines(study(final=0)))["next"] == f"raysim.run(raysim.load({str(best)!r}), dataset=...)"


def test_trials_on_other_clients_are_compared_to_the_end(tuned: Make, tmp_path: Path) -> None:
    """Of validation clients that differ no sample is common to all trials."""
    space = {"data.clients": {"grid": [10, 20]}}
    found = tuning.tune(tuned(space=space, final=0).changed({"data": {"name": "digits", "clients": 10}}), path=tmp_path)
    assert (found.regret, found.counts) == ((), {"finished": 2})
    assert (tmp_path / "best.toml").exists()


@pytest.mark.parametrize("changes", [{"split": ["train", "test"]}, {"fine_tuning": {"steps": 2}}])
def test_final_runs_are_not_those_of_another_evaluation(
    changes: dict[str, Any], small: raysim.FederatedDataset, tuned: Make, tmp_path: Path
) -> None:
    exp = tuned(final=1)
    tuning.tune(exp, dataset=small, path=tmp_path)
    asked = exp.changed({f"evaluation.{key}": value for key, value in changes.items()})
    with pytest.raises(
        tuning.StudyError, match=r"final runs of trial \d have ended with another evaluation: evaluation\..* was "
    ):
        tuning.tune(asked, dataset=small, path=tmp_path)
    assert tuning.tune(exp, dataset=small, path=tmp_path).best.test


def test_final_runs_that_have_not_begun_may_be_evaluated_otherwise(tuned: Make, tmp_path: Path) -> None:
    own = raysim.FederatedDataset.from_clients(train=make_clients([9] * 10), test=make_clients([5] * 10, seed=1))
    tuning.tune(tuned(final=0), dataset=own, path=tmp_path)
    asked = tuned(final=1).changed({"evaluation.split": ["train", "test"], "evaluation.fine_tuning": {"steps": 2}})
    first = tuning.tune(asked, dataset=own, path=tmp_path).best.test
    assert {"eval/train/accuracy", "eval/test/accuracy"} <= first.keys()
    assert tuning.tune(asked, dataset=own, path=tmp_path).best.test == first


def test_trials_of_other_code_are_said(
    small: raysim.FederatedDataset, tuned: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def three_times(outputs: Any, targets: Any) -> Any:
        return 3 * nn.functional.cross_entropy(outputs, targets, reduction="none")

    def once(outputs: Any, targets: Any) -> Any:
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    # A trial that does not reach its target is compared, too.
    exp = tuned(sampler={"name": "random"}, final=0, objective={"name": "rounds_to_target", "target": 1.0})
    tuning.tune(exp, dataset=small, path=tmp_path, loss=once, trials=1)
    tuning.tune(exp, dataset=small, path=tmp_path, loss=once, trials=2)
    assert not caplog.records
    tuning.tune(exp, dataset=small, path=tmp_path, loss=three_times, trials=3)
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [
        "loss= has other code than when trial 0 ran"
    ]
    caplog.clear()
    tuning.tune(exp, dataset=small, path=tmp_path, loss=once, trials=4)
    assert "loss= has other code than when trial 2 ran" in caplog.text


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"vary": ["data"]}, r'vary has "data", but dataset= is the same for every seed'),
        ({"vary": ["cohort"]}, r'vary leaves "model" out, but without \[model\] every seed draws other'),
    ],
)
def test_what_the_seeds_of_a_script_s_parts_cannot_do(
    keys: dict[str, Any], said: str, small: raysim.FederatedDataset, tuned: Make, tmp_path: Path
) -> None:
    exp = tuned(seeds=2, **keys).model_copy(update={"model": None})
    with pytest.raises(raysim.ExperimentError, match=said):
        tuning.tune(exp, dataset=small, model=lambda: nn.Linear(5, 3), path=tmp_path)
    assert not any(tmp_path.iterdir())


def test_seeds_of_a_script_s_module_have_the_same_weights_where_they_are_not_to_vary(
    small: raysim.FederatedDataset, tuned: Make, tmp_path: Path
) -> None:
    """All clients in every cohort, and no step: then only the initial weights could differ."""
    exp = tuned(seeds=2, vary=[], space={"client.optimizer.lr": {"grid": [1e-12]}}, objective={"name": "loss"}, final=0)
    exp = exp.changed({"model": {"name": "own"}})
    found = tuning.tune(exp, dataset=small, model=lambda: nn.Linear(5, 3), path=tmp_path)
    [row] = found.trials.to_pylist()
    assert row["value/0"] == pytest.approx(row["value/1"], rel=1e-6)


def test_that_no_trial_is_run_again_is_said_without_progress_too(
    tuned: Callable[..., raysim.Experiment],
    small: raysim.FederatedDataset,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    how: dict[str, Any] = {"dataset": small, "path": tmp_path / "study", "progress": False}
    exp = tuned(final=0, storage=f"journal:{tmp_path / 'log'}")
    tuning.tune(exp, **how)
    assert "run again" not in caplog.text
    tuning.tune(exp, retry_failed=True, **how)
    assert "no trial is run again, because none has failed" in caplog.messages
