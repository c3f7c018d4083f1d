"""What the closing table says of a run."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from raysim import Experiment, FederatedDataset, run_sweep, run_trials
from raysim.engine.rounds.run_status import UnderWay
from raysim.report import closing
from raysim.run_folder.rows import table
from raysim.run_folder.tables import summarise
from tests.support.small_data import make_clients

Make = Callable[..., Experiment]

ROWS: list[dict[str, Any]] = [
    {
        "round": 0,
        "workers": 2,
        "clients": 6,
        "rejected": 1,
        "retries": 0,
        "wall_time_s": 1.5,
        "loss": 2.0,
        "accuracy": 0.25,
    },
    {
        "round": 1,
        "workers": 2,
        "clients": 7,
        "rejected": 0,
        "retries": 2,
        "wall_time_s": 2.5,
        "loss": 1.0,
        "accuracy": 0.5,
        "eval/test/loss": 1.25,
        "eval/test/accuracy": 0.75,
        "eval/test/p5": 0.125,
        "eval/test/p95": 1.0,
    },
    {
        "round": 2,
        "workers": 2,
        "clients": 7,
        "rejected": 0,
        "retries": 0,
        "wall_time_s": 1.0,
        "loss": 0.5,
        "accuracy": 0.625,
    },
    {
        "round": 3,
        "workers": 1,
        "clients": 7,
        "rejected": 0,
        "retries": 0,
        "wall_time_s": 2.0,
        "loss": 0.25,
        "accuracy": 0.875,
    },
]


def said(experiment: Experiment, rows: list[dict[str, Any]], path: Path = Path("runs/test")) -> dict[str, str]:
    return dict(closing.lines(experiment, table(rows), path))


def test_every_figure_of_a_complete_run(experiment: Make, tmp_path: Path) -> None:
    (tmp_path / "curve.png").touch()
    # 28 clients were trained, the rejected one included, in 7 s.
    assert said(experiment(rounds=4), ROWS, tmp_path) == {
        "experiment": "test",
        "rounds": "4",
        "workers": "1",
        "training": "accuracy 87.5 %, loss 0.25",
        "test": "accuracy 75.0 %, loss 1.25 (after round 2)",
        "test, by client": "p5 12.5 %   p95 100.0 %",
        "time": "7.0 s in rounds, 4 clients/s",
        "rejected": "1 update, not finite (see column rejected_clients)",
        "retries": "2, of work that was lost on the way: the numbers are the same",
        "folder": str(tmp_path),
        "picture": str(tmp_path / "curve.png"),
        "next": f"raysim resume {tmp_path} --rounds 8",
    }


def test_a_percentile_has_all_of_its_digits(experiment: Make) -> None:
    last = {**ROWS[1], "round": 0, "eval/test/p99.99999": 0.5}
    assert said(experiment(rounds=1), [last])["test, by client"] == "p5 12.5 %   p95 100.0 %   p99.99999 50.0 %"


def test_the_command_that_exports_the_best_model_quotes_the_folder(experiment: Make) -> None:
    best = experiment(rounds=4, checkpoint={"best": "eval/test/accuracy"}, evaluation={"every": 1})
    assert said(best, ROWS, Path("runs/my run"))["best model"].endswith(": raysim export 'runs/my run' --best")


def test_a_run_that_was_followed_from_another_machine_is_said_to_be_where_it_is(
    experiment: Make, tmp_path: Path
) -> None:
    # A folder of that name is here too, and is another one.
    (tmp_path / "curve.png").touch()
    run = UnderWay("test", experiment(), "atlas", tmp_path, "s3://bucket/x", since_s=0.0, stage="done", rounds=4)
    last = dict(closing.lines_of(run, table(ROWS)))
    assert "picture" not in last
    assert last["folder"] == "s3://bucket/x on atlas"
    assert last["next"] == "on atlas: raysim resume s3://bucket/x --rounds 8"
    here = dict(closing.lines_of(replace(run, host=socket.gethostname()), table(ROWS)))
    assert here["picture"] == str(tmp_path / "curve.png")


def test_what_continues_several_runs_of_a_script_names_what_it_passed(experiment: Make, tmp_path: Path) -> None:
    clients = FederatedDataset.from_clients(train=make_clients([8, 9, 10, 11]))
    base = experiment(rounds=1, cohort={"size": 2}, evaluation={"every": 1})
    tried = run_trials(base.changed(["trials=2"]), dataset=clients, path=tmp_path / "t", executor="local")
    assert f"raysim.run_trials(experiment.changed({{'trials': 4}}), path='{tmp_path}/t', resume=True, dataset=...)" in (
        str(tried).replace("\n", " ")
    )
    for name, of_point in (("s", base), ("of-trials", base.changed(["trials=2"]))):
        swept = run_sweep(of_point, {"seed": [1, 2]}, dataset=clients, path=tmp_path / name, executor="local")
        assert f"raysim.run_sweep(experiment, values, path='{tmp_path / name}', resume=True, dataset=...)" in str(swept)


def test_what_did_not_happen_is_not_mentioned(experiment: Make) -> None:
    lines = said(experiment(rounds=1), [{"round": 0, "clients": 7, "wall_time_s": 1.0, "loss": 0.5}])
    assert list(lines) == ["experiment", "rounds", "workers", "training", "time", "folder", "next"]
    assert lines["training"] == "loss 0.5"


def test_a_regression_has_losses_only(experiment: Make) -> None:
    lines = said(experiment(), [{"round": 0, "clients": 7, "wall_time_s": 1.0, "loss": 0.5, "eval/test/loss": 0.75}])
    assert lines["test"] == "loss 0.75 (after round 1)"
    assert "test, by client" not in lines


def test_user_defined_metrics_stand_beside_the_loss(experiment: Make) -> None:
    metrics = [{"name": "own", "label": "f1"}, {"name": "own", "label": "not_yet"}]
    rows = [{**ROWS[0], "eval/test/accuracy": 0.75, "eval/test/f1": 0.625, "eval/test/not_yet": None}]
    exp = experiment(evaluation={"metrics": metrics})
    assert said(exp, rows)["test"] == "accuracy 75.0 %, f1 0.625 (after round 1)"
    again = [{**rows[0], "eval/test/f1": 0.875}]
    swept = dict(closing.lines_of_sweep(exp, [("a", table(rows), [None]), ("b", table(again), [None])], Path("s")))
    assert swept["b"].endswith("test accuracy 75.0 %, f1 0.875 (after round 1)")
    tried = dict(closing.lines_of_trials(exp, summarise([table(rows), table(again)]), Path("t")))
    assert tried["test"] == "accuracy 75.0 % +- 0.0 %, f1 0.75 +- 0.1768 (after round 1)"


def test_the_newest_figures_of_trials_that_ended_apart_are_of_one_round(experiment: Make) -> None:
    """A deviation of an earlier round, of more trials, is not that of the newest mean."""
    rows = [{**ROWS[0], "round": index, "accuracy": 0.5, "eval/test/accuracy": 0.25 * index} for index in range(3)]
    ended = [{**row, "eval/test/accuracy": 0.75} for row in rows[:2]]
    summary = summarise([table(rows), table(ended)])
    tried = dict(closing.lines_of_trials(experiment(), summary, Path("t")))
    assert tried["training"] == "accuracy 50.0 % (after round 3, 1 of 2 trials)"
    assert tried["test"] == "accuracy 50.0 % (after round 3, 1 of 2 trials)"


@pytest.mark.parametrize(
    ("lost", "says"), [([3, 2], "look for values that are not finite in the data"), ([0, 2], "lower the rates, if the")]
)
def test_a_run_without_finite_updates_is_told_what_to_look_at_first(
    experiment: Make, lost: list[int], says: str
) -> None:
    rows = [{"round": i, "clients": 0 if n else 2, "rejected": n, "wall_time_s": 1.0} for i, n in enumerate(lost)]
    assert said(experiment(), rows)["diverged"].partition("as it was: ")[2].startswith(says)


def test_an_unfinished_run_is_to_be_finished_first(experiment: Make) -> None:
    lines = said(experiment(rounds=100), ROWS)
    assert lines["rounds"] == "4 of 100"
    assert lines["next"] == "raysim resume runs/test"


def test_a_run_that_went_on_for_longer_counts_the_rounds_that_it_has(experiment: Make) -> None:
    lines = said(experiment(rounds=2), ROWS)
    assert lines["rounds"] == "4"
    assert lines["next"].endswith("--rounds 8")


def test_workers_are_those_of_the_last_round(experiment: Make) -> None:
    assert said(experiment(), ROWS[:2])["workers"] == "2"
    assert said(experiment(), ROWS)["workers"] == "1"


def test_a_run_without_rounds_has_a_table_too(experiment: Make) -> None:
    assert said(experiment(), [])["rounds"] == "0 of 4"


def test_the_table_prints_paths_as_they_are(experiment: Make) -> None:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(closing.table(closing.lines(experiment(), table(ROWS), Path("runs/[bold]x"))))
    assert "runs/[bold]x" in captured.get()


def test_simulated_time_is_summed_up_with_who_did_not_count(experiment: Make) -> None:
    of_all = {"asked": 13, "dropped": 1, "late": 0, "discarded": 2}
    rows = [{"round": t, "clients": 10, "wall_time_s": 1.0, "simulated_time_s": 1800.0, **of_all} for t in range(4)]
    assert said(experiment(), rows)["simulated"] == "2 h 00 min, 12 clients of 52 did not count"
    patient = [{**row, "asked": 10, "dropped": 0, "discarded": 0} for row in rows]
    assert said(experiment(), patient)["simulated"] == "2 h 00 min"
