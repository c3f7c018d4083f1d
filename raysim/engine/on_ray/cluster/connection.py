"""Knows whether the connection to Ray that a run uses is still there: a script may end it, and may begin another."""

from __future__ import annotations

import ray

from raysim.errors import ResourceError
from raysim.storage.remote.folder import resume_command


class Connection:
    """The connection to Ray that this process has when this is made."""

    def __init__(self) -> None:
        self._identity = _identity()

    @property
    def lives(self) -> bool:
        """Whether it is this process's connection still."""
        return self._identity is not None and _identity() == self._identity

    def check(self, run_folder: str | None = None) -> None:
        """Raise ResourceError if the script has ended it: Ray's next call would start a Ray, or ask another one.

        `run_folder`: of the run that uses it, as people name it; None if there is none, or it is not known.
        """
        if not self.lives:
            resumed = "" if run_folder is None else resume_command(run_folder)
            advice = f" What the run had checkpointed can be resumed: {resumed}." if resumed else ""
            raise ResourceError(
                f"This script has ended its connection to Ray (ray.shutdown()) while a run used it.{advice} Call "
                f"ray.shutdown() when the run, or the loop over its rounds, has ended."
            )

    def end(self) -> None:
        """End it, unless the script has; a connection that the script has begun since then stays."""
        if self.lives or not ray.is_initialized():
            ray.shutdown()


def _identity() -> tuple[str, str] | None:
    """Return the connection's node and job: each Ray has nodes of its own, and counts its connections as jobs."""
    if not ray.is_initialized():
        return None
    context = ray.get_runtime_context()
    return context.get_node_id(), context.get_job_id()
