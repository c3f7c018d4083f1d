"""Which process works on what, where several share a storage, or one is killed and another goes on.

Beside the study, the storage holds a second one, "<name>/processes", whose rows are a log: a process registers, takes
the study's next slots, takes something by its name, or inherits from a process that has ended. A storage numbers rows
one after the other, and so two processes always agree: slots are dealt in the order of the rows, and of several rows
that take the same thing the first one counts. Nothing is ever decided by reading and then writing.

A process has ended when it has said so, when its machine is this one and it is not there, or, on another machine, when
its beat has not changed for a minute of this process' own clock.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import optuna
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from tuning.errors import StudyError

log = logging.getLogger("raysim")

BEAT_S, SILENT_S = 10.0, 60.0


@dataclass(frozen=True)
class Log:
    """What the rows say.

    processes: number -> what it registered with. left: those that said that they end. beats: each one's newest.
    slots: the process that took each slot, in order. taken: name -> the process that took it. heirs: ended -> heir.
    """

    processes: Mapping[int, Mapping[str, Any]]
    left: frozenset[int]
    beats: Mapping[int, int]
    slots: tuple[int, ...]
    taken: Mapping[str, int]
    heirs: Mapping[int, int]

    @classmethod
    def read(cls, rows: Iterable[FrozenTrial]) -> Log:
        """From the rows of the storage, in any order."""
        processes: dict[int, Mapping[str, Any]] = {}
        left: set[int] = set()
        slots: list[int] = []
        beats: dict[int, int] = {}
        taken: dict[str, int] = {}
        heirs: dict[int, int] = {}
        for row in sorted(rows, key=lambda row: row.number):
            said = row.user_attrs
            match said.get("kind"):
                case "process":
                    processes[row.number] = said["identity"]
                    beats[row.number] = said.get("beat", 0)
                    if row.state.is_finished():
                        left.add(row.number)
                case "slots":
                    slots += [said["process"]] * said["count"]
                case "take":
                    taken.setdefault(said["what"], said["process"])
                case "heir" if said["process"] not in heirs:
                    # Of two that take each other for gone, the first one is right from then on.
                    heirs.setdefault(said["of"], said["process"])
        return cls(processes, frozenset(left), beats, tuple(slots), taken, heirs)

    def owner(self, process: int) -> int:
        """Who has what the process took: itself, or its heir, or that one's."""
        while process in self.heirs:
            process = self.heirs[process]
        return process


class Processes:
    """The log, and this process in it; a context manager around the work."""

    def __init__(self, storage: BaseStorage, study: str, beat_s: float = BEAT_S, silent_s: float = SILENT_S) -> None:
        self._storage, self._name = storage, f"{study}/processes"
        self._beat_s, self._silent_s = beat_s, silent_s
        self._ended = threading.Event()
        self._beaten_s = time.time()
        self._heard: dict[int, tuple[int, float]] = {}

    def __enter__(self) -> Self:
        self._study = optuna.create_study(study_name=self._name, storage=self._storage, load_if_exists=True)
        self._study_id = self._storage.get_study_id_from_name(self._name)
        self._id = self._add({"kind": "process", "identity": this_process()}, TrialState.RUNNING)
        self.number = self._storage.get_trial(self._id).number
        self._beating = threading.Thread(target=self._beat, daemon=True, name="tuning beat")
        self._beating.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._beating.join()
        try:
            self._storage.set_trial_state_values(self._id, TrialState.COMPLETE, [0.0])
        except Exception as failure:
            # What ended the study is what should be heard of; others find out that this process is gone.
            log.warning("this process could not say to the study's storage that it ends: %s", failure)

    def read(self) -> Log:
        """What the log says now.

        Raises:
            StudyError: another process has inherited from this one.
        """
        rows = Log.read(self._study.get_trials(deepcopy=False))
        if (heir := rows.owner(self.number)) != self.number:
            raise StudyError(
                f"This process was not heard of for {self._silent_s:.0f} s, and another one has taken over its trials "
                f"({rows.processes[heir]}): it stops here, and nothing is lost."
            )
        return rows

    def check(self) -> None:
        """Raise StudyError where another process has inherited from this one; it is asked only if that can be."""
        if abs(time.time() - self._beaten_s) > self._silent_s / 2:
            self.read()

    def take_slots(self, count: int) -> None:
        """Take the next slots of the study, whatever their numbers."""
        self._add({"kind": "slots", "count": count, "process": self.number})

    def take(self, what: str) -> None:
        """Take something by its name; `read` says whether another process was first."""
        self._add({"kind": "take", "what": what, "process": self.number})

    def inherit(self, rows: Log, owners: Iterable[int]) -> bool:
        """Take over from those of these processes that have ended; whether there were any."""
        ended = [
            process for process in sorted(set(owners)) if process != self.number and self._has_ended(rows, process)
        ]
        for process in ended:
            log.warning("taking over from process %s, which has ended", rows.processes[process])
            self._add({"kind": "heir", "of": process, "process": self.number})
        return bool(ended)

    def _has_ended(self, rows: Log, process: int) -> bool:
        if process in rows.left:
            return True
        gone = has_ended(dict(rows.processes[process]))
        if gone is not None:
            return gone
        beat, now_s = rows.beats[process], time.monotonic()
        heard, since_s = self._heard.get(process, (None, now_s))
        if heard != beat:
            since_s = now_s
        self._heard[process] = (beat, since_s)
        return now_s - since_s > self._silent_s

    def _add(self, said: dict[str, Any], state: TrialState = TrialState.COMPLETE) -> int:
        row = create_trial(state=state, value=0.0 if state.is_finished() else None, user_attrs=said)
        return self._storage.create_new_trial(self._study_id, row)

    def _beat(self) -> None:
        count = 0
        while not self._ended.wait(self._beat_s):
            count += 1
            try:
                self._storage.set_trial_user_attr(self._id, "beat", count)
                self._beaten_s = time.time()
            except Exception as error:
                # A storage that is away for long is met by whoever has something to write.
                log.debug("no beat: %s", error)


_STARTED = 19
"""Where /proc/PID/stat has the start time, counted after the command's name."""


def here() -> str:
    """The space that process ids are unique in: the machine, since its last start, and its namespace of ids."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{socket.gethostname()} {boot} {os.stat('/proc/self/ns/pid').st_ino}"


def this_process() -> dict[str, Any]:
    """What others need to know of this process."""
    return {"machine": here(), "pid": os.getpid(), "started": _started(os.getpid())}


def has_ended(identity: dict[str, Any]) -> bool | None:
    """Whether that process has ended; None where that cannot be seen from here."""
    if identity["machine"] != here():
        return None
    return bool(_started(identity["pid"]) != identity["started"])


def _started(pid: int) -> str | None:
    """When the process was started, in ticks since the machine was; None: there is none, or it is only waited for."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else fields[_STARTED]
