"""Divides the work of a study among processes that share a storage, and replaces processes that end.

Beside the study, the storage holds a second study, "<name>/processes", whose rows are a log. A process registers, tells
its folder, takes the study's next slots, claims a task by name, or inherits from a process that has ended. A storage
numbers rows one after the other, so two processes always agree: slots are dealt in the order of the rows, and of
several claims of one task the first one counts, as of several folders. No decision depends on a read followed by a
write.

A process has ended when it has logged its end, when it ran on this machine and no longer exists, or, on another
machine, when its beat has not changed for a minute of this process's clock.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import optuna
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from tuning.errors import OtherFolderError, StudyError
from tuning.folder import is_copy
from tuning.kept_trial import MOST_SLOTS

log = logging.getLogger("raysim")

BEAT_S, SILENT_S = 10.0, 60.0


@dataclass(frozen=True)
class Log:
    """The content of the rows.

    processes: number -> its identity. left: the processes that logged their end. beats: the newest beat of each.
    slots: the process that took each slot, in order. taken: task -> the process that claimed it. heirs: ended -> heir.
    folder: mark and newest path of the study's; None: no process has told it.
    """

    processes: Mapping[int, Mapping[str, Any]]
    left: frozenset[int]
    beats: Mapping[int, int]
    slots: tuple[int, ...]
    taken: Mapping[str, int]
    heirs: Mapping[int, int]
    folder: tuple[str, str] | None = None

    @classmethod
    def read(cls, rows: Iterable[FrozenTrial]) -> Log:
        """Return the log of the storage's rows, in any order.

        Raises:
            StudyError: a row is not as a process writes it.
        """
        processes: dict[int, Mapping[str, Any]] = {}
        left: set[int] = set()
        slots: list[int] = []
        beats: dict[int, int] = {}
        taken: dict[str, int] = {}
        heirs: dict[int, int] = {}
        folder: tuple[str, str] | None = None
        for row in sorted(rows, key=lambda row: row.number):
            record = row.user_attrs
            if (flaw := _flaw(record)) is not None:
                raise StudyError(
                    f"Row {row.number} of the study's processes is damaged in its storage: {flaw}. Restore the "
                    f"storage, or give the study another folder (--path, path=)."
                )
            match record["kind"]:
                case "process":
                    processes[row.number] = record["identity"]
                    beats[row.number] = record.get("beat", 0)
                    if row.state.is_finished():
                        left.add(row.number)
                case "folder":
                    # The first mark is the study's; its newest path is where the folder has been moved.
                    if folder is None or folder[0] == record["mark"]:
                        folder = (record["mark"], record["path"])
                case "slots":
                    slots += [record["process"]] * record["count"]
                case "take":
                    taken.setdefault(record["what"], record["process"])
                case "heir" if record["process"] not in heirs:
                    # If two processes inherit from each other, only the first row counts.
                    heirs.setdefault(record["of"], record["process"])
        return cls(processes, frozenset(left), beats, tuple(slots), taken, heirs, folder)

    def owner(self, process: int) -> int:
        """Return the present owner of a process's work: itself, its heir, or the heir's heir."""
        for _ in range(len(self.heirs)):
            process = self.heirs.get(process, process)
        return process


_FIELDS: Mapping[str, Mapping[str, type]] = {
    "process": {"identity": dict},
    "folder": {"mark": str, "path": str},
    "slots": {"process": int, "count": int},
    "take": {"process": int, "what": str},
    "heir": {"process": int, "of": int},
}
"""What the rows of each kind hold."""


def _flaw(record: Mapping[str, Any]) -> str | None:
    """Return why a row is none of a log; None if it is."""
    kind = record.get("kind")
    if not isinstance(kind, str) or kind not in _FIELDS:
        return f"its kind is {kind!r:.40}"
    for name, of in _FIELDS[kind].items():
        if type(record.get(name)) is not of:
            return f"its {name} is {record.get(name)!r:.40}"
    if kind == "slots" and not 0 < record["count"] <= MOST_SLOTS:
        return f"its count is {record['count']}"
    if kind == "heir" and record["of"] == record["process"]:
        return "it is its own heir"
    if kind == "process" and not record["identity"].keys() >= {"machine", "pid", "started"}:
        return f"its identity is {record['identity']!r:.40}"
    return None


class Processes:
    """The log, and this process in it; a context manager around the work."""

    def __init__(self, storage: BaseStorage, study: str, beat_s: float = BEAT_S, silent_s: float = SILENT_S) -> None:
        self._storage, self._study_name, self._name = storage, study, f"{study}/processes"
        self._beat_s, self._silent_s = beat_s, silent_s
        self._ended, self._token = threading.Event(), uuid.uuid4().hex
        self._beaten_s = time.time()
        self._heard: dict[int, tuple[int, float]] = {}

    def __enter__(self) -> Self:
        self._study = optuna.create_study(study_name=self._name, storage=self._storage, load_if_exists=True)
        self._study_id = self._storage.get_study_id_from_name(self._name)
        identity = {**this_process(), "token": self._token}
        _at_work.add(self._token)
        try:
            self._id = self._add({"kind": "process", "identity": identity}, TrialState.RUNNING)
            self.number = self._storage.get_trial(self._id).number
        except BaseException:
            _at_work.discard(self._token)
            raise
        self._beating = threading.Thread(target=self._beat, daemon=True, name="tuning beat")
        self._beating.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._beating.join()
        _at_work.discard(self._token)
        try:
            self._storage.set_trial_state_values(self._id, TrialState.COMPLETE, [0.0])
        except Exception as failure:
            # The error that ended the study matters more; other processes detect the end of this one.
            log.warning("this process could not record its end in the study's storage: %s", failure)

    def read(self) -> Log:
        """Return the present log.

        Raises:
            StudyError: another process has inherited from this one.
        """
        rows = Log.read(self._study.get_trials(deepcopy=False))
        if (heir := rows.owner(self.number)) != self.number:
            raise StudyError(
                f"This process was silent for {self._silent_s:.0f} s, and another one has taken over its trials "
                f"({rows.processes[heir]}): it stops here, and nothing is lost."
            )
        return rows

    def check(self) -> None:
        """Raise StudyError if another process has inherited from this one; read the log only if that is possible."""
        if abs(time.time() - self._beaten_s) > self._silent_s / 2:
            self.read()

    def take_slots(self, count: int) -> None:
        """Take the next slots of the study."""
        self._add({"kind": "slots", "count": count, "process": self.number})

    def take(self, what: str) -> None:
        """Claim a task by name; `read` shows whether another process was first."""
        self._add({"kind": "take", "what": what, "process": self.number})

    def check_told(self, num_trials: int, path: str) -> None:
        """Check that a study with trials has told its folder, so that none without its `study.json` becomes that.

        Args:
            num_trials: of the study. path: the folder of this process, for people.

        Raises:
            StudyError: an earlier version, which told none, began the study.
        """
        if num_trials > 0 and self.read().folder is None:
            raise StudyError(
                f"The storage has trials of the study {self._study_name!r}, which an earlier version "
                f"began, and {path} has no study.json, so it is not their folder: go on in the folder with their "
                f"checkpoints (--path, path=), or give this study another name."
            )

    def tell_folder(self, mark: str, path: str) -> None:
        """Tell the folder of this process; see that it is that of the study.

        Args:
            mark: of the folder, wherever it is moved. path: for people.

        Raises:
            OtherFolderError: the study began in another folder, where its trials' checkpoints lie.
            StudyError: the folder is a copy of the study's.
        """
        found = self.read().folder
        if found is None:
            self._add({"kind": "folder", "mark": mark, "path": path})
            found = self.read().folder
        assert found is not None
        if found[0] != mark and found[1] == path:
            raise OtherFolderError(
                f"The storage has the study {self._study_name!r} of {path}, but the folder there has lost its "
                f"study.json, or is another one, as where two machines have no shared disk: put that "
                f"back, give all machines a shared folder, or give this study another name."
            )
        if found[0] != mark:
            raise OtherFolderError(
                f"The storage has the study {self._study_name!r} of another folder, {found[1]}, and this is {path}: "
                f"go on with that one there (--path, path=), or give this one another name."
            )
        if found[1] != path:
            if is_copy(Path(path), Path(found[1]), mark):
                raise StudyError(
                    f"{path} is a copy of the study's folder, {found[1]}: go on with that one there (--path, path=); "
                    f"if this one is to take its place, move that one away first."
                )
            self._add({"kind": "folder", "mark": mark, "path": path})

    def inherit(self, rows: Log, owners: Iterable[int], *, warn: bool = True) -> bool:
        """Take over the work of the ended ones among these processes; return whether there were any."""
        ended = [
            process for process in sorted(set(owners)) if process != self.number and self._has_ended(rows, process)
        ]
        for process in ended:
            if warn:
                log.warning("taking over from process %s, which has ended", rows.processes[process]["pid"])
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

    def _add(self, record: dict[str, Any], state: TrialState = TrialState.COMPLETE) -> int:
        row = create_trial(state=state, value=0.0 if state.is_finished() else None, user_attrs=record)
        return self._storage.create_new_trial(self._study_id, row)

    def _beat(self) -> None:
        count = 0
        while not self._ended.wait(self._beat_s):
            count += 1
            try:
                self._storage.set_trial_user_attr(self._id, "beat", count)
                self._beaten_s = time.time()
            except Exception as error:
                # The next write reports a storage that stays away.
                log.debug("no beat: %s", error)


_STARTED = 19
"""Index of the start time in /proc/PID/stat, counted after the command's name."""


def here() -> str:
    """Return the scope of process ids: the machine, its last start, and the namespace of ids."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{socket.gethostname()} {boot} {os.stat('/proc/self/ns/pid').st_ino}"


_at_work: set[str] = set()
"""The tokens of the logs that are open in this process: its work on a study may end before it does."""


def this_process() -> dict[str, Any]:
    """Return the identity of this process for others."""
    return {"machine": here(), "pid": os.getpid(), "started": _started(os.getpid())}


def has_ended(identity: dict[str, Any]) -> bool | None:
    """Return whether that process has ended; None if it runs in another scope."""
    if identity["machine"] != here():
        return None
    if identity["pid"] == os.getpid() and identity.get("token", "") not in {*_at_work, ""}:
        # It could not record its end, because the storage was full for one.
        return True
    return bool(_started(identity["pid"]) != identity["started"])


def _started(pid: int) -> str | None:
    """Return the start time of the process, in ticks since the machine's start; None: it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else fields[_STARTED]
