"""A run stops by `[stop]`: a pure function of its rows, the same alone, among others, and after a resume."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import raysim
from raysim.experiment.stop import BestMetric
from raysim.experiment.stopping import NOTHING, StopReason, after, after_all
from raysim.report import closing
from raysim.report import runs as recorded_runs
from raysim.run_folder import checkpoint, cost_columns, experiment_record, files, kept_checkpoints, round_table
from raysim.run_folder.best_models import BestModels
from tests.support.interrupted import Stops

Make = Callable[..., raysim.Experiment]

METRIC = "eval/test/accuracy"


def stopping_by(section: dict[str, Any] | None) -> raysim.Experiment:
    keys = {"cohort": {"size": 1}, "rounds": 1_000, "evaluation": {"every": 1}, "stop": section}
    return raysim.Experiment.model_validate(keys)


def decided(section: dict[str, Any], rows: list[dict[str, Any]]) -> tuple[str, int] | None:
    """The condition and the number of rounds at which a run with these rows stops."""
    reason = after_all(stopping_by(section), rows).stopped
    return None if reason is None else (reason.condition, reason.rounds)


def evaluated(*values: float | None) -> list[dict[str, Any]]:
    return [{"clients": 5, "rejected": 0, METRIC: value} for value in values]


@pytest.mark.parametrize(
    ("section", "values", "expected"),
    [
        ({"target": {"metric": METRIC, "value": 0.5}}, [0.4, None, 0.5, 0.1], ("target", 3)),
        # The mean of 0.2, 0.8 and 0.8 is 0.6; a record of no value does not count.
        ({"target": {"metric": METRIC, "value": 0.6, "last": 3}}, [0.8, 0.2, None, 0.8, 0.8], ("target", 4)),
        ({"target": {"metric": METRIC, "value": 0.6, "last": 3}}, [0.2, 0.8], None),
        ({"target": {"metric": METRIC, "value": 0.5}}, [math.nan, 0.4], None),
        # Means that are no number, or whose sum is none.
        ({"target": {"metric": METRIC, "value": 0.5, "last": 2}}, [math.inf, -math.inf, 0.5, 0.5], ("target", 4)),
        ({"target": {"metric": METRIC, "value": 0.5, "last": 2}}, [1e308, 1e308], ("target", 2)),
        ({"patience": {"metric": METRIC, "evaluations": 2}}, [0.3, 0.3, 0.4, None, 0.4, 0.1, 0.9], ("patience", 6)),
        # 0.45 is better by no more than 0.1 than 0.4, and so is 0.5: only 0.51 is a new best one.
        ({"patience": {"metric": METRIC, "evaluations": 3, "min_change": 0.1}}, [0.4, 0.45, 0.51, 0.4, 0.4], None),
        ({"patience": {"metric": METRIC, "evaluations": 2, "min_change": 0.1}}, [0.4, 0.45, 0.5], ("patience", 3)),
        ({"patience": {"metric": METRIC, "evaluations": 2}}, [math.nan, math.nan], ("patience", 2)),
        ({"budget": {"client_updates": 11}}, [0.1, 0.1, 0.1, 0.1], ("budget.client_updates", 3)),
        ({"budget": {"rounds": 2, "client_updates": 10}}, [0.1, 0.1], ("budget.rounds", 2)),
        # Of several conditions in one round the first of divergence, target, budget, patience is named.
        ({"budget": {"rounds": 1}, "target": {"metric": METRIC, "value": 0.5}}, [0.5], ("target", 1)),
        ({"divergence": {"metric": METRIC}, "budget": {"rounds": 1}}, [math.inf], ("divergence", 1)),
        ({"divergence": {"metric": METRIC, "above": 0.5}}, [0.5, 0.6], ("divergence", 2)),
    ],
)
def test_the_condition_that_holds_first(
    section: dict[str, Any], values: list[float | None], expected: tuple[str, int] | None
) -> None:
    assert decided(section, evaluated(*values)) == expected


def test_budgets_add_up_the_columns_that_use_them() -> None:
    row = {"clients": 4, "rejected": 1, "bytes_down": 70, "bytes_up": 30, "simulated_time_s": 2.5, "wall_time_s": 0.5}
    for budget in ({"client_updates": 15}, {"bytes": 300}, {"simulated_s": 7.5}, {"wall_s": 1.5}):
        assert decided({"budget": budget}, [row] * 5) == (f"budget.{next(iter(budget))}", 3)


def test_a_loss_is_to_be_small_and_another_metric_says_it() -> None:
    low = {"target": {"metric": "loss", "value": 0.5}}
    assert decided(low, [{"loss": 0.6}, {"loss": 0.5}]) == ("target", 2)
    high = {"target": {"metric": "eval/test/f1", "value": 0.5, "maximise": True}}
    assert decided(high, [{"eval/test/f1": 0.4}, {"eval/test/f1": 0.6}]) == ("target", 2)


def test_a_round_whose_every_update_was_rejected_has_diverged() -> None:
    rows = [{"clients": 1, "rejected": 4}, {"clients": 0, "rejected": 0}, {"clients": 0, "rejected": 5}]
    assert decided({"divergence": {}}, rows) == ("divergence", 3)


def test_a_rule_with_too_few_updates_left_is_no_divergence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Krum with f = 1 needs 4 updates: 3 finite ones are left, so the model stays, and nothing has diverged."""
    rng = np.random.default_rng(0)
    clients = {f"c{k}": (rng.normal(size=(6, 3)).astype(np.float32), np.arange(6) % 2) for k in range(4)}
    clients["c2"][0][:] = np.nan
    exp = raysim.Experiment.model_validate(
        {
            "rounds": 2,
            "model": {"name": "linear"},
            "cohort": {"size": 4},
            "server": {"aggregator": {"name": "krum", "f": 1}},
            "stop": {"divergence": {}},
        }
    )
    data = raysim.FederatedDataset.from_clients(clients)
    with caplog.at_level("WARNING", "raysim"):
        result = raysim.run(exp, dataset=data, executor="local", path=tmp_path / "krum")
    assert (result.stopped, result.rounds.num_rows) == (None, 2)
    assert result.rounds["clients"].to_pylist() == [0, 0]
    assert result.rounds["rejected"].to_pylist() == [1, 1]
    assert "every update" not in caplog.text
    assert "round 0: rejected 1 update, not finite, of: c2" in caplog.text
    assert "diverged" not in dict(closing.lines(exp, result.rounds, tmp_path / "krum"))


