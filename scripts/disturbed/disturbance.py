"""Carries out one disturbed run: starts it, signals the victim's processes, and resumes it to its last round."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from compare import Record, difference
from tries import Try, Victim, of_raysim

from raysim.run_folder import client_table, cost_columns, experiment_record, kept_checkpoints, round_table

PATIENCE_S = 600.0
"""How long a run may take on a busy machine; one that takes longer hangs."""

LEFT_S = 15.0
"""How long Ray's processes may go on after the script."""

TIMES_RESUMED = 3

IN_PROCESS = ("--set", "engine.workers=0")

ACTORS: Mapping[Victim, str] = {
    "worker": "ray::ClientPool",
    "workers": "ray::ClientPool",
    "driver": "ray::WatchedDriver",
}


class Wrong(Exception):
    """A run did not end as it must."""


def outcome(tried: Try, experiment: Path, folder: Path, whole: Record) -> str | None:
    """Carry out a try; returns why its result is wrong, or None."""
    try:
        if tried.moment == "resume":
            _run(_command(experiment, folder), folder, tried._replace(victim="script", moment="rounds", stop_s=None))
            tried = tried._replace(moment="start" if tried.after_round % 2 else "rounds")
        code, said = _run(_next_command(experiment, folder), folder, tried)
        said = of_raysim(said)
        if code != 0 and tried.victim != "script" and (not said.startswith("error: ") or "Traceback" in said):
            return f"it ended with code {code} and said: {said[-600:]!r}"
        for _ in range(TIMES_RESUMED):
            if code != 0:
                code, said = _run(_going_on(experiment, folder), folder, None)
        if code != 0:
            return f"it cannot be resumed: code {code}, {said[-600:]!r}"
        return difference(whole, recorded(folder))
    except Wrong as wrong:
        return str(wrong)


def recorded(folder: Path) -> Record:
    """Read what a run must have left alike: its last model, rounds and clients."""
    state = kept_checkpoints.newest_state(folder, experiment_record.stored_owner(folder))
    assert state is not None
    # The columns of the costs are not compared.
    rounds = round_table.read_rounds(folder)
    kept = rounds.select([name for name in rounds.column_names if not cost_columns.tells_cost(name)])
    tables = {"rounds": kept, "clients": client_table.read_clients(folder)}
    return Record({"params": state.weights.params.numpy()}, tables)


def _next_command(experiment: Path, folder: Path) -> list[str]:
    if (folder / "experiment.json").exists():
        return [*_raysim("resume"), str(folder), "--no-progress"]
    return _command(experiment, folder)


def _going_on(experiment: Path, folder: Path) -> list[str]:
    """Go on in one process, whose start costs a tenth of Ray's; `_next_command` resumes on Ray."""
    return [*_raysim("run"), str(experiment), "--path", str(folder), "--resume", "--no-progress", *IN_PROCESS]


def _command(experiment: Path, folder: Path) -> list[str]:
    return [*_raysim("run"), str(experiment), "--path", str(folder), "--overwrite", "--no-progress"]


def _raysim(command: str) -> list[str]:
    return [sys.executable, "-c", "from raysim.cli import main; main()", command]


def _run(command: list[str], folder: Path, tried: Try | None) -> tuple[int, str]:
    """Run a command to its end, disturbed if there is a try; returns its exit code and what it said of errors."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as script:
        processes: dict[int, psutil.Process] = {}
        try:
            if tried is not None:
                _disturb(script, folder, tried, processes)
            _, said = script.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise Wrong(f"it hangs: no end after {PATIENCE_S:.0f} s") from None
        finally:
            for process in processes.values():
                with suppress(psutil.Error):
                    process.resume()
            script.kill()
    if not _within(LEFT_S, lambda: not any(map(_runs, processes.values()))):
        names = sorted(process.name() for process in processes.values() if _runs(process))
        for process in processes.values():
            with suppress(psutil.Error):
                process.kill()
        raise Wrong(f"after {LEFT_S:.0f} s there still are {', '.join(names)}")
    return script.returncode, said


def _disturb(script: Any, folder: Path, tried: Try, processes: dict[int, psutil.Process]) -> None:
    root = psutil.Process(script.pid)
    if not _within(PATIENCE_S, lambda: script.poll() is not None or _is_time(tried, root, folder), 0.002):
        raise Wrong(f"it hangs: nothing to disturb after {PATIENCE_S:.0f} s")
    if tried.moment == "start":
        time.sleep(tried.delay_s)
    with suppress(psutil.Error):
        processes |= {process.pid: process for process in [root, *root.children(recursive=True)]}
    victims = _victims(tried.victim, root)
    for process in victims:
        with suppress(psutil.Error):
            process.send_signal(signal.SIGKILL if tried.stop_s is None else signal.SIGSTOP)
    if tried.stop_s is not None:
        with suppress(subprocess.TimeoutExpired):
            script.wait(tried.stop_s)
        for process in victims:
            with suppress(psutil.Error):
                process.resume()


def _is_time(tried: Try, root: psutil.Process, folder: Path) -> bool:
    if tried.moment == "start":
        return tried.victim == "script" or bool(_victims(tried.victim, root))
    if not any(int(file.stem.partition("-")[2]) > tried.after_round for file in folder.glob("checkpoints/round-*")):
        return False
    # Hidden files are whole only once they have been renamed.
    return tried.moment != "write" or any(
        name.startswith(".") and name != ".lock"
        for place in (folder, folder / "checkpoints")
        for name in os.listdir(place)
    )


def _victims(victim: Victim, root: psutil.Process) -> list[psutil.Process]:
    if victim == "script":
        return [root]
    found = []
    with suppress(psutil.Error):
        for process in root.children(recursive=True):
            with suppress(psutil.Error):
                title = " ".join(process.cmdline())
                if process.name() == victim or (victim in ACTORS and title.startswith(ACTORS[victim])):
                    found.append(process)
    return found[:1] if victim == "worker" else found


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _within(seconds: float, happened: Callable[[], object], every_s: float = 0.05) -> bool:
    deadline = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > deadline:
            return False
        time.sleep(every_s)
    return True
