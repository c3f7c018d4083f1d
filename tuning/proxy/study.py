"""Evaluates the configurations of a study by another experiment: rank correlation, and regret of the choice."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from raysim import Experiment
from raysim.config.counted import counted
from raysim.config.ipython import as_printed
from raysim.report.closing import Line
from raysim.report.ties import levelled
from raysim.storage.remote.uri import check_is_path
from tuning import study_plan, trials_file
from tuning.errors import StudyError
from tuning.objective import Objective
from tuning.result import Study
from tuning.study import tune
from tuning.table.record import PublishedTable
from tuning.table.study import tune_on
from tuning.trials_file import Tried
from tuning.writing import figure, settings

log = logging.getLogger("raysim")

NOT_OF_A_PROXY = ("sampler", "pruner", "trials", "budget")
"""Keys of `[tuning]` that would end trials, or choose them."""

OF_A_SEARCH = ("space", "final", *NOT_OF_A_PROXY)
"""Keys of `[tuning]` that say how configurations are found, which are given here."""


@dataclass(frozen=True)
class ProxyStudy:
    """The configurations of a study, the proxy, on other data.

    proxy: the study's folder. objective: its. study: of the same configurations on the other data. tried: as the proxy
    has them, the best first. here: what each is worth on the other data; None if it has no value there. correlation: of
    the ranks, after Spearman; those without a value are last; None if all are alike. best: the place in `tried` of the
    best on the other data. regret: how much worse the proxy's best is there; None if it has no value. `print` and a
    notebook show the table of `raysim proxy`, a notebook also the pictures that were written.
    """

    proxy: Path
    objective: Objective = field(repr=False)
    study: Study = field(repr=False)
    tried: tuple[Tried, ...] = field(repr=False)
    here: tuple[float | None, ...] = field(repr=False)
    correlation: float | None
    best: int
    regret: float | None

    def __str__(self) -> str:
        from raysim.report.closing import text

        return text(lines(self))

    _repr_pretty_ = as_printed

    def _repr_html_(self) -> str:
        from raysim.report import notebook

        return notebook.html_of_folder(lines(self), self.study.path)


def proxy(
    folder: Path,
    experiment: Experiment,
    *,
    top: int | None = None,
    path: Path | None = None,
    table: PublishedTable | None = None,
    **how: Any,
) -> ProxyStudy:
    """Evaluate the finished trials of a study's folder by another experiment, with the protocol of its `[tuning]`.

    A second call goes on where the first one stopped.

    Args:
        top: only so many of the best. path: the folder of the evaluations, by default `runs/<name>-proxy`.
        table: read the evaluations from it, in place of training. how: as for `tune`: executor, parts, keys.

    Raises:
        StudyError: the folder has fewer than two finished trials, or is of no study; or none finishes here.
        ExperimentError: the experiment does not have a key or does not take a value of the study.
    """
    check_is_path(folder, "The study's folder", StudyError)
    experiment, how = study_plan.entered(experiment, how)
    where = path or Path("runs") / f"{experiment.name}-proxy"
    check_is_path(where, "The folder of the evaluations (--path, path=)", StudyError)
    objective, every = trials_file.read(folder)
    tried = tuple(every[:top])
    if len(tried) < 2:
        raise StudyError(
            f"{folder} has {counted(len(every), 'finished trial')}, of which {len(tried)} would be tried, but a "
            f"comparison needs two: take more."
        )
    for remark in _remarks(experiment, folder):
        log.warning("%s", remark)
    asked = experiment.changed({"tuning": {**_protocol(experiment), **_search_keys(tried)}})
    found = tune(asked, path=where, **how) if table is None else tune_on(asked, table, path=where, **how)
    # Trials are in the order of their slots, which is that of the configurations.
    here = tuple(found.trials["value"].to_pylist())
    sign, of_proxy = (1 if each.is_maximised else -1 for each in (found.objective, objective))
    good = np.array([-np.inf if value is None else sign * value for value in here])
    best = int(good.argmax())
    return ProxyStudy(
        folder,
        objective,
        found,
        tried,
        here,
        correlation=_correlation([of_proxy * each.value for each in tried], good.tolist()),
        best=best,
        regret=None if here[0] is None else float(good[best] - good[0]),
    )


def _remarks(experiment: Experiment, folder: Path) -> Iterator[str]:
    """Yield a sentence for keys that are set, and that the study of the configurations does not have."""
    if unused := [f"tuning.{key}" for key in NOT_OF_A_PROXY if key in (experiment.tuning or {})]:
        yield (
            f"raysim proxy does not use {', '.join(unused)}: it tries the configurations of {folder}, each to the last "
            f"round"
        )


def _protocol(experiment: Experiment) -> dict[str, Any]:
    return {key: value for key, value in (experiment.tuning or {}).items() if key not in OF_A_SEARCH}


def _search_keys(tried: Sequence[Tried]) -> dict[str, Any]:
    """Return the keys of a section that tries these configurations."""
    values: dict[str, list[Any]] = {}
    for each in tried:
        for key, value in each.values.items():
            values.setdefault(key, [])
            if value not in values[key]:
                values[key].append(value)
    return {
        "space": {key: {"choices": listed} for key, listed in values.items()},
        "sampler": {"name": "listed", "configurations": [dict(each.values) for each in tried]},
        "final": 0,
    }


def lines(found: ProxyStudy) -> list[Line]:
    """Return the lines that `raysim proxy` prints."""
    here = found.study.objective
    none = sum(value is None for value in found.here)
    outcomes = f", {none} without a value here" if none else ""
    correlation = "undefined: all are alike" if found.correlation is None else f"{found.correlation:.2f} (Spearman)"
    return [
        ("proxy", f"{found.proxy}, by {found.objective.label}"),
        ("here", f"{found.study.name}, by {here.label}"),
        ("configurations", f"{len(found.tried):,}{outcomes}"),
        ("rank correlation", correlation),
        ("chosen by proxy", _written(found, 0)),
        ("best here", _written(found, found.best)),
        ("regret", "unknown: the choice has no value here" if found.regret is None else figure(here, found.regret)),
        *(("written", str(file)) for name in ("proxy.csv", "proxy.png") if (file := found.study.path / name).exists()),
    ]


def _written(found: ProxyStudy, place: int) -> str:
    value, one = found.here[place], found.tried[place]
    here = "no value" if value is None else figure(found.study.objective, value)
    return f"{settings(one.values)}: {here} here, {figure(found.objective, one.value)} by proxy (trial {one.number})"


def _correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Return Spearman's correlation; None if all numbers of one side are equal, but for rounding."""
    from scipy.stats import rankdata  # slow to import

    sides = [levelled(side, max(map(abs, filter(math.isfinite, side)), default=0.0)) for side in (one, other)]
    if any(len(set(side.tolist())) < 2 for side in sides):
        return None
    return float(np.corrcoef(*map(rankdata, sides))[0, 1])