def test_rows_may_come_in_pieces() -> None:
    section = stopping_by({"target": {"metric": METRIC, "value": 0.6, "last": 3}, "budget": {"rounds": 9}})
    rows = evaluated(0.1, 0.5, None, 0.6, 0.7, 0.2)
    for cut in range(len(rows)):
        assert after_all(section, rows[cut:], after_all(section, rows[:cut])) == after_all(section, rows)
    stopped = after_all(section, rows)
    assert stopped.stopped is not None
    assert after(section, stopped, {METRIC: 1.0}) is stopped
    assert after_all(stopping_by(None), rows) is NOTHING


BAD = [
    ("stop={target={metric='eval/tset/accuracy',value=0.5}}", "did you mean 'eval/test/accuracy'"),
    ("stop={patience={metric='gsii',evaluations=2,maximise=true}}", "did you mean 'gsi'"),
    ("stop={target={metric='eval/test/accuracy',value=0.5,last=3}}", "stop.target.last must be at most 2"),
    ("stop={target={metric='eval/test/accuracy',value=1.5}}", "above 0 and at most 1"),
    ("stop={target={metric='eval/test/f1',value=0.5}}", "maximise must say"),
    ("stop={target={metric='loss',value=0.5,maximise=true}}", "maximise must be false"),
    ("stop={budget={rounds=0}}", "stop.budget.rounds"),
    ("stop={budget={bytes=0}}", "stop.budget.bytes"),
    ("stop={budget={simulated_s=0.0}}", "stop.budget.simulated_s"),
    ("stop={budget={simulated_s=1.0}}", r"needs simulated devices"),
    ("stop={budget={}}", "at least one of rounds, client_updates"),
    ("stop={}", "at least one of target, patience"),
    ("checkpoint={best='eval/train/accuracy'}", "the split 'train' is not evaluated: evaluation.split = 'train'"),
    (
        "checkpoint={best='eval/validation/accuracy'}",
        "there is no split 'validation' .* data.holdout, or .* evaluation.split = 'validation'",
    ),
    ("checkpoint={best='accuracy'}", "one of the evaluations"),
]


