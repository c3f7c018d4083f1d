"""Defines the kinds of values that keys take, with their bounds.

A bound is far beyond what anyone has run, and far below what arithmetic in float32 and memory allow: so two of them can
be multiplied. A key with a narrower meaning states its own.
"""

from __future__ import annotations

from numbers import Integral
from types import MappingProxyType
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from raysim.config.plain import shown


def is_whole(value: object) -> bool:
    """Whether a value is a whole number, of Python's or NumPy's kinds; `True` and 1.0 are none.

    >>> is_whole(3), is_whole(True), is_whole(1.0)
    (True, False, False)
    """
    return isinstance(value, Integral) and not isinstance(value, bool)


LONG = 10_000
"""From here on, integers are written with a mark between thousands."""


def written(bound: float) -> str:
    """Return a bound as a TOML file may have it.

    >>> written(1_000_000), written(1e12), written(0.5), written(1024)
    ('1_000_000', '1e12', '0.5', '1024')
    """
    if isinstance(bound, int):
        return f"{bound:_}" if abs(bound) >= LONG else str(bound)
    return f"{bound:g}".replace("e+", "e").replace("e-0", "e-").replace("e0", "e")


Count = Annotated[int, Field(ge=1, le=10**9)]
"""How many of something, at least one."""

Whole = Annotated[int, Field(ge=0, le=10**9)]
"""How many of something, or none."""

TotalAmount = Annotated[int, Field(ge=1, le=10**18)]
"""Of work or traffic, over all rounds."""

Steps = Annotated[int, Field(ge=1, le=10**6)]
"""Steps, epochs or rounds that are taken one after the other; examples of one step."""

Width = Annotated[int, Field(ge=1, le=10**6)]
"""Units of a layer, words of a vocabulary, words of a text."""

Depth = Annotated[int, Field(ge=1, le=1_000)]
"""Layers on top of each other."""

LAST_SEED = 2**63 - 1

Seed = Annotated[int, Field(ge=-(2**63), lt=LAST_SEED + 1)]
"""Of draws."""

Factor = Annotated[float, Field(ge=0, le=1e6)]
"""A learning rate, or a factor of a vector that is added to a gradient."""

Positive = Annotated[float, Field(ge=1e-12, le=1e12)]
"""A quantity that is divided by, or whose logarithm is taken."""

NonNegative = Annotated[float, Field(ge=0, le=1e12)]
"""A quantity."""

Real = Annotated[float, Field(ge=-1e12, le=1e12)]
"""A number of either sign."""

Epsilon = Annotated[float, Field(ge=1e-20, le=1e6)]
"""A number that keeps a divisor from zero; its square is not zero in float64."""

Spread = Annotated[float, Field(ge=0, le=20)]
"""Standard deviation of a logarithm: exp(20 z) is finite for every z that is drawn."""

RUN_NAME = "^[A-Za-z0-9][A-Za-z0-9._-]*$"

IN_WORDS = MappingProxyType({RUN_NAME: "letters, digits, '.', '_' and '-', beginning with a letter or a digit"})
"""What messages say of the patterns of texts."""

NAME_LETTERS = 100
Name = Annotated[str, Field(max_length=NAME_LETTERS)]
"""Of a part, a column or a split."""

LONGEST_NAME = 200
"""Bytes of a file's name: file systems take 255, and raysim adds endings."""


def _checked_path(text: str) -> str:
    if any(len(name.encode()) > LONGEST_NAME for name in text.split("/")):
        longest = max(text.split("/"), key=lambda name: len(name.encode()))
        raise ValueError(
            f"the names of a path have at most {LONGEST_NAME} bytes each, but one has {len(longest.encode())}: "
            f"{shown(longest)}"
        )
    if text.startswith("~") and not text.startswith("~/") and text != "~":
        raise ValueError(
            f"a path may begin with ~/, the home folder, but not with that of another user: got {shown(text)}"
        )
    return text


FilePath = Annotated[str, Field(max_length=1_000), AfterValidator(_checked_path)]
"""Of a file or folder; a URI, where a key takes one."""

ClientId = Annotated[
    str,
    Field(max_length=1_000),
    BeforeValidator(lambda value: str(value) if isinstance(value, int) and not isinstance(value, bool) else value),
]
"""Client ids are texts; a file may write them as integers."""

Constant = (
    bool
    | Annotated[int, Field(ge=-(2**63), lt=2**63)]
    | Annotated[float, Field(ge=-1e300, le=1e300)]
    | Annotated[str, Field(max_length=1_000)]
)
"""Of a part that a script passes."""
