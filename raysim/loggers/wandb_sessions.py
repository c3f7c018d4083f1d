"""Reads which rounds earlier sessions of Weights & Biases have left in a run's folder.

A session writes its records to one file, in LevelDB's log format, behind a header of 7 bytes. Blocks of 32 KiB hold
parts; each has a header: checksum (4 bytes), length (2), and kind (1): whole, first, middle or last. Whole blocks reach
the disk, so the file of a session that is killed lacks its newest records.
"""

from __future__ import annotations

import glob
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from wandb.proto.wandb_internal_pb2 import HistoryRecord, Record

HEADER, BLOCK = 7, 32_768

WHOLE, LAST = 1, 4
"""Kinds of parts with which a record ends."""

STEP = "_step"
"""The service's name for the step of logged figures."""

OFFLINE = "offline-"
"""How the folder's name of a session begins that a user sends later."""


class Left(NamedTuple):
    """What sessions have left.

    rounds: rounds before this one are in files of sessions that have closed, or that a user sends. is_finished: the
    newest session closed without an error.
    """

    rounds: int
    is_finished: bool


def left_by(folder: Path, identity: str) -> Left:
    """Return what the sessions of the run with this id have left in the service's folder."""
    rounds, is_finished = 0, False
    escaped = glob.escape(identity)
    files = folder.glob(f"*run-*-{escaped}*/run-{escaped}.wandb")
    # A folder's name has the second of the session's start, and a number behind the id if there is one already.
    for file in sorted(files, key=lambda file: file.parent.name.removeprefix(OFFLINE)):
        session = list(records(file.read_bytes()))
        codes = [record.exit.exit_code for record in session if record.WhichOneof("record_type") == "exit"]
        if codes or file.parent.name.startswith(OFFLINE):
            steps = [_step(record.history) for record in session if record.WhichOneof("record_type") == "history"]
            rounds = max([rounds, *(step + 1 for step in steps)])
        is_finished = codes == [0]
    return Left(rounds, is_finished)


def _step(history: HistoryRecord) -> int:
    return max(
        int(json.loads(item.value_json)) for item in history.item if STEP in (item.key, "/".join(item.nested_key))
    )


def records(content: bytes) -> Iterator[Record]:
    """Yield the whole records of a session's file."""
    from wandb.proto.wandb_internal_pb2 import Record

    place, record = HEADER, b""
    while place + HEADER <= len(content):
        if BLOCK - place % BLOCK < HEADER:
            place += BLOCK - place % BLOCK
            continue
        length, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        place += HEADER
        if place + length > len(content):
            return
        record += content[place : place + length]
        place += length
        if kind in (WHOLE, LAST):
            yield Record.FromString(record)
            record = b""
