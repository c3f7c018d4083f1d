"""Defines the keywords that pass a script's parts, once for all functions that take them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from types import MappingProxyType
from typing import ParamSpec, TypedDict, TypeVar

import numpy.typing as npt

from raysim.client.corrections.correction import Correction
from raysim.client.objective import Objective
from raysim.client.optimizers.optimizer import ClientOptimizer
from raysim.client.transform import Transform
from raysim.cohort.sampler import CohortAt, Sampler
from raysim.config.call_advice import name_of_call
from raysim.config.flag import check_choice, check_flag
from raysim.config.messages import deeper, nearest
from raysim.config.own_part import (
    OwnAggregator,
    OwnClientOptimizer,
    OwnCorrection,
    OwnSampler,
    OwnServerOptimizer,
    OwnTransform,
)
from raysim.data import lent_rows
from raysim.data.dataset import FederatedDataset
from raysim.errors import ExperimentError
from raysim.evaluation.metric import Metrics
from raysim.experiment.experiment import Experiment, check_kind
from raysim.models.model import ModuleFactory
from raysim.models.task import Loss
from raysim.server.aggregators.rule import Rule
from raysim.server.optimizers.optimizer import ServerOptimizer
from raysim.server.weighting import Weighting

P = ParamSpec("P")
R = TypeVar("R")


class Parts(TypedDict, total=False):
    """The parts that a script passes beside the experiment, as keywords; the default is None.

    dataset, model, loss: stand in for `[data]`, `[model]` and the task's loss. `model` returns a new
        torch.nn.Module, whose trained parameters and floating buffers are held as `engine.dtype`; `loss(outputs,
        targets)` returns one loss per example, shape (batch,).
    params: initial values by name, for every trainable parameter, and any frozen ones and buffers; a list of them, one
        for each cluster.
    objective: `fn(module, x, y, at)` returns the losses of a batch, shape (batch,); see `raysim.ObjectiveAt`.
    correction: `make(section)` returns a `raysim.Correction`.
    client_optimizer: `make(section)` returns a `raysim.ClientOptimizer`.
    transform: `make(section)` returns a `raysim.Transform`; or a list of such functions, applied in this order.
    sampler: `make(section)` returns a `raysim.Sampler`; or `fn(at)` returns the positions of a cohort; see
        `raysim.CohortAt`.
    aggregator: a `raysim.Coordinatewise` or `raysim.Coefficients`; or `make(section)` returns one.
    weighting: `fn(facts)` returns the weight of one client; see `raysim.ClientFacts`.
    server_optimizer: `make(section)` returns a `raysim.server.ServerOptimizer`.
    metrics: by name, `fn(outputs, targets)` returns one figure per example, shape (batch,); or a `raysim.Metric`.

    raysim calls `make` with the section of the experiment that has name = "own"; if there is none, with a section
    without constants.
    """

    dataset: FederatedDataset | None
    model: ModuleFactory | None
    loss: Loss | None
    params: Mapping[str, npt.ArrayLike] | Sequence[Mapping[str, npt.ArrayLike]] | None
    objective: Objective | None
    correction: Callable[[OwnCorrection], Correction] | None
    client_optimizer: Callable[[OwnClientOptimizer], ClientOptimizer] | None
    transform: Callable[[OwnTransform], Transform] | Sequence[Callable[[OwnTransform], Transform]] | None
    sampler: Callable[[OwnSampler], Sampler] | Callable[[CohortAt], npt.ArrayLike] | None
    aggregator: Rule | Callable[[OwnAggregator], Rule] | None
    weighting: Weighting | None
    server_optimizer: Callable[[OwnServerOptimizer], ServerOptimizer] | None
    metrics: Metrics | None


_DATASET = (
    (FederatedDataset,),
    "a raysim.FederatedDataset: FederatedDataset.from_clients(clients) makes one, FederatedDataset.open(path) opens "
    "one",
)

KINDS: Mapping[str, tuple[tuple[type, ...], str]] = MappingProxyType(
    {
        "dataset": _DATASET,
        "data": _DATASET,
        "path": ((str, PathLike), "a folder's path or URI"),
    }
)
"""What arguments of these names are, for a call and its message."""

MEANT: Mapping[str, str] = MappingProxyType(
    {
        "optimizer": "client_optimizer= or server_optimizer=",
        "data": "dataset=",
        "network": "model=",
        "net": "model=",
        "criterion": "loss=",
        "loss_fn": "loss=",
        "folder": "path=",
        "strategy": "aggregator=, weighting=, server_optimizer= or correction=",
    }
)
"""Words that people use for keywords, as a hint names these."""


def takes_parts(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function of `**parts: Unpack[Parts]`: signature and help show each part; other keywords are refused.

    At its end, rows of a dataset that were changed meanwhile are warned of.

    Raises:
        TypeError: a call has an unknown keyword, which the error names with the nearest one; or more by position.
        ExperimentError: a call has something else in the place of the experiment, the dataset, a path or a truth value.
    """
    signature = inspect.signature(function)
    named = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    kinds = {name: getattr(kind, "__forward_arg__", kind) for name, kind in Parts.__annotations__.items()}
    parts = [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=k) for n, k in kinds.items()]
    allowed = {each.name for each in (*named, *parts)}
    flags = [each.name for each in named if each.annotation == "bool"]
    choices = [each.name for each in named if each.annotation == "bool | None"]
    required = {each.name for each in named if each.default is inspect.Parameter.empty}
    by_place = [each.name for each in named if each.kind is not inspect.Parameter.KEYWORD_ONLY]
    names = ", ".join(name for name in by_place if name != "self")
    by_name = ", ".join(each.name for each in named if each.name != "self")
    called = name_of_call(function)

    @functools.wraps(function)
    def checked(*args: P.args, **keywords: P.kwargs) -> R:
        for name in keywords.keys() - allowed:
            hint = f" (did you mean {MEANT[name]}?)" if name in MEANT else nearest(name, sorted(allowed)) or _key(name)
            hint = hint or f": beside the parts it takes {by_name}"
            raise TypeError(f"{called}() got an unexpected keyword argument {name!r}{hint}")
        if len(args) > len(by_place):
            hint = ': a key is set before, as experiment.changed({"trials.count": 3}) does' * ("experiment" in by_place)
            raise TypeError(
                f"{called}() takes {names} by position and all else by name, but got more by position{hint}"
            )
        try:
            given = signature.bind(*args, **keywords).arguments
        except TypeError as error:
            raise TypeError(f"{called}() {error}: it takes {names} by position.") from None
        if "experiment" in signature.parameters:
            check_kind(given.get("experiment"))
        for name, (kinds, wanted) in KINDS.items():
            value = given.get(name, keywords.get(name))
            is_empty = isinstance(value, str) and not value
            if is_empty or (not isinstance(value, kinds) and (value is not None or name in required)):
                got = "None" if value is None else "an empty text" if is_empty else type(value).__name__
                raise ExperimentError(f"{name} must be {wanted}, but got {got}.")
        for name in flags:
            check_flag(name, given.get(name, False))
        for name in choices:
            check_choice(name, given.get(name))
        result = function(*args, **keywords)
        for value in (*args, *keywords.values()):
            if isinstance(value, FederatedDataset):
                lent_rows.warn(value.splits)
        return result

    checked.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\n{inspect.cleandoc(Parts.__doc__ or '')}\n"
    checked.__signature__ = signature.replace(parameters=[*named, *parts])  # type: ignore[attr-defined]
    return checked


def _key(name: str) -> str:
    """Return a hint where a key of the experiment has the name of an unknown keyword; else nothing."""
    if name in Experiment.model_fields:
        return f": {name} is a key of the experiment, as experiment.changed({{{name!r}: ...}}) sets it"
    return deeper([name], Experiment)
