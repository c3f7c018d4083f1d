"""The `[cohort]` section: how many clients a round trains, and which."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field, PositiveInt, model_validator

from raysim.cohort import adafl, availability, bernoulli, md, replay, uniform
from raysim.cohort.sampler import Sampler
from raysim.config.section import Section
from raysim.data.dataset import Split
from raysim.errors import ExperimentError


class CohortGrowth(Section):
    """The cohort size is multiplied every so many rounds."""

    every: PositiveInt = Field(description="Rounds after which the size grows.")
    factor: float = Field(2.0, ge=1, description="Factor by which it grows.")
    max: PositiveInt | None = Field(None, description="Largest size. Absent: all clients.")


def grown(section: CohortGrowth | None, initial: int, population: int, t: int) -> int:
    """The size after t finished rounds: M_t = min(M_0 factor^floor(t / every), max, N), rounded down, of N clients.

    Source: Charles et al. (2021), section 5.3 (50, 300, 800: start, rounds between doublings, largest).

    >>> [grown(CohortGrowth(every=300, max=180), 50, 10_000, t) for t in (0, 299, 300, 600, 900)]
    [50, 50, 100, 180, 180]
    """
    if section is None:
        return min(initial, population)
    largest = population if section.max is None else min(section.max, population)
    # A power beyond the population may be beyond a float as well.
    size, multiplications = float(initial), t // section.every
    while multiplications and size < largest and section.factor > 1:
        size, multiplications = size * section.factor, multiplications - 1
    return min(int(size), largest)


class CohortSection(Section):
    """Which clients take part in a round."""

    size: PositiveInt | None = Field(
        None, description="Clients per round, M. Absent where the sampler sets it (replay, bernoulli)."
    )
    seed: int | None = Field(None, description="Seed of the sampling. Absent: the experiment's.")
    sampler: Annotated[
        uniform.UniformSampler | md.Md | adafl.AdaFl | bernoulli.Bernoulli | availability.Availability | replay.Replay,
        Field(discriminator="name"),
    ] = Field(uniform.UniformSampler(), description="How clients are drawn.")
    growth: CohortGrowth | None = Field(None, description="Growth of the size over the rounds. Absent: it is constant.")

    @model_validator(mode="after")
    def _size_where_it_means_something(self) -> CohortSection:
        drawing = self.drawing
        if drawing is None:
            if self.size is not None:
                raise ValueError("size must be absent with the replay sampler, whose lists' lengths are the sizes")
        elif isinstance(drawing, bernoulli.Bernoulli):
            if self.size is not None:
                raise ValueError("size must be absent with the bernoulli sampler, whose probability says it")
        elif self.size is None:
            raise ValueError(f"size must be given with the {drawing.name} sampler")
        if self.growth is not None and self.size is None:
            raise ValueError("growth needs a size to begin with, which this sampler has none of")
        return self

    @property
    def drawing(self) -> replay.OtherSampler | None:
        """The sampler that draws cohorts at random; None where all of them are given."""
        if isinstance(self.sampler, replay.Replay):
            return None if self.sampler.rounds is None else self.sampler.over or uniform.UniformSampler()
        return self.sampler

    def size_at(self, population: int) -> Callable[[int], float]:
        """The configured size of the cohort after t finished rounds; an expectation under the bernoulli sampler."""
        given: Any = {}
        if isinstance(self.sampler, replay.Replay):
            given = self.sampler.rounds or dict(enumerate(self.sampler.cohorts or ()))

        def size(t: int) -> float:
            if t in given:
                return len(given[t])
            if isinstance(self.drawing, bernoulli.Bernoulli):
                return self.drawing.probability * population
            assert self.size is not None
            return grown(self.growth, self.size, population, t)

        return size


def sampler(
    section: CohortSection, seed: int, rounds: int, train: Split, asked: Callable[[int], int] = lambda size: size
) -> Sampler:
    """The sampler that the section means, over the clients of the training split.

    Args:
        section: of the experiment.
        seed: addresses who is sampled.
        rounds: of the experiment.
        train: the training split.
        asked: how many clients are drawn where so many are the cohort's size.

    Raises:
        ExperimentError, DataError: a cohort that cannot be had from these clients.
    """
    drawing = section.drawing
    if section.size is not None and section.size > len(train):
        raise ExperimentError(
            f"cohort.size <= number of training clients must hold, but got size = {section.size} and "
            f"{len(train)} training clients."
        )
    drawn = None if drawing is None else _drawn(section, drawing, seed, train, asked)
    if isinstance(section.sampler, replay.Replay):
        return replay.make(section.sampler, rounds, train.position_of, drawn)
    assert drawn is not None
    return drawn


def _drawn(
    section: CohortSection, drawing: replay.OtherSampler, seed: int, train: Split, asked: Callable[[int], int]
) -> Sampler:
    population = len(train)

    def size_at(t: int) -> int:
        assert section.size is not None
        return asked(grown(section.growth, section.size, population, t))

    match drawing:
        case uniform.UniformSampler():
            return uniform.make(seed, population, size_at)
        case md.Md():
            return md.make(seed, train.sizes(), size_at)
        case adafl.AdaFl():
            return adafl.make(drawing, seed, train.sizes(), size_at)
        case bernoulli.Bernoulli():
            return bernoulli.make(drawing, seed, population)
        case availability.Availability():
            return availability.make(drawing, seed, population, size_at)
