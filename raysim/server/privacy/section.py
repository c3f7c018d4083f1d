"""Defines what the sections of `[server.privacy]` share: noise, delta and epsilon, of which two give the third."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, Field, model_validator

AccountantName = Literal["pld", "rdp"]

LEAST_MULTIPLIER = 1e-3
"""Of noise that is there: less protects nobody, as epsilon is in the hundred thousands, and its square underflows."""


def _none_or_enough(z: float) -> float:
    if 0 < z < LEAST_MULTIPLIER:
        raise ValueError(
            f"noise_multiplier must be 0, which is no noise, or at least {LEAST_MULTIPLIER}, but got {z:g}"
        )
    return z


Multiplier = Annotated[float, Field(ge=0, le=1e6), AfterValidator(_none_or_enough)]
"""z, the noise's standard deviation over the clip level."""


class PrivacySection(BaseModel):
    """Noise, and what it is to achieve."""

    noise_multiplier: Multiplier | None = Field(
        None,
        description=(
            "z: the noise's standard deviation over the clip level; 0: no noise, and no epsilon. Absent: the least "
            "that keeps `rounds` rounds to epsilon."
        ),
        examples=[1.0],
    )
    delta: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="The delta of (epsilon, delta). Absent: N^-1.1, of N training clients.", examples=[1e-6]
    )
    epsilon: Annotated[float, Field(gt=0, le=1e6)] | None = Field(
        None,
        description="Budget: the run ends before the round that would exceed it. Absent: none.",
        examples=[8.0],
    )
    accountant: AccountantName | None = Field(
        None,
        description=(
            'What computes epsilon: privacy loss distributions ("pld") or Rényi divergences ("rdp"). Absent: "pld" '
            "where it is defined."
        ),
        examples=["rdp"],
    )

    @model_validator(mode="after")
    def _two_of_three(self) -> Self:
        if self.noise_multiplier is None and self.epsilon is None:
            raise ValueError("privacy must have noise_multiplier, epsilon or both, but got neither")
        if self.noise_multiplier == 0 and self.epsilon is not None:
            raise ValueError(
                f"noise_multiplier = 0 adds no noise, which keeps to no epsilon, but got epsilon = {self.epsilon:g}: "
                f"remove epsilon, or noise_multiplier"
            )
        return self

    @property
    def noised(self) -> bool:
        """Whether there is noise at all."""
        return self.noise_multiplier != 0
