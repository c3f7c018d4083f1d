"""Evaluates a model: one stream of full batches over the clients of a split, and one row per client.

The pooled figures are sums over the rows; mean, variance, range and percentiles of accuracy are over clients,
unweighted, percentiles linearly interpolated (docs/algorithms.md section 5). The unit of work is a fixed slice of the
stream, so the bits do not depend on the workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from raysim import seeds
from raysim.client.local_training import ClientFailure
from raysim.config.percentile_name import percentile_name
from raysim.config.unwritten import check_unwritten, versions
from raysim.data.dataset import Split
from raysim.data.on_device import Examples
from raysim.errors import DataError
from raysim.evaluation import metric
from raysim.evaluation.metric import Metrics
from raysim.models.task import Task

EXAMPLES_PER_UNIT = 2048
"""Fixes the order of additions: it is a constant of the program, not of a machine."""

Segment = tuple[int, int, int]
"""Client position, first example, one past the last."""

Unit = tuple[str, tuple[Segment, ...]]
"""(split name, consecutive segments)."""


Seen = Callable[[Tensor], Tensor]
"""Transforms examples for evaluation: (n, ...) -> (n, ...)."""

NONE: Metrics = MappingProxyType({})
"""No user-defined metrics."""


@dataclass(frozen=True)
class ClientScores:
    """Rows of evaluated segments in stream order: position, examples, weighted loss and its weight, hits, and counted
    examples.

    Loss divides the weighted loss by its weight: the examples, or with `by_place` the places that are not padding, and
    then e^loss is the perplexity. Accuracy divides hits by counted examples. If only some places of an example count,
    it counts by their share. Hits are NaN if nothing counts. `own`: the sums (rows, S) of each user-defined metric, in
    their order.

    A monoid under `concatenate`; `per_client` merges the segments of a client that was cut over several units.
    """

    positions: npt.NDArray[np.int64]
    examples: npt.NDArray[np.int64]
    loss: npt.NDArray[np.float64]
    correct: npt.NDArray[np.float64]
    counted: npt.NDArray[np.float64]
    weight: npt.NDArray[np.float64]
    own: tuple[npt.NDArray[np.float64], ...] = ()
    by_place: bool = False

    def losses(self) -> npt.NDArray[np.float64]:
        """Loss per row; 0 without a place that is not padding."""
        return self.loss / np.maximum(self.weight, 1)

    def accuracies(self) -> npt.NDArray[np.float64]:
        """Hits divided by counted examples, per row; NaN if there are none."""
        shares = np.full(len(self.counted), np.nan)
        np.divide(self.correct, self.counted, out=shares, where=self.counted > 0)
        return shares


_COLUMNS = ("positions", "examples", "loss", "correct", "counted", "weight")


def concatenate(left: ClientScores, right: ClientScores) -> ClientScores:
    """Return the rows of `left`, then those of `right`."""
    columns: dict[str, Any] = {name: np.concatenate([getattr(left, name), getattr(right, name)]) for name in _COLUMNS}
    return replace(left, **columns, own=tuple(map(np.concatenate, zip(left.own, right.own, strict=True))))


def rows(scores: ClientScores, chosen: npt.NDArray[np.bool_]) -> ClientScores:
    """Return some of the rows."""
    columns = {name: getattr(scores, name)[chosen] for name in _COLUMNS}
    return replace(scores, **columns, own=tuple(sums[chosen] for sums in scores.own))


def per_client(scores: ClientScores) -> ClientScores:
    """Merge rows to one per client, in order of first appearance (a client's segments are consecutive)."""
    starts = np.flatnonzero(np.r_[True, scores.positions[1:] != scores.positions[:-1]])
    summed: dict[str, Any] = {name: np.add.reduceat(getattr(scores, name), starts) for name in _COLUMNS[1:]}
    own = tuple(np.add.reduceat(sums, starts) for sums in scores.own)
    return replace(scores, positions=scores.positions[starts], **summed, own=own)


def sample_clients(split: Split, most: int | Literal["all"], seed: int) -> npt.NDArray[np.int64]:
    """Return the positions to evaluate: all, or `most` of them, the same in every round, in order."""
    if most == "all" or most >= len(split):
        return np.arange(len(split))
    return np.sort(seeds.sample(seeds.key(seed, "evaluation"), len(split), most))


def sample_examples(
    split: Split, positions: npt.NDArray[np.int64], most: int | Literal["all"], seed: int
) -> list[Segment]:
    """Return the examples to evaluate of these clients: all, or `most` of them, the same in every round, in order."""
    sizes = split.sizes(positions)
    ends = np.cumsum(sizes)
    if not len(ends) or most == "all" or most >= ends[-1]:
        return [(p, 0, size) for p, size in zip(positions.tolist(), sizes.tolist(), strict=True) if size]
    rows = np.sort(seeds.sample(seeds.key(seed, "evaluation/examples"), int(ends[-1]), most))
    place = np.searchsorted(ends, rows, side="right")
    # Neighbouring rows of a client are one segment.
    starts = np.flatnonzero(np.r_[True, (np.diff(rows) > 1) | (np.diff(place) > 0)])
    first, last = rows[starts], rows[np.r_[starts[1:], len(rows)] - 1]
    place = place[starts]
    before = (ends - sizes)[place]
    columns = (positions[place], first - before, last - before + 1)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def plan(split_name: str, segments: Sequence[Segment]) -> tuple[Unit, ...]:
    """Cut the stream of examples into units of EXAMPLES_PER_UNIT."""
    units: list[Unit] = []
    current: list[Segment] = []
    room = EXAMPLES_PER_UNIT
    for position, start, end in segments:
        while start < end:
            stop = min(end, start + room)
            current.append((position, start, stop))
            room -= stop - start
            start = stop
            if room == 0:
                units.append((split_name, tuple(current)))
                current, room = [], EXAMPLES_PER_UNIT
    if current:
        units.append((split_name, tuple(current)))
    return tuple(units)


def evaluate(
    module: nn.Module,
    task: Task,
    examples: Examples,
    unit: Unit,
    like: Tensor,
    batch_size: int,
    seen: Seen = lambda x: x,
    metrics: Metrics = NONE,
) -> ClientScores:
    """Score one unit with a module in evaluation mode; data go to the device and dtype of `like`.

    `batch_size`: examples at a time. `seen`: transforms examples for evaluation, row by row. `metrics`: the
    user-defined ones.
    """
    try:
        return _scores_of(module, task, examples, unit, like, batch_size, seen, metrics)
    except (DataError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        # A batch mixes clients: score them one by one to find the one that failed.
        split_name, segments = unit
        for segment in segments if len(segments) > 1 else ():
            try:
                _scores_of(module, task, examples, (split_name, (segment,)), like, batch_size, seen, metrics)
            except Exception as own:
                raise ClientFailure(segment[0]) from own
        raise ClientFailure(segments[0][0], others=len(segments) - 1) from error


def _scores_of(
    module: nn.Module,
    task: Task,
    examples: Examples,
    unit: Unit,
    like: Tensor,
    batch_size: int,
    seen: Seen,
    metrics: Metrics,
) -> ClientScores:
    split_name, segments = unit
    x_all, y_all = examples.load(split_name, segments, like)
    counts = np.array([stop - start for _, start, stop in segments])
    loss, correct, counted, weight = [], [], [], []
    own: dict[str, list[Tensor]] = {name: [] for name in metrics}
    batches = zip(x_all.split(batch_size), y_all.split(batch_size), metric.cuts(counts, batch_size), strict=True)
    with torch.no_grad():
        for x_batch, y_batch, cuts in batches:
            outputs = module(seen(x_batch))
            losses = task.losses_of(outputs, y_batch).double()
            if task.weights is not None:
                weight.append(task.weights(y_batch))
                losses *= weight[-1]
            loss.append(losses)
            if task.correct is not None:
                correct.append(task.correct(outputs, y_batch).double())
            if task.counted is not None:
                counted.append(task.counted(y_batch))
            for name, found in own.items():
                before = versions(outputs, y_batch)
                found.append(metric.of_batch(name, metrics[name], outputs, y_batch, cuts))
                check_unwritten(f"The metric {name!r}", before, {"outputs": outputs, "targets": y_batch})
    return ClientScores(
        positions=np.array([position for position, _, _ in segments]),
        examples=counts,
        loss=_segment_sums(loss, counts),
        correct=_segment_sums(correct, counts) if correct else np.full(len(counts), np.nan),
        counted=_segment_sums(counted, counts) if counted else counts.astype(np.float64),
        weight=_segment_sums(weight, counts) if weight else counts.astype(np.float64),
        by_place=task.weights is not None,
        own=tuple(metric.by_segment(metrics[name], found, counts, batch_size) for name, found in own.items()),
    )


def summed_loss(module: nn.Module, task: Task, x: Tensor, y: Tensor, batch_size: int) -> float:
    """Return the mean loss of one client's examples with a module in evaluation mode, times their number."""
    with torch.no_grad():
        batches = zip(x.split(batch_size), y.split(batch_size), strict=True)
        losses = [task.losses_of(module(x_batch), y_batch).double() for x_batch, y_batch in batches]
    if task.weights is not None:
        return len(y) * float(task.mean(torch.cat(losses), y, y))
    return float(_segment_sums(losses, np.array([len(y)]))[0])


def _segment_sums(batches: Sequence[Tensor], counts: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    return metric.segment_sums(torch.cat(list(batches)).cpu().numpy(), counts)


def summarise(scores: ClientScores, name: str, percentiles: Sequence[float]) -> dict[str, float]:
    """Return the metrics of an evaluation (`name` is "eval/test", for instance): loss, accuracy, and its spread."""
    loss = float(scores.loss.sum()) / max(1.0, float(scores.weight.sum()))
    metrics = {f"{name}/loss": loss}
    if scores.by_place:
        metrics[f"{name}/perplexity"] = perplexity(np.array(loss)).item()
    if not np.isnan(scores.correct).any() and scores.counted.any():
        metrics[f"{name}/accuracy"] = float(scores.correct.sum()) / float(scores.counted.sum())
        spread = over_clients(scores.accuracies(), percentiles)
        metrics |= {f"{name}/{column}": value for column, value in spread.items()}
    return metrics


def perplexity(losses: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return e^loss."""
    with np.errstate(over="ignore"):
        perplexities: npt.NDArray[np.float64] = np.exp(losses)
    return perplexities


def over_clients(accuracies: npt.NDArray[np.float64], percentiles: Sequence[float]) -> dict[str, float]:
    """Return how the clients' accuracies are spread; a client counts once, one without an accuracy (NaN) does not.

    Source: Wang et al. (2021), section 4.2.6. The variance is the population's.

    >>> over_clients(np.array([0.0, 0.5, 1.0, 1.0]), [50])
    {'mean_client_accuracy': 0.625, 'client_accuracy_variance': 0.171875, 'client_accuracy_range': 1.0, 'p50': 0.75}
    """
    own = accuracies[~np.isnan(accuracies)]
    values = np.percentile(own, list(percentiles)).tolist()
    return {
        "mean_client_accuracy": float(own.mean()),
        "client_accuracy_variance": float(own.var()),
        "client_accuracy_range": float(np.ptp(own)),
        **{percentile_name(p): value for p, value in zip(percentiles, values, strict=True)},
    }
