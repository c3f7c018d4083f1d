"""Names the keys of a section that another key of the same section leaves without effect.

A pair is listed here where the equation of its section shows it: a factor of 0, no steps, a rule that is off. What
changes a recorded figure, or the last digit of a number, is not listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from raysim.cohort.adafl import AdaFl
from raysim.cohort.availability import Availability
from raysim.cohort.section import CohortGrowth
from raysim.compression.random_k import RandomKKeys
from raysim.config.section import Section, has_other
from raysim.server.aggregators.geometric_median import GeometricMedian
from raysim.server.clipping import AdaptiveClip, Zeroing
from raysim.server.lr_schedule import Cosine, Step
from raysim.server.optimizers.momentum import Momentum
from raysim.server.privacy.section import PrivacySection


class Pair(NamedTuple):
    """Keys that have no effect where a section of this kind is as `when` says; `because` has its value."""

    kind: type
    keys: tuple[str, ...]
    when: Callable[[Any], bool]
    because: str


PAIRS = (
    Pair(AdaFl, ("keep_total",), lambda its: its.alpha == 1, "with alpha = 1 attention stays as it is"),
    Pair(AdaptiveClip, ("quantile",), lambda its: its.lr == 0, "with lr = 0 the level stays as it is"),
    Pair(Availability, ("day", "spread"), lambda its: its.open == 1, "with open = 1 all clients are always available"),
    Pair(CohortGrowth, ("every", "max"), lambda its: its.factor == 1, "with factor = 1 the size stays as it is"),
    Pair(Cosine, ("length",), lambda its: its.final == 1, "with final = 1 the learning rate stays as it is"),
    Pair(GeometricMedian, ("nu",), lambda its: its.iterations == 0, "with iterations = 0 no step is taken"),
    Pair(Momentum, ("dampened",), lambda its: its.beta1 == 0, "with beta1 = 0 both forms are the same"),
    Pair(
        PrivacySection,
        ("delta", "accountant"),
        lambda its: not its.noised,
        "with noise_multiplier = 0 there is no noise, and no epsilon",
    ),
    Pair(RandomKKeys, ("scale",), lambda its: its.fraction == 1, "with fraction = 1 all numbers are sent"),
    Pair(Step, ("every",), lambda its: its.factor == 1, "with factor = 1 the learning rate stays as it is"),
    Pair(Zeroing, ("quantile",), lambda its: its.lr == 0, "with lr = 0 the level stays as it is"),
)


def idle_keys(section: Section, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted key of each such key in the section and in those that it holds, and what says so.

    A key that must be given is named too; one that has its default value is not.
    """
    for pair in PAIRS:
        if isinstance(section, pair.kind) and pair.when(section):
            for key in pair.keys:
                if has_other(section, key):
                    yield f"{path}{key}", f"{path}{key} = {getattr(section, key)!r} has no effect: {pair.because}"
    for name, field in type(section).model_fields.items():
        inner = getattr(section, name)
        inside = inner if isinstance(inner, tuple) else (inner,)
        for one in inside:
            if isinstance(one, Section):
                yield from idle_keys(one, f"{path}{field.alias or name}.")
