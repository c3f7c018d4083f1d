"""The `[cohort]` section: how many clients a round trains, and which."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveInt, model_validator

from raysim.cohort import replay, uniform
from raysim.cohort.sampler import Sampler
from raysim.data.dataset import Split
from raysim.errors import ExperimentError
from raysim.section import Section


class CohortSection(Section):
    """`size` is M; with the replay sampler the lists' lengths are the sizes, and `size` must be absent."""

    size: PositiveInt | None = None
    sampler: Annotated[uniform.Uniform | replay.Replay, Field(discriminator="name")] = uniform.Uniform()

    @model_validator(mode="after")
    def _size_where_it_means_something(self) -> CohortSection:
        if isinstance(self.sampler, replay.Replay):
            if self.size is not None:
                raise ValueError("size must be absent with the replay sampler, whose lists' lengths are the sizes")
        elif self.size is None:
            raise ValueError(f"size must be given with the {self.sampler.name} sampler")
        return self


def sampler(section: CohortSection, seed: int, rounds: int, train: Split) -> Sampler:
    """The sampler that the section means, over the clients of the training split."""
    if isinstance(section.sampler, replay.Replay):
        return replay.make(section.sampler, rounds, train.position_of)
    assert section.size is not None
    if section.size > len(train):
        raise ExperimentError(
            f"cohort.size <= number of training clients must hold, but got size = {section.size} and "
            f"{len(train)} training clients."
        )
    return uniform.make(seed, len(train), section.size)
