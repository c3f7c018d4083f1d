"""Binds the parts that a script passes to the sections of the experiment that say so."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any, NamedTuple, Unpack

from raysim.config.own_part import (
    OwnAggregator,
    OwnClientOptimizer,
    OwnCorrection,
    OwnMetric,
    OwnObjective,
    OwnPart,
    OwnSampler,
    OwnSection,
    OwnServerOptimizer,
    OwnTransform,
    OwnWeighting,
)
from raysim.config.section import Section, replaced
from raysim.engine.parts import Parts
from raysim.errors import ExperimentError
from raysim.experiment import compatibility, metric_columns
from raysim.experiment.experiment import Experiment


class Place(NamedTuple):
    """Where an experiment says that a part is a script's own: a key of a table, and the section that says it."""

    table: str
    key: str
    own: type[OwnSection]


PLACES = (
    Place("client", "objective", OwnObjective),
    Place("client", "correction", OwnCorrection),
    Place("client", "optimizer", OwnClientOptimizer),
    Place("client", "transform", OwnTransform),
    Place("cohort", "sampler", OwnSampler),
    Place("server", "aggregator", OwnAggregator),
    Place("server", "weighting", OwnWeighting),
    Place("server", "optimizer", OwnServerOptimizer),
)


def bound(experiment: Experiment, **parts: Unpack[Parts]) -> Experiment:
    """Return the experiment whose sections of a script's own parts have what was passed.

    Where the experiment says nothing of a part that is passed, it gets a section without constants.

    Raises:
        ExperimentError: a part is passed where the experiment says another choice, or is not passed where it says
            "own"; or parts that are not defined together.
    """
    tables: dict[str, dict[str, Any]] = {}
    for place in PLACES:
        section, passed = getattr(experiment, place.table), parts.get(place.own.KEYWORD)
        if (value := _bound(place, section, passed)) is not getattr(section, place.key):
            tables.setdefault(place.table, {})[place.key] = value
    if (metrics := _metrics(experiment.evaluation.metrics, parts.get("metrics"))) != experiment.evaluation.metrics:
        tables["evaluation"] = {"metrics": metrics}
    if not tables:
        return experiment
    update = {name: replaced(getattr(experiment, name), **keys) for name, keys in tables.items()}
    experiment = replaced(experiment, **update)
    server = compatibility.with_usual_weighting(experiment.server, experiment.client, experiment.cohort)
    experiment = replaced(experiment, server=server)
    if refused := list(experiment.refusals()):
        raise ExperimentError(f"{'; '.join(refused)}.")
    # The copies above were not checked by the rules of their tables, which check what the run's record says.
    Experiment.model_validate(json.loads(experiment.to_json()))
    return experiment


def _bound(place: Place, section: Section, passed: Any) -> Any:
    """The value of the key, with what was passed."""
    chosen = getattr(section, place.key)
    if isinstance(chosen, tuple):
        return _each_bound(place, chosen, passed)
    if isinstance(chosen, OwnPart):
        if passed is None:
            raise ExperimentError(
                f"{place.table}.{place.key}.name = 'own' is a part that a script passes as {place.own.KEYWORD}=, but "
                f"none was passed. Call raysim.run, raysim.resume and so on from the script that has it."
            )
        return chosen.bound(passed)
    if passed is None:
        return chosen
    if place.key in section.model_fields_set and chosen is not None:
        name = chosen if isinstance(chosen, str) else getattr(chosen, "name", chosen)
        raise ExperimentError(
            f"{place.own.KEYWORD}= was passed, so {place.table}.{place.key}.name must be 'own' or be left out, but got "
            f"{name!r}: experiment.changed({{'{place.table}.{place.key}': {{'name': 'own', ...}}}}) chooses it, with "
            f"its keys and constants in place of the dots."
        )
    return place.own().bound(passed)


def _each_bound(place: Place, sections: tuple[Any, ...], passed: Any) -> tuple[Any, ...]:
    """The list of sections, those of the script's own with what was passed, in order."""
    # A record of functions is a tuple, but one part.
    several = isinstance(passed, Sequence) and not hasattr(passed, "_fields")
    parts = list(passed) if several else [] if passed is None else [passed]
    sections = sections or tuple(place.own() for _ in parts)
    own_parts = [each for each in sections if isinstance(each, OwnPart)]
    if len(own_parts) != len(parts):
        raise ExperimentError(
            f"{place.table}.{place.key} has {len(own_parts)} of name = 'own', which a script passes as "
            f"{place.own.KEYWORD}=, but {len(parts)} were passed."
        )
    if None in parts:
        raise ExperimentError(f"{place.own.KEYWORD}= must be functions, but the list has None.")
    left = iter(parts)
    return tuple(each.bound(next(left)) if isinstance(each, OwnPart) else each for each in sections)


def _metrics(sections: tuple[Section, ...], passed: Any) -> tuple[Section, ...]:
    """The metrics, those of the script with what was passed under their names; the last are those of no section."""
    if not isinstance(passed, Mapping | NoneType):
        raise ExperimentError(f"metrics= must be a mapping from names to functions, but got {type(passed).__name__}.")
    left = dict(passed or {})
    if nothing := [name for name, metric in left.items() if metric is None]:
        raise ExperimentError(f"metrics= must map names to functions, but {', '.join(map(repr, nothing))} is None.")
    if misnamed := [name for name in left if not metric_columns.is_name(name)]:
        raise ExperimentError(f"metrics=: {metric_columns.rule(misnamed[0])}.")
    missing = [each.label for each in sections if isinstance(each, OwnMetric) and each.label not in left]
    if missing:
        names = ", ".join(map(repr, missing))
        raise ExperimentError(
            f"evaluation.metrics has {names} of name = 'own', which a script passes as metrics=, but none of that name "
            f"was passed."
        )
    bound = [each.bound(left.pop(each.label)) if isinstance(each, OwnMetric) else each for each in sections]
    bound += [OwnMetric(label=name).bound(metric) for name, metric in left.items()]
    if refused := list(metric_columns.refusals(bound)):
        raise ExperimentError(f"metrics=: {'; '.join(refused)}.")
    return tuple(bound)
