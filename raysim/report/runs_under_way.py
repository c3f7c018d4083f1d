"""Lists the runs under way on a cluster as a table."""

from __future__ import annotations

from collections.abc import Sequence

from raysim.engine.rounds.run_status import UnderWay
from raysim.report import number_formats
from raysim.storage.remote.folder import resume_command

HEADINGS = ("name", "round", "for", "host", "folder")


def text(runs: Sequence[UnderWay], now_s: float) -> str:
    """Return one line per run, oldest first.

    Args:
        runs: as `raysim.under_way` lists them.
        now_s: by the Unix clock.
    """
    if not runs:
        return "no run is under way"
    lines = [HEADINGS, *(_line(run, now_s) for run in runs)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def outcome_of_stop(run: UnderWay) -> str:
    """Return the outcome of a request to stop a run."""
    behind = "" if run.behind is None else f"\non {run.host}: {run.behind}"
    if run.stage == "done":
        rounds = f"{run.experiment.rounds:,}"
        return f"{run.name} was done: all of its {rounds} rounds are in {run.folder} on {run.host}{behind}"
    after = f"after round {run.rounds:,}" if run.rounds else "before its first round was finished"
    return f"stopped {run.name} {after}; go on, on {run.host}, with: {resume_command(run.folder)}{behind}"


def _line(run: UnderWay, now_s: float) -> tuple[str, ...]:
    rounds = run.stage if run.stage == "starting" else f"{run.rounds:,}/{run.experiment.rounds:,}"
    return run.name, rounds, number_formats.duration(max(0.0, now_s - run.since_s)), run.host, run.folder
