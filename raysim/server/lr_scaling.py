"""Scales the server learning rate with the cohort, and warms it up.

target = r(M / M_ref) lr, r(z) = 1 ("none"), sqrt(z) ("sqrt") or z ("linear");
s = min(1, (t + 1) / warmup), 1 without warm-up;
from = "zero": s target; from = "base": lr + s (target - lr).

M is the configured size of the round's cohort, t the number of finished rounds.

Source: Charles et al. (2021), equation 3 and appendix B.7; docs/algorithms.md section 1.
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, model_validator

from raysim.config.section import Section, has_other
from raysim.config.values import Positive, Whole


class LrScaling(Section):
    """Scaling of the server learning rate with the cohort size."""

    rule: Literal["none", "sqrt", "linear"] = Field("none", description="How the learning rate grows with the cohort.")
    reference: Positive | None = Field(
        None, description='M_ref, the cohort size at which lr was tuned; required by "sqrt" and "linear".'
    )
    warmup: Whole = Field(0, description="Rounds of warm-up.")
    start: Literal["zero", "base"] = Field(
        "zero", alias="from", description="Where the warm-up begins. Python reads it as `.start`."
    )

    @model_validator(mode="after")
    def _reference_where_it_means_something(self) -> LrScaling:
        if (self.rule == "none") != (self.reference is None):
            raise ValueError(
                f"reference, the cohort size that lr was found at, must be given with rule 'sqrt' or 'linear' and "
                f"only there, but got rule = {self.rule!r} and reference = {self.reference}"
            )
        if not self.warmup and has_other(self, "start"):
            raise ValueError(
                f"from = {self.start!r} says where a warm-up begins, and there is none: set warmup to its rounds, or "
                f"leave from out"
            )
        return self


def lr_after(section: LrScaling, lr: float, cohort_size: float, t: int) -> float:
    """The learning rate of the round after t finished ones, before any decay.

    >>> [lr_after(LrScaling(rule="sqrt", reference=50, warmup=2), 0.5, 200, t) for t in range(3)]
    [0.5, 1.0, 1.0]
    """
    ratio = 1.0 if section.reference is None else cohort_size / section.reference
    target = lr * (math.sqrt(ratio) if section.rule == "sqrt" else ratio)
    s = min(1.0, (t + 1) / section.warmup) if section.warmup else 1.0
    return s * target if section.start == "zero" else lr + s * (target - lr)
