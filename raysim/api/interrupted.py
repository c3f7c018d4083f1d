"""Says how interrupted work goes on, in the note of a KeyboardInterrupt: who sees it has a traceback or a notebook."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from raysim.errors import RaysimError
from raysim.run_folder import experiment_record, round_table
from raysim.storage.remote.folder import named, resume_call


@contextmanager
def noting(note: Callable[[], str]) -> Iterator[None]:
    """Add `note` to a KeyboardInterrupt inside the block, and raise it on: its traceback says what was going on."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        # A folder that cannot be read is an error of the next call, not of this one.
        with suppress(RaysimError):
            interrupt.add_note(note())
        raise


def note_of_run(path: Path) -> str:
    """Return after which round a run has stopped, and the call that continues it."""
    done = round_table.read_rounds(path).num_rows
    after = f"after round {done:,}" if done else "before the first round was finished"
    passed = experiment_record.stored_passed(path) if path.exists() else None
    return f"stopped {after}" + (
        f"; go on with: {resume_call(named(path), passed.names if passed else ())}" if path.exists() else ""
    )


def note_of_several(path: Path, call: str, passed: Iterable[str]) -> str:
    """Return the call that continues several runs; `call`: its name and first arguments. `passed`: parts' names."""
    arguments = "".join(f", {each}" for each in [f"path={named(path)!r}", "resume=True", *(f"{n}=..." for n in passed)])
    return "stopped among several runs" + (f"; go on with: {call}{arguments})" if path.exists() else "")
