"""Defines the sections of parts that a script passes: the experiment has the part's label and its constants.

So constants can be swept, tuned and compared like the keys of any other choice. raysim cannot compare the script's
code. `bound` enters the function that the script passed in a section.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, Field, PrivateAttr, field_validator

from raysim.config.section import Section
from raysim.config.values import Constant, Factor, Name


def _refused(self: Constants, *given: Any, **named: Any) -> Any:
    raise TypeError(
        "constants cannot be changed: all calls of a part, here and on workers, read those of the experiment; what "
        "changes belongs in the part's state, and another experiment is made by experiment.changed({...})"
    )


class Constants(dict[str, Any]):
    """Constants by name, which nobody changes; one that is not there is answered with those that are."""

    def __missing__(self, name: str) -> Any:
        # Without double quotes: a KeyError is shown as a quoted text.
        raise KeyError(
            f"constants has no {name!r}: it has {', '.join(self) or 'none'}; the part's table in the experiment, with "
            f"name = 'own', takes more, as constants = {{ {name} = 0.1 }}"
        )

    __setitem__ = __delitem__ = __ior__ = _refused
    clear = pop = popitem = setdefault = update = _refused

    def __reduce__(self) -> tuple[Any, ...]:
        return Constants, (dict(self),)


class OwnPart(BaseModel):
    """Keys of every part that a script passes as a keyword."""

    KEYWORD: ClassVar[str]
    """The keyword by which a script passes it."""

    name: Literal["own"] = "own"
    label: Name = Field("own", description="Name in reports, which tells it from another.")
    constants: dict[Name, Constant] = Field(
        default_factory=Constants, max_length=100, description="Its constants, by name."
    )

    _passed: Any = PrivateAttr(None)

    @field_validator("constants")
    @classmethod
    def _named(cls, constants: dict[str, Any]) -> dict[str, Any]:
        return Constants(constants)

    def bound(self, passed: Any) -> Self:
        """Return a copy with the object that the script passed."""
        copy = self.model_copy()
        copy._passed = passed
        return copy

    @property
    def is_bound(self) -> bool:
        """Whether it has the object that the script passed."""
        return self._passed is not None

    @property
    def passed(self) -> Any:
        """The object that the script passed."""
        assert self._passed is not None, f"{self.KEYWORD}= was not bound"
        return self._passed


PartSection = Section | OwnPart
"""The section of a part: of a built-in one, a package's or a script's own."""


def is_unbound(section: object) -> bool:
    """Whether the section names a part of a script that the script has not passed yet.

    >>> own = OwnSampler()
    >>> is_unbound(own), is_unbound(own.bound(print)), is_unbound(None)
    (True, False, False)
    """
    return isinstance(section, OwnPart) and not section.is_bound


def own_parts(section: PartSection) -> Iterator[OwnPart]:
    """Yield the script's parts that a section, or a section within it, names."""
    if isinstance(section, OwnPart):
        yield section
    for key in type(section).model_fields:
        value = getattr(section, key)
        for inner in value if isinstance(value, tuple) else (value,):
            if isinstance(inner, Section):
                yield from own_parts(inner)


class OwnObjective(OwnPart, Section):
    """A local objective that a script passes; its constants are `at.constants`."""

    KEYWORD = "objective"


class OwnCorrection(OwnPart, Section):
    """A correction that a script passes."""

    KEYWORD = "correction"


class OwnClientOptimizer(OwnPart, Section):
    """A client optimizer that a script passes."""

    KEYWORD = "client_optimizer"

    lr: Factor = Field(0.1, description="Learning rate of the first round.")
    weight_decay: Factor = Field(0.0, description="Factor of the weights that are added to the gradient.")


class OwnTransform(OwnPart, Section):
    """A transform of updates that a script passes."""

    KEYWORD = "transform"


class OwnSampler(OwnPart, Section):
    """A sampler of cohorts that a script passes."""

    KEYWORD = "sampler"


class OwnAggregator(OwnPart, Section):
    """An aggregator that a script passes."""

    KEYWORD = "aggregator"


class OwnWeighting(OwnPart, Section):
    """A weighting of updates that a script passes."""

    KEYWORD = "weighting"


class OwnServerOptimizer(OwnPart, Section):
    """A server optimizer that a script passes."""

    KEYWORD = "server_optimizer"

    lr: Factor = Field(1.0, description="Server learning rate; scaled and scheduled, it arrives with each descent.")


class OwnMetric(OwnPart, Section):
    """A metric that a script passes; its label is its name in `metrics=`, and the name of its columns."""

    KEYWORD = "metrics"

    constants: dict[Name, Constant] = Field(
        default_factory=dict, max_length=0, description="None: a script's metric is passed as it is."
    )


OwnSection = (
    OwnObjective
    | OwnCorrection
    | OwnClientOptimizer
    | OwnTransform
    | OwnSampler
    | OwnAggregator
    | OwnWeighting
    | OwnServerOptimizer
    | OwnMetric
)
