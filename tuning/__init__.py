"""Tunes federated experiments on held-out clients.

Uses raysim's public names, and those modules of raysim that the import contract in pyproject.toml lists.
"""

import warnings

with warnings.catch_warnings():
    # In a kernel without ipywidgets the bar of Optuna, which raysim does not show, asks for them.
    warnings.filterwarnings("ignore", "IProgress not found")
    import optuna  # noqa: F401

from tuning.closing import lines, preview
from tuning.errors import StorageError, StudyError
from tuning.evolution import Evolution, evolve
from tuning.evolution import lines as evolution_lines
from tuning.proxy.picture import write as write_proxy
from tuning.proxy.study import ProxyStudy, proxy
from tuning.proxy.study import lines as proxy_lines
from tuning.recorded import read
from tuning.result import Configuration, Study
from tuning.section import TuningSection, section_of
from tuning.study import tune
from tuning.study_plan import default_folder
from tuning.table.compare import TunerComparison, compare
from tuning.table.file import read as read_table
from tuning.table.grid_study import make as make_table
from tuning.table.picture import write as write_comparison
from tuning.table.record import PublishedTable
from tuning.table.study import tune_on

__all__ = [
    "Configuration",
    "Evolution",
    "ProxyStudy",
    "PublishedTable",
    "StorageError",
    "Study",
    "StudyError",
    "TunerComparison",
    "TuningSection",
    "compare",
    "default_folder",
    "evolution_lines",
    "evolve",
    "lines",
    "make_table",
    "preview",
    "proxy",
    "proxy_lines",
    "read",
    "read_table",
    "section_of",
    "tune",
    "tune_on",
    "write_comparison",
    "write_proxy",
]
