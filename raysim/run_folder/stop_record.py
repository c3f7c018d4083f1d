"""Knows why a run has stopped: stopped.json, and the same from its rows."""

from __future__ import annotations

import pyarrow as pa

from raysim.experiment import stopping
from raysim.experiment.experiment import Experiment
from raysim.experiment.stopping import StopReason

STOPPED = "stopped.json"
"""Why `[stop]` ended the run; a run that went on to its last round has none.

It is for other programs: raysim does not read it. A killed process leaves one that the rows, written later, do not say
yet, or say no more; the next start removes it, and the run that stops again writes it again.
"""


def stop_reason(experiment: Experiment, rounds: pa.Table) -> StopReason | None:
    """Return why a run with these rows has stopped; None if it has not."""
    if not stopping.may_stop(experiment):
        return None
    known = [name for name in stopping.columns(experiment.stop) if name in rounds.column_names]
    return stopping.after_all(experiment, rounds.select(known).to_pylist()).stopped