@pytest.mark.parametrize(("change", "said"), BAD)
def test_what_never_comes_is_named_before_anything_starts(
    change: str, said: str, tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    with pytest.raises(raysim.ExperimentError, match=said):
        raysim.run(experiment().changed([change]), dataset=dataset, path=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_every_recorded_figure_can_be_watched(tmp_path: Path, dataset: raysim.FederatedDataset) -> None:
    """What `recorded.check` knows is what rounds have, and nothing that tells a cost."""
    from raysim.engine.plan import recorded_metrics
    from raysim.engine.plan.resolve import resolve

    e = raysim.Experiment.model_validate(
        {
            "rounds": 1,
            "model": {"name": "linear"},
            "client": {"correction": {"name": "mime"}, "mid_round_dropout": 0.1},
            "cohort": {"size": 5},
            "server": {"glad": {}, "clip": {"fixed": 1.0}, "weighting": "examples"},
            "systems": {"time": {"name": "straggler", "alpha": 1.0, "lambda": 1.0}},
            "evaluation": {"fine_tuning": {"split": "train", "steps": 1}, "split": ["train", "test"]},
            "engine": {"workers": 0},
        }
    )
    plan = resolve(e, dataset=dataset)
    result = raysim.run(e, dataset=dataset, path=tmp_path / "run")
    lists = {"round", "rejected_clients", "catastrophic_cohort"}
    had = {name for name in result.rounds.column_names if not cost_columns.tells_cost(name)} - lists
    assert {*recorded_metrics._columns(plan, "eval/"), *recorded_metrics._columns(plan, "loss")} == had


EVERY = {"rounds": 12, "evaluation": {"every": 2}, "checkpoint": {"every": 5, "best": METRIC}}


def figures(path: Path) -> list[dict[str, Any]]:
    rows = round_table.read_rounds(path).to_pylist()
    return [{name: value for name, value in row.items() if not cost_columns.tells_cost(name)} for row in rows]


def model(path: Path) -> tuple[int, list[float]]:
    state = kept_checkpoints.newest_state(path, experiment_record.stored_owner(path))
    assert state is not None
    return state.round, state.weights.params.tolist()


@pytest.mark.parametrize(
    ("stop", "rounds"),
    [
        # Seven updates a round: the third and last round is evaluated although evaluations come every second.
        ({"budget": {"client_updates": 20}}, 3),
        ({"target": {"metric": METRIC, "value": 0.01}}, 2),
        ({"patience": {"metric": METRIC, "evaluations": 1, "min_change": 1.0}}, 4),
        ({"divergence": {"above": 0.0}}, 1),
    ],
)
def test_a_run_stops_alike_alone_pulled_and_among_others(
    stop: dict[str, Any], rounds: int, tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    e = experiment(**EVERY, stop=stop)
    alone = raysim.run(e, dataset=dataset, path=tmp_path / "alone")
    assert alone.stopped is not None
    assert (alone.rounds.num_rows, alone.stopped.rounds) == (rounds, rounds)
    assert alone.rounds[METRIC].to_pylist()[-1] is not None
    stored = json.loads((tmp_path / "alone" / "stopped.json").read_text())
    assert {key: stored[key] for key in alone.stopped._fields} == alone.stopped._asdict()
    assert model(tmp_path / "alone")[0] == rounds
    *before, last = raysim.rounds(e, dataset=dataset)
    assert (last.index, last.stopped) == (rounds - 1, alone.stopped)
    assert all(each.stopped is None for each in before)
    # The second goes in lockstep, and does not stop.
    other = experiment(**EVERY)
    with raysim.Runs(e, dataset=dataset) as runs:
        numbers = runs.start([(e, tmp_path / "among"), (other, tmp_path / "other")])
        ended = {report.run: report for report in runs.reports() if report.finished}
    assert [ended[number].stopped for number in numbers] == [alone.stopped, None]
    assert figures(tmp_path / "among") == figures(tmp_path / "alone")
    assert model(tmp_path / "among") == model(tmp_path / "alone")
    assert (tmp_path / "among" / "stopped.json").exists()
    assert round_table.read_rounds(tmp_path / "other").num_rows == 12


def test_the_last_round_is_evaluated_where_its_time_is_used_up_behind_its_step(
    tmp_path: Path, experiment: Make, dataset: raysim.FederatedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = SimpleNamespace(perf_counter=lambda: time.perf_counter() + 10_000)
    monkeypatch.setattr("raysim.engine.rounds.finished_round.time", late)
    exp = experiment(rounds=9, evaluation={"every": 5}, stop={"budget": {"wall_s": 5_000}})
    result = raysim.run(exp, dataset=dataset, path=tmp_path / "run", progress=False)
    assert result.stopped is not None
    assert result.rounds[METRIC].null_count == 0
    assert result.clients["round"].unique().to_pylist() == [0]


def test_a_stopped_run_stays_stopped_and_says_so(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make, caplog: pytest.LogCaptureFixture
) -> None:
    e, path = experiment(**EVERY, stop={"budget": {"rounds": 3}}), tmp_path / "run"
    first = raysim.run(e, dataset=dataset, path=path)
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    again = raysim.resume(path, rounds=30, dataset=dataset)
    assert again.stopped == first.stopped == StopReason("budget.rounds", 3, "the budget of 3 rounds is used up (3)")
    assert "stays stopped: it ended after round 3 of 30" in caplog.text
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before
    with raysim.Runs(e, dataset=dataset) as runs:
        runs.start([(e, path)], resume=True)
        (report,) = runs.reports()
    assert (report.finished, report.stopped, report.earlier) == (True, first.stopped, True)


def test_a_killed_run_stops_at_the_same_round(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    e = experiment(
        rounds=12,
        evaluation={"every": 2},
        checkpoint={"every": 3, "best": "eval/test/loss"},
        stop={"patience": {"metric": "loss", "evaluations": 2, "min_change": 0.03}, "budget": {"client_updates": 50}},
        engine={"workers": 0, "trainer": "one_by_one"},
    )
    whole = raysim.run(e, dataset=dataset, path=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        raysim.run(e, dataset=dataset, path=tmp_path / "cut", loss=Stops(200))
    done = round_table.read_rounds(tmp_path / "cut").num_rows
    assert whole.stopped is not None
    assert 3 < done < whole.stopped.rounds
    # A killed process leaves no checkpoint of the last round, and best models of rounds that are repeated.
    files.checkpoint_file(tmp_path / "cut", done).unlink()
    assert max(files.checkpoints(tmp_path / "cut")) == 3
    assert max(files.best_models(tmp_path / "cut")) > 3
    resumed = raysim.resume(tmp_path / "cut", dataset=dataset, loss=Stops(10**9))
    assert resumed.stopped == whole.stopped
    assert figures(tmp_path / "cut") == figures(tmp_path / "whole")
    assert model(tmp_path / "cut") == model(tmp_path / "whole")
    assert best(tmp_path / "cut") == best(tmp_path / "whole")


def test_beyond_its_stop_a_run_is_the_run_that_did_not_stop(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    e, path = experiment(**EVERY, stop={"budget": {"rounds": 5}}), tmp_path / "run"
    raysim.run(e, dataset=dataset, path=path)
    assert raysim.run(experiment(**EVERY), dataset=dataset, path=path, resume=True).stopped is None
    raysim.run(experiment(**EVERY), dataset=dataset, path=tmp_path / "whole")
    assert figures(path) == figures(tmp_path / "whole")
    assert best(path) == best(tmp_path / "whole")
    assert not (path / "stopped.json").exists()


def test_a_reason_that_was_left_in_a_folder_is_not_believed(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    """A process was killed between the reason and the rows, in either order; or somebody put the file there."""
    stops = experiment(**EVERY, stop={"budget": {"rounds": 5}})
    raysim.run(stops, dataset=dataset, path=tmp_path / "stopped")
    path = tmp_path / "run"
    result = raysim.run(experiment(**EVERY), dataset=dataset, path=path)
    (path / "stopped.json").write_bytes((tmp_path / "stopped" / "stopped.json").read_bytes())
    (tmp_path / "stopped" / "stopped.json").unlink()
    read, of_stopped = raysim.read(path), raysim.read(tmp_path / "stopped")
    assert isinstance(read, raysim.Result)
    assert isinstance(of_stopped, raysim.Result)
    assert (read.stopped, read.rounds) == (None, result.rounds)
    reason = of_stopped.stopped
    assert reason is not None
    assert reason.rounds == 5
    assert [run.stopped for run in recorded_runs.read_all([path, tmp_path / "stopped"])[0]] == [None, reason]
    assert raysim.resume(path, rounds=14, dataset=dataset).stopped is None
    assert not (path / "stopped.json").exists()
    assert raysim.resume(tmp_path / "stopped", dataset=dataset).rounds.num_rows == 5


def test_an_evaluation_that_only_the_end_asked_for_does_not_outlive_it(tmp_path: Path) -> None:
    """A run that goes on has the best of its regular evaluations: that of round 4, not of round 5, its former end."""
    (tmp_path / "checkpoints").mkdir()
    metric = BestMetric.checked({"metric": METRIC})
    kept = BestModels(tmp_path, metric, every=2)
    values = [None, 0.5, None, 0.6, 0.7]
    rows: list[dict[str, Any]] = [{"round": index, METRIC: value} for index, value in enumerate(values)]
    for row in rows:
        if kept.add(row):
            files.best_file(tmp_path, row["round"] + 1).touch()
            kept.prune()
    files.checkpoint_file(tmp_path, 5).touch()
    kept.prune()
    assert list(files.best_models(tmp_path)) == [4, 5]
    kept = BestModels(tmp_path, metric, every=2)
    kept.open([*rows[:4], {"round": 4, METRIC: None}])
    assert list(files.best_models(tmp_path)) == [4]
    assert not kept.add({"round": 5, METRIC: 0.6})
    assert kept.add({"round": 7, METRIC: 0.61})


LENGTHENED = {
    "patience": {"patience": {"metric": METRIC, "evaluations": 2, "min_change": 1.0}},
    "target": {"target": {"metric": METRIC, "value": 0.01, "last": 3}},
    "divergence": {"divergence": {"metric": "eval/test/loss", "above": 1e-9}},
    "none": None,
}


@pytest.mark.parametrize("stop", LENGTHENED.values(), ids=LENGTHENED)
def test_a_lengthened_run_is_the_run_that_was_as_long_from_the_beginning(
    stop: dict[str, Any] | None, tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    """The evaluations after rounds 7 and 8 are due only because the run ended there."""

    def of(rounds: int) -> raysim.Experiment:
        return experiment(rounds=rounds, evaluation={"every": 3}, stop=stop, checkpoint={"best": METRIC})

    whole = raysim.run(of(10), dataset=dataset, path=tmp_path / "whole")
    path = tmp_path / "run"
    for rounds in (7, 8, 10):
        lengthened = raysim.run(of(rounds), dataset=dataset, path=path, resume=True)
    assert lengthened.stopped == whole.stopped
    assert figures(path) == figures(tmp_path / "whole")
    # Kept checkpoints of the former ends have best models of their own.
    assert max(best(path).items()) == max(best(tmp_path / "whole").items())
    assert model(path) == model(tmp_path / "whole")


def test_a_lengthened_run_has_no_distance_to_the_optimum_of_its_former_end(tmp_path: Path) -> None:
    keys: dict[str, Any] = {
        "data": {"name": "quadratic", "clients": 5, "dimension": 4},
        "model": {"name": "linear", "bias": False},
        "cohort": {"size": 2},
        "engine": {"workers": 0},
        "evaluation": {"every": 2},
    }
    for rounds in (3, 5):
        raysim.run(raysim.Experiment.model_validate({**keys, "rounds": rounds}), path=tmp_path / "run", resume=True)
    raysim.run(raysim.Experiment.model_validate({**keys, "rounds": 5}), path=tmp_path / "whole")
    for name in ("distance_to_optimum", "excess_loss"):
        values = [round_table.read_rounds(tmp_path / each)[name].to_pylist() for each in ("run", "whole")]
        assert values[0] == values[1]
        assert values[0][2] is None


def best(path: Path) -> dict[int, list[float]]:
    """The kept best models by number of rounds."""
    return {done: checkpoint.read(file).weights.params.tolist() for done, file in files.best_models(path).items()}


def test_the_last_round_ends_a_run_whatever_else_would(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    """It was said to have stopped before, and to go on without [stop], which it did not."""
    e = experiment(rounds=3, stop={"budget": {"rounds": 3}, "target": {"metric": "loss", "value": 1e3, "last": 3}})
    result = raysim.run(e, dataset=dataset, path=tmp_path / "run")
    assert (result.stopped, result.rounds.num_rows) == (None, 3)
    lines = dict(closing.lines(e, result.rounds, tmp_path / "run"))
    assert "stopped" not in lines
    assert "unset stop" not in lines["next"]
    longer = raysim.run(e.changed({"rounds": 5}), dataset=dataset, path=tmp_path / "run", resume=True)
    assert longer.stopped is not None
    assert (longer.stopped.rounds, longer.rounds.num_rows) == (3, 3)
