"""Trials that diverge, cannot begin, or raise: a study has one trial less, and says why."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pyarrow.parquet as pq
import pytest
import torch
from optuna.trial import TrialState

import raysim
import tuning
from raysim.server.optimizers.optimizer import Descent, ServerOptimizer, Stepped

Make = Callable[..., raysim.Experiment]


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


def test_what_no_configuration_can_be_is_refused_before_a_trial(
    small: raysim.FederatedDataset, tuned: Make, tmp_path: Path
) -> None:
    images = tuned().changed({"model": {"name": "cnn"}})
    with pytest.raises(raysim.ModelError, match="cnn"):
        tuning.tune(images, dataset=small, path=tmp_path)
    assert not list(tmp_path.glob("trials/*"))


class Faulty:
    """A loss that large outputs break, until it is mended."""

    is_mended = False

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if not self.is_mended and outputs.abs().max() > 8:
            raise ValueError("a fault of the script")
        return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")


def test_failed_trials_are_run_again_when_asked(small: raysim.FederatedDataset, tuned: Make, tmp_path: Path) -> None:
    loss = Faulty()

    def run(where: str, **how: Any) -> tuning.Study:
        return tuning.tune(
            tuned(),
            {"client.optimizer.lr": {"grid": [0.01, 30.0, 100.0]}},
            dataset=small,
            loss=loss,
            path=tmp_path / where,
            final=0,
            **how,
        )

    before = run("mended")
    assert before.counts == {"failed": 2, "finished": 1}
    assert "failed" in dict(tuning.lines(before))
    loss.is_mended = True
    kept = run("mended")
    assert kept.trials == before.trials
    after = run("mended", retry_failed=True)
    assert "failed" not in after.counts
    # The same values, and the numbers that a study without the fault has.
    names = ["client.optimizer.lr", "outcome", "value"]
    assert after.trials.select(names).to_pylist() == run("whole").trials.select(names).to_pylist()
    assert {3, 4} < set(after.trials["trial"].to_pylist())
    assert tuning.read(tmp_path / "mended") == after


@pytest.mark.parametrize(("amount", "mended"), [(4, 0), (8, 1), (12, 2)])
def test_no_failed_trial_is_run_again_beyond_the_budget(
    amount: int,
    mended: int,
    small: raysim.FederatedDataset,
    tuned: Make,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A trial has four rounds. The two that failed had none, so the budget let both begin."""
    loss = Faulty()

    def run(**how: Any) -> tuning.Study:
        space = {"client.optimizer.lr": {"grid": [0.01, 30.0, 100.0]}}
        exp = tuned(concurrent=2, budget={"rounds": amount}, final=0)
        return tuning.tune(exp, space, dataset=small, loss=loss, path=tmp_path, **how)

    before = run()
    failed = [row["trial"] for row in before.trials.to_pylist() if row["outcome"] == "failed"]
    assert len(failed) == 2
    loss.is_mended = True
    caplog.clear()
    after = run(retry_failed=True)
    assert after.counts.get("failed", 0) == 2 - mended
    assert after.spent["rounds"] <= amount
    left = ", ".join(map(str, failed[mended:]))
    said = [message for message in caplog.messages if message.startswith("not run again")]
    assert said == [f"not run again, because tuning.budget has no room for them: failed trials {left}"] * bool(left)


@pytest.mark.parametrize("budget", [None, {"rounds": 100}], ids=["without", "budget"])
def test_a_failed_trial_that_was_killed_before_its_end_is_resumed_and_not_run_again(
    budget: Any, small: raysim.FederatedDataset, tuned: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has its outcome, and is open."""
    loss = Faulty()

    def run(**how: Any) -> tuning.Study:
        space = {"client.optimizer.lr": {"grid": [0.01, 30.0]}}
        exp = tuned(budget=budget, final=0)
        return tuning.tune(exp, space, dataset=small, loss=loss, path=tmp_path, **how)

    def killed(study: optuna.Study, trial: Any, values: Any = None, state: Any = None, **how: Any) -> Any:
        if state == TrialState.FAIL:
            raise KeyboardInterrupt
        return tell(study, trial, values, state, **how)

    tell = optuna.Study.tell
    with monkeypatch.context() as patched:
        patched.setattr(optuna.Study, "tell", killed)
        with pytest.raises(KeyboardInterrupt):
            run()
    loss.is_mended = True
    after = run(retry_failed=True)
    assert after.counts == {"finished": 2}
    assert sorted(after.trials["trial"].to_pylist()) == [0, 1]


def test_a_failed_trial_of_a_process_at_work_is_left_to_it(
    small: raysim.FederatedDataset, tuned: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if outputs.requires_grad and len(outputs) > 2:
            raise ValueError("a fault of the script")
        return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")

    with pytest.raises(tuning.StudyError, match=r"--retry-failed, retry_failed=True"):
        tuning.tune(tuned(), dataset=small, loss=loss, path=tmp_path)
    monkeypatch.setattr("tuning.processes.Processes._has_ended", lambda *of: False)
    with pytest.raises(tuning.StudyError, match="No trial finished"):
        tuning.tune(tuned(), dataset=small, path=tmp_path, retry_failed=True, loss=loss)


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
    assert found.trials["outcome"].to_pylist() == ["finished", "failed"]
    assert found.trials["why"].to_pylist() == [None, "not with this seed"]


def test_a_users_error_is_kept_with_the_trial(small: raysim.FederatedDataset, tuned: Make, tmp_path: Path) -> None:
    def broken(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        # The batches of a trial, not the two examples of the check before it.
        if outputs.requires_grad and len(outputs) > 2:
            raise RuntimeError("my own mistake")
        return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")

    with pytest.raises(tuning.StudyError, match=r"No trial finished \(3 failed\)(?s:.*)my own mistake"):
        tuning.tune(tuned(), dataset=small, loss=broken, path=tmp_path)
