"""Makes a sampler of what a script passes as `sampler=`: `make(section)`, or `fn(at)`, which draws a cohort.

Both are functions of one argument, so the function is called with the section first. It is `make` if it returns a
`Sampler`. It is `fn` if it returns anything else, or asks the section for what only a `CohortAt` has (`at.round`,
`at.size`, `at.examples`, `at.rng`, ...). Constants may be read from either: both have them.
"""

from __future__ import annotations

from functools import partial
from typing import Any, cast

from raysim.cohort.sampler import CohortAt, Positions, Sampler, State, nothing
from raysim.config.own_part import OwnPart
from raysim.config.plain import shown
from raysim.config.user_call import made_by
from raysim.errors import ExperimentError

WHAT = "sampler="
WANTED = (
    f"{WHAT} must be a function make(section) that returns a raysim.Sampler, such as lambda section: "
    f"raysim.Sampler(...), or fn(at) that returns positions"
)

AT = ("round", "size", "clients", "seed", "constants", "population", "examples", "ids", "rng")
"""What a `CohortAt` has."""


def _unbound(*given: object) -> Any:
    raise AssertionError(f"{WHAT} was not bound")


UNBOUND = Sampler(_unbound, _unbound)
"""Stands for a sampler that the script has not passed yet."""


def make(section: OwnPart) -> Sampler:
    """Return the sampler.

    Raises:
        ExperimentError: what was passed is neither of the two.
    """
    passed = section.passed
    returned = made_by(WANTED, partial(_asked, passed) if callable(passed) else passed, section)
    if isinstance(returned, Sampler):
        return returned if returned.name != "own" else returned._replace(name=section.label)
    if isinstance(returned, tuple | dict):
        raise ExperimentError(f"{WANTED}, but called with the section it returned {shown(returned)}.")

    def sample(state: State, at: CohortAt) -> Positions:
        return cast(Positions, passed(at))

    return Sampler(nothing, sample, name=section.label)


def _asked(passed: Any, section: OwnPart) -> Any:
    """What the function makes of the section; None where it asked for what a section has not."""
    try:
        return passed(section)
    except AttributeError as error:
        if error.obj is not section:
            raise
        if error.name in AT:
            return None
        raise ExperimentError(
            f"{WHAT} asked its argument for {error.name!r}. make(section) is given name, label and constants; fn(at) "
            f"is given {', '.join(AT)}."
        ) from error
