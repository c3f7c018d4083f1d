"""Defines the errors of a study that are not errors of an experiment.

StudyError                  a study that cannot go on, or that has no result
├── StorageError            a storage that cannot be reached or opened
└── OtherFolderError        a study whose trials lie in another folder
"""

from __future__ import annotations

from raysim import RaysimError


class StudyError(RaysimError):
    """A study differs from the expected one, or has no result."""


class StorageError(StudyError):
    """The study's storage cannot be opened, or no longer answers."""


class OtherFolderError(StudyError):
    """The study began in another folder than this one."""
