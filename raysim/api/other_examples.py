"""Looks at data on which a model is to be scored, and which are not those of its run: whether it can read them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from raysim.api import feature_order, label_order
from raysim.api.likeness import listed
from raysim.data import FederatedDataset
from raysim.data.field import Field
from raysim.data.tokens.words import Words
from raysim.errors import DataError
from raysim.experiment.experiment import Experiment

LOOKED_AT = 10
"""Training clients of each dataset whose values are compared."""

FACTOR = 2.0
"""Values whose deviations differ by more than this were likely scaled in another way."""


ALPHABET, APART, NEARER = 256, 0.2, 5.0
"""Up to so many different numbers are an alphabet. Its numbers stand for others where shares of numbers differ by this
much in all, and by this factor less in another order."""

SHARED, FEWEST, ROWS = 0.4, 100, 200
"""Names of one kind share more than this of the most frequent ones; of fewer numbers than these nothing is said; and
examples of a client whose numbers are counted."""


def check_form(own: FederatedDataset, other: FederatedDataset) -> None:
    """Raise DataError if examples or classes of the other data have another form than the run's own."""
    form, its = (own.x.shape, own.num_classes, own.y.shape), (other.x.shape, other.num_classes, other.y.shape)
    if form != its:
        raise DataError(
            f"data must have examples of shape {form[0]}, {form[1]} classes and targets of shape {form[2]}, as the "
            f"run's, but have {its[0]}, {its[1]} and {its[2]}."
        )


def remarks(experiment: Experiment, own: FederatedDataset, other: FederatedDataset) -> Iterator[str]:
    """Yield a sentence for each sign that the other data were prepared in another way than the run's own.

    Args:
        experiment: the run's. own, other: of the same form.
    """
    if own.fingerprint == other.fingerprint:
        return
    are_names = not (_is_measured(own.x) or _is_measured(other.x))
    if isinstance(getattr(experiment.data, "tokens", None), Words):
        yield (
            "x are numbers of words, in the run's own vocabulary (data.tokens.name = 'words'): scores mean little "
            "unless the data number the same words alike"
        )
    elif not are_names:
        if _is_measured(own.x) != _is_measured(other.x):
            yield (
                f"x of the data are {_kind(other.x)} for the model, and those of the run's own are {_kind(own.x)}: "
                f"most models take one kind"
            )
        yield from _of_values(own, other)
        if own.x.shape and (order := feature_order.remark(own, other)) is not None:
            yield f"{order}: scores mean little if they were prepared in another order"
    else:
        yield from _of_numbers(own, other)
    if (labels := label_order.remark(own, other, are_names)) is not None:
        yield f"{labels}: scores mean little if classes are numbered in another order"
    if _left_out(own.y) != _left_out(other.y):
        yield (
            f"the data leave out other labels than the run's: {_left_out(other.y)}, where the run leaves out "
            f"{_left_out(own.y)}"
        )


def _is_measured(x: Field) -> bool:
    """Return whether values are amounts; whole numbers that are not scaled may be names, as those of tokens."""
    return x.is_floating or (x.scale, x.offset) != (1.0, 0.0)


def _kind(x: Field) -> str:
    return "floating-point numbers" if _is_measured(x) else "whole numbers"


def _of_values(own: FederatedDataset, other: FederatedDataset) -> Iterator[str]:
    (mean, deviation), (its_mean, its_deviation) = _moments(own), _moments(other)
    low, high = sorted((deviation, its_deviation))
    if high > FACTOR * low or abs(mean - its_mean) > high:
        yield (
            f"x of the data has mean {its_mean:.3g} and deviation {its_deviation:.3g}, and that of the run's own "
            f"{mean:.3g} and {deviation:.3g}: scores mean little if it was scaled in another way"
        )


def _moments(dataset: FederatedDataset) -> tuple[float, float]:
    """Return mean and standard deviation of the finite values in x of the first training clients."""
    train = dataset.train
    every = [train.client(position)[0].ravel() for position in range(min(LOOKED_AT, len(train)))]
    values = np.concatenate(every).astype(np.float64) * dataset.x.scale + dataset.x.offset
    finite = values[np.isfinite(values)]
    return (float(finite.mean()), float(finite.std())) if len(finite) else (0.0, 0.0)


def _of_numbers(own: FederatedDataset, other: FederatedDataset) -> Iterator[str]:
    """Yield a sentence if numbers, which may be names, as those of tokens, are others or stand for others.

    What fills rows up at their ends is left out.
    """
    mine, its = _frequencies(own), _frequencies(other)
    if not mine or not its:
        return
    if (shared := _shared(mine, its)) < SHARED:
        yield (
            f"x of the data are other numbers than those of the run's own: of the most frequent ones they share "
            f"{shared:.0%}. Scores mean little if these are names of other things, as those of another tokeniser"
        )
    elif renamed := _renamed(mine, its):
        yield (
            f"numbers in x of the data are as frequent as others of the run's own: {listed(renamed)}. Scores mean "
            f"little if they are names of the same things in another order"
        )


def _shared(mine: dict[int, float], its: dict[int, float]) -> float:
    """Return how much of the run's most frequent numbers, which are half of all, the other data have; or the other
    way."""
    return max(_overlap(mine, its), _overlap(its, mine))


def _renamed(mine: dict[int, float], its: dict[int, float]) -> list[tuple[int, int]]:
    """Return which of the other data's numbers are as frequent as which of the run's own, if that fits much better.

    Of a few numbers, which two alphabets always share, only the frequencies tell the order.
    """
    numbers = sorted({*mine, *its})
    if len(numbers) > ALPHABET:
        return []
    own, other = (np.array([each.get(number, 0.0) for number in numbers]) for each in (mine, its))
    by_own, by_other = np.argsort(-own, kind="stable"), np.argsort(-other, kind="stable")
    apart, renamed_apart = (float(np.abs(a - b).sum()) / 2 for a, b in ((own, other), (own[by_own], other[by_other])))
    if apart < APART or renamed_apart > apart / NEARER:
        return []
    return sorted((numbers[at], numbers[like]) for at, like in zip(by_other, by_own, strict=True) if at != like)


def _overlap(mine: dict[int, float], its: dict[int, float]) -> float:
    whole = shared = 0.0
    for number, share in sorted(mine.items(), key=lambda pair: (-pair[1], pair[0])):
        if whole >= 1 / 2:
            break
        whole += share
        shared += min(share, its.get(number, 0.0))
    return shared / whole


def _frequencies(dataset: FederatedDataset) -> dict[int, float]:
    """Return the share of each number in x of the first training clients; none where they have too few."""
    train, length = dataset.train, math.prod(dataset.x.shape)
    every = [train.client(position)[0].reshape(-1, length) for position in range(min(LOOKED_AT, len(train)))]
    rows = np.concatenate([part[:ROWS] for part in every])
    # A row that ends with one number is whole; with several equal ones it is filled up.
    same = np.cumprod(rows[:, ::-1] == rows[:, -1:], axis=1)[:, ::-1].astype(bool)
    filled = same & (same.sum(axis=1, keepdims=True) > 1)
    numbers, counts = np.unique(rows[~filled], return_counts=True)
    total = int(counts.sum())
    return dict(zip(numbers.tolist(), (counts / total).tolist(), strict=True)) if total >= FEWEST else {}


def _left_out(y: Field) -> str:
    labels = [*({y.padding} - {None}), *y.uncounted]
    return ", ".join(map(str, labels)) or "none"
