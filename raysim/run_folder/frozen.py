"""Writes the frozen parameters of a run's model once, beside its checkpoints, which hold all that changes.

So a folder holds the whole model, and says which frozen values a continuation lacks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from raysim.errors import RunFolderError
from raysim.run_folder.experiment_record import stored_fingerprint
from raysim.storage import atomic, sealed
from raysim.storage.reading import parsing, regular

FILE = "frozen.safetensors"

_OWNER = "fingerprint"
"""Key of the metadata that has the run's fingerprint."""

MOST_NAMED = 3
"""Parameters in a message."""


def write(path: Path, constants: Mapping[str, Tensor], fingerprint: str) -> None:
    """Write the frozen parameters into a run's folder, unless they are there; without any there is no file.

    Args:
        path: the folder. constants: the parameters by name. fingerprint: the run's.

    Raises:
        DiskError: the disk is full, or the folder cannot be written.
    """
    file = path / FILE
    if constants and not file.exists():
        with atomic.aside(
            file, flushed=True, needed_bytes=sum(tensor.nbytes for tensor in constants.values())
        ) as aside:
            aside.touch()
            usual = aside.stat().st_mode
            save_file(dict(constants), aside, {"checksum": sealed.BLANK, _OWNER: fingerprint})
            # Only the owner may read it.
            aside.chmod(usual)
            sealed.seal(aside)


def read(path: Path) -> dict[str, Tensor]:
    """Read the frozen parameters of a folder's run.

    Raises:
        RunFolderError: the file is damaged, or says that it is another run's.
    """
    file = path / FILE
    if not file.exists():
        return {}
    regular(file, RunFolderError)
    sealed.check(file, RunFolderError, "Delete it: a resumed run writes it anew.")
    with parsing(file, "a safetensors file", RunFolderError), safe_open(file, framework="pt") as opened:
        owner = (opened.metadata() or {}).get(_OWNER)
        found = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    # Earlier versions' do not tell whose they are.
    if owner is not None and owner != (fingerprint := stored_fingerprint(path)):
        raise RunFolderError(
            f"{file} belongs to a run with fingerprint {owner}, but this folder's has {fingerprint}: put back its own "
            f"file, or delete it: a resumed run writes it anew."
        )
    return found


def other_values(path: Path, constants: Mapping[str, Tensor]) -> list[str]:
    """Return which frozen parameters have other values than in the folder's run: a clause, or none."""
    stored = read(path)
    both = [name for name in stored if name in constants and not _is_same(stored[name], constants[name])]
    return _clause("frozen parameter", both, "has other values", "have other values")


def otherwise_frozen(path: Path, constants: Mapping[str, Tensor]) -> list[str]:
    """Return which parameters are frozen now, and were not in the folder's run, or the other way: a clause each."""
    stored = read(path)
    freed, new = [n for n in stored if n not in constants], [n for n in constants if n not in stored]
    return [
        *_clause("parameter", freed, "was frozen, and is not now", "were frozen, and are not now"),
        *_clause("parameter", new, "is frozen now, and was not", "are frozen now, and were not"),
    ]


def _clause(what: str, names: Sequence[str], of_one: str, of_several: str) -> list[str]:
    """Return a clause about these parameters, which names the first; none, if there are none."""
    if not names:
        return []
    first = ", ".join(map(repr, sorted(names)[:MOST_NAMED]))
    if len(names) == 1:
        return [f"the {what} {first} {of_one}"]
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return [f"the {what}s {first}{more} {of_several}"]


def _is_same(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)
