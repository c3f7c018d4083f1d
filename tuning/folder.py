"""Claims a study's folder by `study.json`, and clears folders of runs that were never finished being made."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from raysim.storage.atomic import write_text
from tuning.errors import StudyError

FILE = "study.json"


def check(folder: Path, storage: str, name: str) -> None:
    """See that the folder is of no other study.

    Args:
        storage, name: the study's, as people read them; the storage is the same from every working directory.

    Raises:
        StudyError: it is another one's; says whose.
    """
    file = folder / FILE
    if not file.exists():
        return
    kept = json.loads(file.read_text(encoding="utf-8"))
    if kept != _identity(storage, name):
        raise StudyError(
            f"{folder} is the folder of the study {kept['name']!r} in {kept['storage']}, and this is {name!r} in "
            f"{storage}: give this one another folder (--path, path=)."
        )


def claim(folder: Path, storage: str, name: str) -> None:
    """Say that the folder is this study's; arguments as for `check`."""
    text = json.dumps(_identity(storage, name), indent=2)
    write_text(folder / FILE, text)


def way_out(has_storage: bool, has_folder: bool) -> str:
    """What to change where a study's storage has another one of its name, as a sentence.

    Args:
        has_storage: whether its storage was given; else it lies in its folder.
        has_folder: whether its folder was given; else it goes by its name.
    """
    if not has_storage:
        return f"Give this one another {'' if has_folder else 'name or '}folder (--path, path=)."
    return f"Give this one another name{', and a folder of its own (--path, path=)' if has_folder else ''}."


def _identity(storage: str, name: str) -> dict[str, str]:
    return {"storage": storage, "name": name}


def clear_half_made(run: Path) -> None:
    """Remove a run's folder that was never finished being made: there is nothing in it to go on with."""
    if run.is_dir() and not (run / "experiment.json").exists():
        shutil.rmtree(run)
