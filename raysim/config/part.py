"""Defines a part: one choice of one kind, with its keys and the function that creates it.

Built-in parts and those of installed packages are the same records. A package lists its parts as entry points of the
group `raysim.parts`, each a `Part`; raysim loads them when a name is not a built-in one.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any, Generic, Literal, NamedTuple, TypeVar, cast, get_args

from pydantic import GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from raysim.config import messages
from raysim.config.own_part import OwnPart, PartSection
from raysim.config.plain import shown
from raysim.config.section import Section
from raysim.config.section_source import GROUP
from raysim.config.user_call import made_by
from raysim.errors import ExperimentError

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
"""The kinds of parts; except for metrics, also the keyword by which a script passes one."""

_KEYS: Mapping[Kind, tuple[str, ...]] = MappingProxyType(
    {"client_optimizer": ("lr", "weight_decay"), "server_optimizer": ("lr",)}
)
"""The keys that every section of a kind must have."""

T = TypeVar("T")


class Part(NamedTuple):
    """One choice of a kind.

    kind: see `Kind`. name: in an experiment. section: its keys; the class has `name: Literal[...]`. make: a function
    from that section to the part, like the function that a script passes. `OwnPart` as a section says that it is a
    script's own, for `check_part`.
    """

    kind: Kind
    name: str
    section: type[Section] | type[OwnPart]
    make: Callable[[Any], Any]


class Choice(Generic[T]):
    """The parts of one kind: built-in ones, those of packages, and a script's.

    Args:
        kind: see `Part`.
        makers: of the built-in parts, by their sections.
        own: a function from a bound section to a script's part; None: what was passed makes it of the section, as a
            package's function does.
        records: the classes of the kind's parts.
    """

    def __init__(
        self,
        kind: Kind,
        makers: Mapping[type[Section], Callable[[Any], T]],
        own: Callable[[OwnPart], T] | None = None,
        records: tuple[Any, ...] = (Callable,),
    ) -> None:
        self.kind, self._own, self._records = kind, own, records
        # Workers import another copy: a change here would not reach them.
        self.makers = MappingProxyType(dict(makers))

    def make(self, section: PartSection) -> T:
        """Return the part of a section.

        Raises:
            ExperimentError: what was passed, or what it makes, is not what the kind takes.
        """
        if isinstance(section, Section) and type(section) in self.makers:
            return self.makers[type(section)](section)
        if isinstance(section, OwnPart):
            return (
                self._own(section)
                if self._own is not None
                else self._part_of(self.title(section), section.passed, section)
            )
        make, package = _of_package(self.kind, section)
        return self._part_of(f"{self.title(section)} of the package {package}", make, section)

    def _part_of(self, title: str, make: Any, section: PartSection) -> T:
        """What the script's or the package's function makes."""
        named = [_public(record) for record in self._records if record is not Callable]
        returns = " or ".join([*(f"a {name}" for name in named), *(["a function"] * (Callable in self._records))])
        example = f", such as lambda section: {named[0]}(...)" if named else ""
        requirement = f"{title} must be a function make(section) that returns {returns}{example}"
        returned = made_by(requirement, make, section)
        if not isinstance(returned, self._records):
            raise ExperimentError(f"{requirement}, but returned {shown(returned)}.")
        return cast(T, returned)

    def is_built_in(self, section: PartSection) -> bool:
        """Whether the section belongs to a built-in part."""
        return type(section) in self.makers

    def title(self, section: PartSection) -> str:
        """Return the part's name in messages: the keyword that passed it, or its name in the experiment."""
        if isinstance(section, OwnPart):
            return f"{section.KEYWORD}="
        return f"the {self.kind} {getattr(section, 'name', '')!r}"


def _public(record: type) -> str:
    """Return the name by which a script imports a record."""
    # What scripts write servers with is in raysim.server, beside the rules.
    server = record.__module__.startswith("raysim.server.") and not record.__module__.endswith(".rule")
    return f"raysim.{'server.' * server}{record.__name__}"


def passed_part(section: OwnPart) -> Any:
    """Return what the script passed, for kinds whose parts it passes as they are."""
    return section.passed


