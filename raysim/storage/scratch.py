"""Makes temporary folders, for files that nobody needs after this process."""

from __future__ import annotations

import atexit
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

from raysim.errors import DiskError


@contextmanager
def scratch_folder(prefix: str = "raysim-") -> Iterator[Path]:
    """Yield a new temporary folder; it is deleted at the end of the block, or with this process.

    A process that is forked in the block leaves it to this one, however it ends.

    Raises:
        DiskError: it cannot be made.
    """
    try:
        folder = Path(mkdtemp(prefix=prefix))
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise DiskError(
            f"A temporary folder cannot be made: {error.strerror}{where}. Set TMPDIR to a folder that takes files."
        ) from error
    remove = partial(_remove, folder, os.getpid())
    atexit.register(remove)
    try:
        yield folder
    finally:
        atexit.unregister(remove)
        remove()


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
