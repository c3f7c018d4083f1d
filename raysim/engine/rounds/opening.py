"""How a run comes by its folder: made anew, or gone on with; locked as long as the run writes to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from raysim.engine.plan.plan import Plan
from raysim.run_folder import records
from raysim.run_folder.writer import RunFolder
from raysim.server.state import ServerState
from raysim.storage import lock
from raysim.storage.remote.folder import named


class Opening(NamedTuple):
    """What to do with the folder at `path`.

    done: the rounds that it holds a checkpoint of, to go on from; None makes it anew. overwrite: then, what is there
    may be removed. profile: write the timeline.
    """

    path: Path
    done: int | None = None
    overwrite: bool = False
    profile: bool = False

    @property
    def named(self) -> str:
        """The folder as people name it: by its URI, where it has one."""
        return named(self.path)

    def absolute(self) -> Opening:
        """The same for a process that works in another folder."""
        return self._replace(path=self.path.absolute())


@contextmanager
def opened(plan: Plan, opening: Opening, run: str | None = None) -> Iterator[tuple[RunFolder, ServerState | None]]:
    """The run's folder, and the state to go on from; None before the first round.

    Args:
        plan: the run.
        opening: its folder.
        run: by which name it can be attached to.

    Raises:
        RunFolderError: another process writes to the folder; or it is there already, or is something else.
    """
    path, experiment = opening.path, plan.experiment
    with lock.locked(path, run):
        if opening.done is None:
            RunFolder.create(path, experiment, plan.fingerprint, opening.overwrite, plan.dataset.fingerprint)
        else:
            records.write_experiment(path, experiment, plan.fingerprint, plan.dataset.fingerprint)
        yield RunFolder.reopen(path, experiment, opening.profile)