class Packaged:
    """Annotates a key to which packages may add choices: their sections are validated and written like built-in ones.

    Args:
        kind: of the parts.
        at: the dotted key, for messages.
    """

    def __init__(self, kind: Kind, at: str) -> None:
        self.kind, self._at = kind, at

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema, built_in = handler(source), tuple(dict.fromkeys(_names(source)))

        def validated(given: Any, validate: Callable[[Any], Any]) -> Any:
            if isinstance(given, Section):
                return given
            name = given.get("name") if isinstance(given, Mapping) else given
            if not isinstance(name, str):
                return validate(given)
            part = find(self.kind, name, built_in)
            if part is None:
                if name in built_in:
                    return validate(given)
                raise _problem(self._unknown(name, built_in, "" if name is given else ".name"))
            try:
                return part.section.model_validate(given if isinstance(given, Mapping) else {"name": name})
            except ValidationError as error:
                raise _problem(messages.message(error, part.section, self._at)) from None

        dump = core_schema.wrap_serializer_function_ser_schema(_dumped, info_arg=True, schema=schema)
        return core_schema.no_info_wrap_validator_function(validated, schema, serialization=dump)

    def _unknown(self, name: str, built_in: Sequence[str], key: str) -> str:
        known = [*built_in, *(each.part.name for each in load_installed()[0] if each.part.kind == self.kind)]
        alone = "'own', a part that a script passes as a keyword, or the name of a package's part"
        allowed = alone if known == ["own"] else f"one of {', '.join(known)}"
        return (
            f"{self._at}{key} must be {allowed}, but got {name!r}{messages.nearest(name, known)}; a "
            f"package that is not installed here may have it (raysim parts lists what is)"
        )


def _problem(text: str) -> PydanticCustomError:
    return PydanticCustomError(messages.SAID, "{text}", {"text": text})


def _names(annotation: Any) -> Iterator[str]:
    """Yield the names of the choices that an annotation allows."""
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


def find(kind: Kind, name: str, built_in: Container[str] = ()) -> Part | None:
    """Return the installed package's part of that kind and name; None if no package has one.

    Raises:
        ExperimentError: two packages have it, or a package and raysim, so the name is ambiguous; or none has it, and a
            package that may have it cannot be imported.
    """
    parts, broken = load_installed()
    found = [each for each in parts if (each.part.kind, each.part.name) == (kind, name)]
    owners = [*(["raysim"] if name in built_in else []), *sorted(each.package for each in found)]
    if len(owners) > 1:
        raise ExperimentError(
            f"Two packages have a {kind} named {name!r}: {' and '.join(owners)}. Uninstall {owners[-1]}, or have its "
            f"author give the part another name."
        )
    if not owners and broken:
        raise ExperimentError(f"There is no {kind} {name!r}, or it is in a package that fails: {' '.join(broken)}")
    return found[0].part if found else None


def sections() -> Mapping[Kind, tuple[type[Section], ...]]:
    """Return the sections of all installed packages' parts, by kind."""
    found: dict[Kind, tuple[type[Section], ...]] = {}
    for part, _ in load_installed()[0]:
        if issubclass(part.section, Section):
            found[part.kind] = (*found.get(part.kind, ()), part.section)
    return found


@cache
def load_installed() -> tuple[tuple[Installed, ...], tuple[str, ...]]:
    """Import the parts of all installed packages; return them, and a sentence for each that fails."""
    parts, broken = [], []
    for entry in sorted(entry_points(group=GROUP)):
        part = load_part(entry)
        if isinstance(part, str):
            broken.append(part)
        else:
            parts.append(Installed(part, _package(entry)))
    return tuple(parts), tuple(broken)


def load_part(entry: EntryPoint) -> Part | str:
    """Import a package's part; return a sentence if it fails."""
    try:
        part = entry.load()
    except Exception as error:
        return f"{entry.value} of the package {_package(entry)} cannot be imported: {error!r}."
    why = _refusal(part)
    return f"{entry.value} of the package {_package(entry)} {why}." if why else cast(Part, part)


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else entry.module


def _refusal(part: Any) -> str | None:
    """Return why an object is not a valid part; None if it is one."""
    if not isinstance(part, Part):
        return f"must be a raysim.Part, but is {shown(part)}"
    if part.kind not in get_args(Kind):
        return f"must have a kind among {', '.join(get_args(Kind))}, but has {part.kind!r}"
    section: Any = part.section
    if not (isinstance(section, type) and issubclass(section, Section)):
        return f"must have a subclass of raysim.Section as its section, but has {shown(section)}"
    keys = part.section.model_fields
    if "name" not in keys or get_args(keys["name"].annotation) != (part.name,) or keys["name"].default != part.name:
        return (
            f"must have a section with the key name: Literal[{part.name!r}] = {part.name!r}, by which an experiment "
            f"names it, but {part.section.__name__} has {keys.get('name', 'no such key')}"
        )
    if missing := [key for key in _KEYS.get(part.kind, ()) if key not in keys]:
        return f"must have a section with {' and '.join(missing)}, which every {part.kind} has"
    return None


def _of_package(kind: Kind, section: Section) -> tuple[Callable[[Any], Any], str]:
    """Return the function of a package's part, and the package."""
    for part, package in load_installed()[0]:
        if part.kind == kind and part.section is type(section):
            return part.make, package
    raise ExperimentError(f"{type(section).__name__} is the section of no {kind} that is installed here.")
