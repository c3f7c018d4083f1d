"""Every error of a study that is not one of the experiment's.

StudyError                  a study that cannot go on, or that has nothing to say
└── StorageError            a storage that cannot be reached or opened
"""

from __future__ import annotations

from raysim import RaysimError


class StudyError(RaysimError):
    """A study is another one than was meant, or has no result."""


class StorageError(StudyError):
    """The study's storage cannot be opened, or no longer answers."""
