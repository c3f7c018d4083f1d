"""The client states of a run that was recorded."""

from __future__ import annotations

from pathlib import Path

from raysim.run_folder import experiment_record
from raysim.run_folder.client_states import ClientStore


def states_of(run: Path) -> ClientStore:
    return ClientStore(run / "client_state", None, str, experiment_record.stored_owner(run))
