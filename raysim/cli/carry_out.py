"""What `run` and `resume` share: one experiment, its trials, or the points of a sweep, to their closing table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from raysim.cli.interruptible import interruptible
from raysim.cli.say import print_table, say

if TYPE_CHECKING:
    from raysim.experiment import Experiment
    from raysim.loggers.open import LoggerName
    from raysim.series import Member


class How(TypedDict, total=False):
    """How it is carried out; see `raysim.run`."""

    address: str | None
    overwrite: bool
    resume: bool
    progress: bool
    profile: bool
    loggers: Sequence[LoggerName]


def carry_out(experiment: Experiment, sweep: Mapping[str, list[Any]], folder: Path, how: How) -> None:
    """Run one experiment, its trials, or the points of a sweep, and print the closing table."""
    from raysim.elsewhere.folder import borrow
    from raysim.report import closing, closing_sweep, closing_trials

    def started(member: Member) -> None:
        say(f"{member.path.relative_to(where)}, seed {member.experiment.seed}")

    with borrow(folder) as where, interruptible(where):
        if sweep:
            from raysim.sweep_runs import run_sweep

            swept = run_sweep(experiment, sweep, path=where, started=started, **how)
            lines = closing_sweep.lines(experiment, [(p.path.name, p.rounds) for p in swept.points], where)
        elif experiment.trials.count > 1:
            from raysim.trial_runs import run_trials

            tried = run_trials(experiment, path=where, started=started, **how)
            lines = closing_trials.lines(experiment, tried.summary, where)
        else:
            from raysim import api

            lines = closing.lines(experiment, api.run(experiment, path=where, **how).rounds, where)
    print_table(lines)
