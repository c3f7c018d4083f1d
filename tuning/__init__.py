"""Tunes federated experiments on held-out clients. Uses the public names of raysim only."""

from tuning.closing import lines, preview
from tuning.errors import StorageError, StudyError
from tuning.result import Configuration, Study
from tuning.section import TuningSection, section_of
from tuning.study import default_folder, tune

__all__ = [
    "Configuration",
    "StorageError",
    "Study",
    "StudyError",
    "TuningSection",
    "default_folder",
    "lines",
    "preview",
    "section_of",
    "tune",
]
