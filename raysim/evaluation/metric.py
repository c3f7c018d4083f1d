"""Defines a user-defined metric: sums over a client's examples, and the value of such sums.

A worker that scores a batch computes the sums of each client's rows separately. It adds them in float64 on the CPU, in
the order of the stream, so the bits of a figure do not depend on the workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from raysim.config.form import has_values
from raysim.config.part import Choice, passed_part
from raysim.config.plain import shown


class Metric(NamedTuple):
    """Sums that add up over batches, clients and splits, and the value of such a sum.

    sums: (outputs, targets) of a batch -> (S,), the batch's sums. value: from sums (S,), float64 on the CPU, to the
    figure; NaN where it is not defined.
    """

    sums: Callable[[Tensor, Tensor], Tensor]
    value: Callable[[Tensor], float]


PerExample = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) -> (batch,), whose mean over examples is the figure."""

Metrics = Mapping[str, Metric | PerExample]
"""By name: a record, or a function (outputs, targets) -> (batch,), whose mean over examples is the figure."""

METRICS: Choice[Metric | PerExample] = Choice("metric", {}, passed_part, (Metric, Callable))

Cuts = Sequence[tuple[int, int]]
"""A client's rows in a batch: the first, and one past the last."""


def cuts(counts: npt.NDArray[np.int64], batch_size: int) -> Iterator[Cuts]:
    """Cut each batch of a stream at the ends of its segments; `counts` are the segments' numbers of rows.

    >>> list(cuts(np.array([3, 1, 4]), 4))
    [[(0, 3), (3, 4)], [(0, 4)]]
    >>> list(cuts(np.array([5]), 4))
    [[(0, 4)], [(0, 1)]]
    """
    ends, total = np.cumsum(counts), int(counts.sum())
    for start in range(0, total, batch_size):
        stop = min(total, start + batch_size)
        inside = ends[(ends > start) & (ends < stop)].tolist()
        yield [(a - start, b - start) for a, b in pairwise([start, *inside, stop])]


def of_batch(name: str, metric: Metric | PerExample, outputs: Tensor, targets: Tensor, cuts: Cuts) -> Tensor:
    """Return a metric's figures or sums of a batch, float64: (batch,) of a function, (cuts, S) of a `Metric`.

    Raises:
        ValueError: it returns another shape.
        Exception: the metric's error, with a note that names the metric.
    """
    try:
        if not isinstance(metric, Metric):
            return _plain(_shaped(metric(outputs, targets), len(targets)))
        # Copied one by one: a metric may fill the same tensor for every cut.
        rows = [_plain(_shaped(metric.sums(outputs[a:b], targets[a:b]), None)) for a, b in cuts]
        return torch.stack(rows)
    except Exception as error:
        error.add_note(f"This is the metric {name!r}.")
        raise


def _plain(figures: Tensor) -> Tensor:
    """The numbers in float64, without marks of torch, such as those of a parameter that the metric has."""
    return figures.detach().to(torch.float64, copy=True).resolve_neg()


def _shaped(found: Any, length: int | None) -> Tensor:
    if isinstance(found, Tensor) and not has_values(found):
        raise ValueError(f"a metric must return a dense tensor with values, but got {shown(found)}")
    if isinstance(found, Tensor) and found.dim() == 1 and length in (None, len(found)) and not found.is_complex():
        return found
    got = f"shape {tuple(found.shape)}, {found.dtype}" if isinstance(found, Tensor) else type(found).__name__
    if length is None:
        raise ValueError(f"sums(outputs, targets) must return a tensor of real numbers, shape (S,), but got {got}")
    raise ValueError(
        f"a metric's function must return one figure per example, shape ({length},), but got {got}; figures that are "
        f"no mean over examples are a raysim.Metric"
    )


def by_segment(
    metric: Metric | PerExample, found: Sequence[Tensor], counts: npt.NDArray[np.int64], batch_size: int
) -> npt.NDArray[np.float64]:
    """Return sums (segments, S) of the results of `of_batch` over a stream; `counts`: the segments' numbers of rows."""
    values = torch.cat(list(found)).cpu().numpy()
    if not isinstance(metric, Metric):
        return segment_sums(values, counts)[:, None]
    ends = np.cumsum(counts)
    batches = (ends - 1) // batch_size - (ends - counts) // batch_size + 1
    return segment_sums(values, batches)


def segment_sums(values: npt.NDArray[np.float64], counts: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return the sums over segments of consecutive rows; `counts` are their numbers of rows.

    >>> segment_sums(np.array([1.0, 2.0, 4.0]), np.array([2, 1])).tolist()
    [3.0, 4.0]
    """
    sums: npt.NDArray[np.float64] = np.add.reduceat(values, np.r_[0, np.cumsum(counts)[:-1]])
    return sums


def value(metric: Metric | PerExample, sums: npt.NDArray[np.float64], examples: int) -> float:
    """Return the figure of sums (S,) over this number of examples.

    Raises:
        ValueError: `value` returns no number.
    """
    if not isinstance(metric, Metric):
        return float(sums[0]) / examples
    found: Any = metric.value(torch.from_numpy(sums.copy()))
    if isinstance(found, Tensor) and found.dim() == 0:
        found = found.item()
    if isinstance(found, bool) or not isinstance(found, int | float | np.integer | np.floating):
        raise ValueError(f"value(sums) must return a number, but got {shown(found)}")
    return float(found)
