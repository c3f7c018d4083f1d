"""Defines a part: one choice of one kind, with its keys and the function that makes it.

Built-in parts and those of installed packages are the same records. A package lists its parts as entry points of the
group `raysim.parts`, each a `Part`; they are loaded when a name is not a built-in one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any, Generic, Literal, NamedTuple, TypeVar, cast, get_args

from pydantic import GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, core_schema

from raysim.config import messages
from raysim.config.own import OwnPart
from raysim.config.section import Section
from raysim.errors import ExperimentError

GROUP = "raysim.parts"
"""Entry points of this group are parts."""

Kind = Literal[
    "objective",
    "correction",
    "client_optimizer",
    "transform",
    "sampler",
    "aggregator",
    "weighting",
    "server_optimizer",
    "metric",
]
"""What parts there are; but for metrics, also the keyword under which a script passes one."""

T = TypeVar("T")


class Part(NamedTuple):
    """One choice of a kind.

    kind: what it is a choice of. name: in an experiment. section: its keys; the class has `name: Literal[...]`.
    make: from that section to what a script would pass a function for.
    """

    kind: Kind
    name: str
    section: type[Section]
    make: Callable[[Any], Any]


class Choice(Generic[T]):
    """The parts of one kind: built-in ones, those of packages, and the script's own.

    Args:
        kind: see `Part`.
        makers: of the built-in parts, by their sections.
        own: what a bound section of a script's own means; by default what the passed function makes of the section.
        record: of which class a part is, where it is a record.
    """

    def __init__(
        self,
        kind: Kind,
        makers: Mapping[type[Section], Callable[[Any], T]],
        own: Callable[[OwnPart], T] = lambda section: cast(T, section.made()),
        record: type[T] | None = None,
    ) -> None:
        self.kind, self._own, self._record = kind, own, record
        # Workers import their own copy: what is changed here would stay here.
        self.makers = MappingProxyType(dict(makers))

    def make(self, section: Section) -> T:
        """Return what the section means.

        Raises:
            ExperimentError: the part is not the record that it has to be.
        """
        if type(section) in self.makers:
            return self.makers[type(section)](section)
        made = self._own(section) if isinstance(section, OwnPart) else _of_package(self.kind, section)(section)
        if self._record is not None and not isinstance(made, self._record):
            raise ExperimentError(
                f"{self.said(section)} must return a raysim.{self._record.__name__}, but returned {made!r}."
            )
        return made

    def is_built_in(self, section: Section) -> bool:
        """Whether the section is of a built-in part."""
        return type(section) in self.makers

    def said(self, section: Section) -> str:
        """How messages name the part: by the keyword that passed it, or by its name in the experiment."""
        if isinstance(section, OwnPart):
            return f"{section.KEYWORD}="
        return f"the {self.kind} {getattr(section, 'name', '')!r}"


class Packaged:
    """Annotates a key whose choices packages may add to: their sections are validated and written like built-in ones.

    Args:
        kind: of the parts.
        at: the dotted key, for messages.
    """

    def __init__(self, kind: Kind, at: str) -> None:
        self._kind, self._at = kind, at

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema, built_in = handler(source), frozenset(_names(source))

        def validated(given: Any, validate: Callable[[Any], Any]) -> Any:
            name = given.get("name") if isinstance(given, Mapping) else given
            if not isinstance(name, str) or name in built_in or (part := find(self._kind, name)) is None:
                return given if isinstance(given, Section) else validate(given)
            try:
                return part.section.model_validate(given if isinstance(given, Mapping) else {"name": name})
            except ValidationError as error:
                raise ValueError(messages.message(error, part.section, self._at)) from None

        dump = core_schema.wrap_serializer_function_ser_schema(_dumped, info_arg=True, schema=schema)
        return core_schema.no_info_wrap_validator_function(validated, schema, serialization=dump)


def _names(annotation: Any) -> Iterator[str]:
    """The names of the choices that an annotation allows."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation.model_fields["name"].default
    for each in get_args(annotation):
        yield from [each] if isinstance(each, str) else _names(each)


def _dumped(value: Any, built_in: Callable[[Any], Any], info: Any) -> Any:
    if not isinstance(value, Section):
        return built_in(value)
    return value.model_dump(
        mode=info.mode, by_alias=info.by_alias, exclude_unset=info.exclude_unset, exclude_none=info.exclude_none
    )


class Installed(NamedTuple):
    """A part of an installed package."""

    part: Part
    package: str


def find(kind: Kind, name: str) -> Part | None:
    """Return the installed package's part of that kind and name; None where no package has one.

    Raises:
        ExperimentError: two packages have it; or none, and one cannot be imported, which may have it.
    """
    parts, broken = installed()
    found = [each for each in parts if (each.part.kind, each.part.name) == (kind, name)]
    if len(found) > 1:
        owners = " and ".join(sorted(each.package for each in found))
        raise ExperimentError(f"Two packages have a {kind} named {name!r}: {owners}. Uninstall one of them.")
    if not found and broken:
        raise ExperimentError(f"There is no {kind} {name!r}, or it is in a package that fails: {' '.join(broken)}")
    return found[0].part if found else None


@cache
def installed() -> tuple[tuple[Installed, ...], tuple[str, ...]]:
    """Import the parts of all installed packages; return them, and a sentence for each that cannot be had."""
    parts, broken = [], []
    for entry in sorted(entry_points(group=GROUP)):
        package = entry.dist.name if entry.dist else entry.value
        try:
            part = entry.load()
        except Exception as error:
            broken.append(f"{entry.value} of the package {package} cannot be imported: {error!r}.")
            continue
        if isinstance(part, Part) and part.kind in get_args(Kind):
            parts.append(Installed(part, package))
        else:
            broken.append(f"{entry.value} of the package {package} must be a raysim.Part, but is {part!r}.")
    return tuple(parts), tuple(broken)


def _of_package(kind: Kind, section: Section) -> Callable[[Any], Any]:
    for part, _ in installed()[0]:
        if part.kind == kind and part.section is type(section):
            return part.make
    raise ExperimentError(f"{type(section).__name__} is the section of no {kind} that is installed here.")
