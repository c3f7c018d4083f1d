"""Defines the `[cohort]` section: number and choice of a round's clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pydantic import Field, model_validator

from raysim.cohort import adafl, availability, bernoulli, cyclic, md, own_sampler, power_of_choice, replay, uniform
from raysim.cohort.cohorts import Cohorts
from raysim.cohort.sampler import Clients, CohortAt, Sampler
from raysim.config.own_part import OwnPart, OwnSampler, is_unbound
from raysim.config.part import Choice, Packaged
from raysim.config.section import Section
from raysim.config.values import Count, Seed
from raysim.config.whole_part import whole_part
from raysim.data.dataset import Split
from raysim.errors import ExperimentError

SamplerSection = Annotated[
    uniform.UniformSampler
    | md.Md
    | adafl.AdaFl
    | bernoulli.Bernoulli
    | cyclic.Cyclic
    | availability.Availability
    | power_of_choice.PowerOfChoice
    | replay.Replay
    | OwnSampler,
    Field(discriminator="name"),
    Packaged("sampler", "cohort.sampler"),
]


def _replayed(section: replay.Replay) -> Sampler:
    return replay.make(section, SAMPLERS.make(section.over or uniform.UniformSampler()) if section.rounds else None)


SAMPLERS: Choice[Sampler] = Choice(
    "sampler",
    {
        uniform.UniformSampler: uniform.make,
        md.Md: md.make,
        adafl.AdaFl: adafl.make,
        bernoulli.Bernoulli: bernoulli.make,
        cyclic.Cyclic: cyclic.make,
        availability.Availability: availability.make,
        power_of_choice.PowerOfChoice: power_of_choice.make,
        replay.Replay: _replayed,
    },
    own_sampler.make,
    (Sampler,),
)


class CohortGrowth(Section):
    """The cohort size is multiplied at regular intervals of rounds."""

    every: Count = Field(description="Rounds after which the size grows.")
    factor: float = Field(2.0, ge=1, le=1e6, description="Factor by which it grows.")
    max: Count | None = Field(None, description="Largest size, at least `cohort.size`. Absent: all clients.")


def grown_size(section: CohortGrowth | None, initial: int, population: int, t: int) -> int:
    """The size after t finished rounds: M_t = min(M_0 factor^floor(t / every), max, N), rounded down, of N clients.

    Source: Charles et al. (2021), section 5.3 (50, 300, 800: start, rounds between doublings, largest).

    >>> [grown_size(CohortGrowth(every=300, max=180), 50, 10_000, t) for t in (0, 299, 300, 600, 900)]
    [50, 50, 100, 180, 180]
    """
    if section is None:
        return min(initial, population)
    largest = population if section.max is None else min(section.max, population)
    # A power beyond the population may be beyond a float as well.
    size, multiplications = float(initial), t // section.every
    while multiplications and size < largest and section.factor > 1:
        size, multiplications = size * section.factor, multiplications - 1
    return whole_part(min(size, largest))


class CohortSection(Section):
    """Which clients take part in a round."""

    size: Count | None = Field(
        None, description="Clients per round, M. Absent where the sampler sets it (replay, bernoulli, cyclic)."
    )
    seed: Seed | None = Field(None, description="Seed of the sampling. Absent: the experiment's.")
    sampler: SamplerSection = Field(uniform.UniformSampler(), description="How clients are drawn.")
    growth: CohortGrowth | None = Field(None, description="Growth of the size over the rounds. Absent: it is constant.")

    @model_validator(mode="after")
    def _size_where_it_means_something(self) -> CohortSection:
        rule = self.rule
        if self.size is not None and rule.sized_by is not None:
            raise ValueError(f"size must be absent with the {rule.name} sampler: {rule.sized_by}")
        if self.size is None and rule.sized_by is None:
            raise ValueError(f"size must be given with the {rule.name} sampler")
        if self.growth is not None and self.size is None:
            raise ValueError(
                f"growth needs a size to begin with, and the {rule.name} sampler has none, but got growth.every = "
                f"{self.growth.every}: remove growth"
            )
        most = None if self.growth is None else self.growth.max
        if self.size is not None and most is not None and most < self.size:
            raise ValueError(f"growth.max must be at least size, but got max = {most} and size = {self.size}")
        if self.size is not None and rule.asks is not None and rule.asks < self.size:
            raise ValueError(_too_few_candidates(rule.asks, f"size = {self.size}"))
        return self

    @property
    def rule(self) -> Sampler:
        """The sampler's properties; a user-defined sampler has the defaults until the script has passed it."""
        if is_unbound(self.sampler):
            return own_sampler.UNBOUND
        return SAMPLERS.make(self.sampler)

    def size_at(self, population: int) -> Callable[[int], float]:
        """The configured size of the cohort after t finished rounds; an expectation under the bernoulli sampler."""
        expected = self.rule.expected

        def size(t: int) -> float:
            if (of_sampler := expected(t, population)) is not None:
                return of_sampler
            assert self.size is not None
            return grown_size(self.growth, self.size, population, t)

        return size


def _too_few_candidates(asked: int, limit: str) -> str:
    return f"sampler.candidates >= size must hold, the clients that train, but got candidates = {asked} and {limit}"


def cohorts(
    section: CohortSection, seed: int, rounds: int, train: Split, asked: Callable[[int], int] = lambda size: size
) -> Cohorts:
    """The sampler that the section means, over the clients of the training split.

    Args:
        section: of the experiment.
        seed: addresses the sampling.
        rounds: of the experiment.
        train: the training split.
        asked: from the cohort's size to the number of clients to draw.

    Raises:
        ExperimentError: a cohort that cannot be had from these clients.
    """
    if section.size is not None and section.size > len(train):
        raise ExperimentError(
            f"cohort.size <= number of training clients must hold, but got size = {section.size} and "
            f"{len(train)} training clients."
        )
    rule, clients = section.rule, Clients(train)
    if rule.rounds is not None and rule.rounds < rounds:
        raise ExperimentError(
            f"cohort.sampler must hold a cohort for every round, but holds {rule.rounds} for rounds = {rounds}."
        )
    if rule.asks is not None and section.size is not None:
        if rule.asks > len(train):
            raise ExperimentError(
                f"cohort.sampler.candidates <= number of training clients must hold, but got candidates = {rule.asks} "
                f"and {len(train)} training clients."
            )
        largest = asked(grown_size(section.growth, section.size, len(train), rounds - 1))
        if rule.asks < largest:
            few = _too_few_candidates(rule.asks, f"{largest} clients to train in the last round")
            raise ExperimentError(f"cohort.{few}.")
    constants = section.sampler.constants if isinstance(section.sampler, OwnPart) else {}

    def at(t: int) -> CohortAt:
        size = 0 if section.size is None else asked(grown_size(section.growth, section.size, len(train), t))
        return CohortAt(t, size, clients, seed, constants)

    return Cohorts(rule, at, is_built_in=type(section.sampler) in SAMPLERS.makers)
