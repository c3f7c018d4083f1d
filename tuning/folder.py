"""Claims a study's folder by its `study.json`, and clears unfinished folders of runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from raysim.run_folder.files import RECORD, STUDY
from raysim.storage import disk, inside, lock
from raysim.storage.atomic import write_text
from raysim.storage.reading import json_object
from tuning.errors import OtherFolderError, StudyError

_RUN = re.compile(r"seed-(0|[1-9]\d{0,8})", re.ASCII)


def check(folder: Path, storage: str, name: str) -> None:
    """Check that the folder belongs to no other study.

    Args:
        storage, name: the study's, for people; the storage is the same from every working directory.

    Raises:
        StudyError: the folder belongs to another study, which is named, or to a run.
    """
    if (folder / RECORD).exists():
        raise StudyError(f"{folder} is a run's folder: give the study another one (--path, path=).")
    file = folder / STUDY
    if not os.path.lexists(file):
        return
    kept = json_object(file, StudyError)
    if (kept.get("name"), kept.get("storage")) != (name, storage):
        raise StudyError(
            f"{folder} is the folder of the study {kept.get('name')!r} in {kept.get('storage')}, and this is {name!r} "
            f"in {storage}: give this one another folder (--path, path=)."
        )


@contextmanager
def opened(folder: Path, storage: str, name: str) -> Iterator[None]:
    """Make the folder, and check again that it belongs to no other study; others that begin there wait until the end.

    Raises:
        StudyError: as of `check`: another process has begun there meanwhile.
        DiskError: the folder cannot be made.
    """
    disk.make_folder(folder)
    with lock.in_turn(folder):
        check(folder, storage, name)
        yield


def check_links(folder: Path) -> None:
    """Check that no symbolic link leads out of a study's folder, whose runs are begun, replaced and removed.

    Raises:
        StudyError: one does; names it.
    """
    inside.check_links(folder, StudyError)


def claim(folder: Path, storage: str, name: str, identity: str) -> str:
    """Record that the folder belongs to this study; `identity`: digest of its settings; the others as for `check`.

    Returns:
        The folder's mark: drawn when it is first claimed, it goes where the folder is moved.
    """
    mark = _text_of(folder, "mark") or uuid.uuid4().hex
    text = json.dumps({"storage": storage, "name": name, "identity": identity, "mark": mark}, indent=2)
    write_text(folder / STUDY, text)
    return mark


@contextmanager
def released_if_refused(folder: Path) -> Iterator[None]:
    """Take back the first claim of the folder if the block, which claims it, raises an error.

    If the study has another folder, an older claim is taken back, too, unless the folder has trials.
    """
    is_new = not os.path.lexists(folder / STUDY)
    try:
        yield
    except StudyError as error:
        if is_new or (isinstance(error, OtherFolderError) and not trials_of(folder)):
            (folder / STUDY).unlink(missing_ok=True)
        raise


def is_claimed(folder: Path) -> bool:
    """Return whether the folder belongs to a study; `check` says which."""
    return os.path.lexists(folder / STUDY)


def is_copy(folder: Path, of: Path, mark: str) -> bool:
    """Return whether a folder with this mark is a copy of another one, which still has it, and not the same one."""
    file = of / STUDY
    return os.path.lexists(file) and not os.path.samefile(file, folder / STUDY) and _text_of(of, "mark") == mark


def identity_of(folder: Path) -> str | None:
    """Return the digest of the settings of the folder's study; None if the folder does not have it."""
    return _text_of(folder, "identity")


def _text_of(folder: Path, key: str) -> str | None:
    if not os.path.lexists(folder / STUDY):
        return None
    found = json_object(folder / STUDY, StudyError).get(key)
    return found if isinstance(found, str) else None


def read(folder: Path) -> tuple[str, str]:
    """Return name and storage of the study to which the folder belongs; see `check`.

    Raises:
        StudyError: it is not a study's folder, or its `study.json` is damaged.
    """
    file = folder / STUDY
    if not os.path.lexists(file):
        what = f"is a run's folder: raysim.read({str(folder)!r})" if (folder / RECORD).exists() else f"has no {STUDY}"
        raise StudyError(f"{folder} {what}." if folder.exists() else f"There is no folder {folder}.")
    record = json_object(file, StudyError)
    name, storage = record.get("name"), record.get("storage")
    if not isinstance(name, str) or not isinstance(storage, str):
        raise StudyError(
            f"{file} is damaged: name and storage must be texts, but are {name!r:.99} and {storage!r:.99}."
        )
    return name, storage


def trials_of(folder: Path) -> list[int]:
    """Return the numbers of the trials that have a folder with something in it, in a study's folder."""
    return sorted({int(run.parent.name) for run in (folder / "trials").glob("*/*") if run.parent.name.isdecimal()})


def runs_of(trial: Path) -> list[Path]:
    """Return the folders of a trial's runs, one for each seed; copies by a file manager ("seed-0 (copy)") are none."""
    if not trial.is_dir():
        return []
    numbered = {int(match[1]): run for run in trial.iterdir() if (match := _RUN.fullmatch(run.name))}
    return [numbered[place] for place in sorted(numbered)]


def way_out(has_storage: bool, has_folder: bool) -> str:
    """Return advice, a sentence, for a study whose storage has another study of the same name.

    Args:
        has_storage: whether the user chose the storage; else it is in the folder.
        has_folder: whether the user chose the folder; else it follows from the name.
    """
    if not has_storage:
        return f"Give this one another {'' if has_folder else 'name or '}folder (--path, path=)."
    return f"Give this one another name{', and a folder of its own (--path, path=)' if has_folder else ''}."


def clear_unfinished(run: Path, study: Path) -> None:
    """Remove an unfinished folder of a run in a study's: it has nothing to resume.

    Raises:
        StudyError: a symbolic link leads out of the study's folder.
    """
    inside.inside(study, run.relative_to(study).as_posix(), study, StudyError)
    if run.is_dir() and not (run / "experiment.json").exists():
        shutil.rmtree(run)
