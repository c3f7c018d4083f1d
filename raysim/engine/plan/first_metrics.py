"""Tries user-defined metrics on a client's first examples, before the first round."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from raysim.arrays import Float64s
from raysim.config.global_draws import draws
from raysim.config.own_generators import OwnGenerators
from raysim.config.plain import shown
from raysim.config.repetition import is_close
from raysim.errors import ExperimentError, within
from raysim.evaluation.metric import Metric, Metrics, PerExample, by_segment, of_batch, value

_ONE = " A client, or the last batch of an evaluation, may have one example."

DREW = (
    "drew from a global generator (of torch, NumPy or Python), whose draws differ from worker to worker, but it must "
    "depend on the batch alone"
)

_CLOSE = 1e-3
"""Relative difference that rounding may make between the sums of a batch and those of its parts."""


def check(metrics: Metrics, outputs: Tensor, targets: Tensor) -> None:
    """Let each metric score a batch, the same batch again, and its first example apart from the rest.

    Raises:
        ExperimentError: it fails, returns another shape or other figures for the same batch, writes to its arguments,
            or its sums do not add up; the error names the metric, its result and the expected one.
    """
    for name, metric in metrics.items():
        with torch.no_grad(), draws() as drew:
            why = _refusal(name, metric, outputs.detach(), targets)
            drawn = drew()
        if drawn:
            raise ExperimentError(f"metrics: {name!r} {DREW}.")
        if why:
            raise ExperimentError(f"metrics: {name!r} {why}.")


def _refusal(name: str, metric: Any, outputs: Tensor, targets: Tensor) -> str | None:
    if not isinstance(metric, Metric) and not callable(metric):
        return f"must be a function (outputs, targets) -> (batch,), or a raysim.Metric, but is {shown(metric)}"
    own = outputs.clone(), targets.clone()
    whole = _sums(name, metric, *own)
    for argument, before, after in zip(("outputs", "targets"), (outputs, targets), own, strict=True):
        if not torch.equal(before.nan_to_num(), after.nan_to_num()):
            return f"writes to {argument}, which it must only read"
    generators = OwnGenerators(metric)
    again = _sums(name, metric, *own)
    if not np.array_equal(whole, again, equal_nan=True):
        return f"must depend on the batch alone, but two times came to {whole.tolist()} and {again.tolist()}"
    if generators.drew():
        return "draws from a generator of its own, so that it depends on the calls before"
    if not isinstance(metric, Metric):
        return _mixing(name, metric, outputs, targets)
    try:
        value(metric, whole, len(targets))
    except Exception as error:
        raise ExperimentError(f"metrics: {name!r} failed on the sums {whole.tolist()}: {within(error)}.") from error
    if len(targets) == 1:
        return None
    first, rest = _sums(name, metric, outputs[:1], targets[:1], _ONE), _sums(name, metric, outputs[1:], targets[1:])
    if first.shape != whole.shape or rest.shape != whole.shape:
        return f"must return sums of one shape for every batch, but got {first.shape} and {rest.shape} of parts of one"
    if not np.allclose(
        first + rest, whole, rtol=_CLOSE, atol=_CLOSE * float(np.abs(whole).max(initial=0.0)), equal_nan=True
    ):
        return (
            f"must return sums that add up over batches, but those of an example are {first.tolist()}, those of the "
            f"rest {rest.tolist()}, and those of both {whole.tolist()}"
        )
    return None


def _mixing(name: str, metric: PerExample, outputs: Tensor, targets: Tensor) -> str | None:
    """Say that a function's figure of an example depends on the others of its batch; None if it does not."""
    size = len(targets)
    together = _figures(name, metric, outputs, targets)
    alone = [_figures(name, metric, outputs[i : i + 1], targets[i : i + 1], _ONE) for i in range(size)]
    if is_close(torch.cat(alone), together, _CLOSE):
        return None
    return (
        f"must return a figure of each example, which does not depend on the others, but those of a batch are "
        f"{together.tolist()}, and alone they are {torch.cat(alone).tolist()}: give outputs and targets one shape, or "
        f"make it a raysim.Metric"
    )


def _sums(name: str, metric: Metric | PerExample, outputs: Tensor, targets: Tensor, hint: str = "") -> Float64s:
    """Return a metric's sums (S,) of a batch; `hint`: see `_figures`."""
    size = len(targets)
    sums: Float64s = by_segment(metric, [_figures(name, metric, outputs, targets, hint)], np.array([size]), size)[0]
    return sums


def _figures(name: str, metric: Metric | PerExample, outputs: Tensor, targets: Tensor, hint: str = "") -> Tensor:
    """Return what `of_batch` does of a batch of one client; `hint`: the end of a message that it failed.

    Raises:
        ExperimentError: the metric failed; has the shapes of the batch.
    """
    size = len(targets)
    try:
        return of_batch(name, metric, outputs, targets, [(0, size)])
    except Exception as error:
        given = f"outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)} of {targets.dtype}"
        raise ExperimentError(f"metrics: {name!r} failed on {given}: {within(error)}.{hint}") from error
