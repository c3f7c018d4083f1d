"""Knows whether a descriptor is still the file's that raysim opened.

A script may close all its files (`os.closerange`, as daemons do). Files that it opens later have the numbers again: who
then closes a number, or writes to it, does so to a file of the script's.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Descriptor:
    """A file that raysim has opened; file: its device and inode.

    >>> opened = Descriptor.of(os.open(os.devnull, os.O_RDONLY))
    >>> opened.is_open, opened.close(), opened.is_open
    (True, None, False)
    """

    number: int
    file: tuple[int, int]

    @classmethod
    def of(cls, number: int) -> Descriptor:
        """Return that of a file that is open now."""
        return cls(number, which(number))

    @property
    def is_open(self) -> bool:
        """Whether the number is still this file's."""
        try:
            return which(self.number) == self.file
        except OSError as error:
            # A network disk that does not answer says nothing of the number.
            return error.errno != errno.EBADF

    def close(self) -> None:
        """Close the file, if it is open."""
        if self.is_open:
            os.close(self.number)


def which(file: int | Path) -> tuple[int, int]:
    """Return device and inode of the file that has this number, or lies there."""
    found = os.stat(file)
    return found.st_dev, found.st_ino
