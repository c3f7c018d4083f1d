"""Lists every part that an experiment can name: raysim's, and those of installed packages, without importing them."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points

from raysim.config import reading
from raysim.config.reading import GROUP, Named

KEYS: Mapping[str, tuple[Named, str, str]] = {
    "objective": (Named("raysim.client.section", "ClientSection"), "objective", "client.objective"),
    "correction": (Named("raysim.client.section", "ClientSection"), "correction", "client.correction"),
    "client_optimizer": (Named("raysim.client.section", "ClientSection"), "optimizer", "client.optimizer"),
    "transform": (Named("raysim.client.section", "ClientSection"), "transform", "client.transform"),
    "sampler": (Named("raysim.cohort.section", "CohortSection"), "sampler", "cohort.sampler"),
    "aggregator": (Named("raysim.server.section", "ServerSection"), "aggregator", "server.aggregator"),
    "weighting": (Named("raysim.server.section", "ServerSection"), "weighting", "server.weighting"),
    "server_optimizer": (Named("raysim.server.section", "ServerSection"), "optimizer", "server.optimizer"),
    "metric": (Named("raysim.experiment.experiment", "EvaluationSection"), "metrics", "evaluation.metrics"),
}
"""Where an experiment names a part of each kind: a section, its key, and the key's dotted name."""

KEYWORDS = {"metric": "metrics"}
"""The keyword of a script, where it is not the kind."""


@dataclass(frozen=True)
class ListedPart:
    """A part in the list. package: "raysim", or the one that has it. problem: why it cannot be named; else empty."""

    kind: str
    name: str
    package: str
    version: str
    source: str
    summary: str
    problem: str = ""


def parts(version: str) -> list[ListedPart]:
    """Every part: by kind, raysim's first, which has this version; a script's own, "own", is in none of the lists."""
    found = [
        ListedPart(kind, each.name, "raysim", version, each.source, each.summary)
        for kind, (section, key, _) in KEYS.items()
        for each in reading.choices(section, key)
        if each.name != "own"
    ]
    found += [_of_package(entry) for entry in sorted(entry_points(group=GROUP))]
    order = [*KEYS, ""]
    return sorted(_told_apart(found), key=lambda each: order.index(each.kind))


def _told_apart(found: list[ListedPart]) -> Iterator[ListedPart]:
    """The same, with what is wrong where one name has several owners."""
    owners = Counter((each.kind, each.name) for each in found if not each.problem)
    for each in found:
        others = [o.package for o in found if (o.kind, o.name) == (each.kind, each.name) and o is not each]
        if owners[each.kind, each.name] > 1 and not each.problem:
            each = replace(each, problem=f"{' and '.join(others)} has one of that name too: uninstall one of them")
        yield each


def _of_package(entry: EntryPoint) -> ListedPart:
    package, version = (entry.dist.name, entry.dist.version) if entry.dist else (entry.module, "")
    try:
        kind, said = _read(entry)
    except LookupError:
        return _loaded(entry, package, version)
    return ListedPart(kind, said.name, package, version, said.source, said.summary)


def _read(entry: EntryPoint) -> tuple[str, reading.Described]:
    """The part's kind and what its section says, from the source of the call of `raysim.Part`."""
    module, call = reading.call(Named(entry.module, entry.attr))
    given = dict(zip(("kind", "name", "section", "make"), call.args, strict=False))
    given |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    said = reading.choice(module, given["section"])
    match given.get("kind"), given.get("name"):
        case ast.Constant(str(kind)), ast.Constant(said.name) if kind in KEYS:
            return kind, said
    raise LookupError(f"{entry.value} has no kind and name that can be read")


def _loaded(entry: EntryPoint, package: str, version: str) -> ListedPart:
    """A part whose source says nothing: it is imported."""
    from raysim.config import part

    found = part.loaded(entry)
    if isinstance(found, str):
        return ListedPart("", entry.name, package, version, "", "", found)
    home = sys.modules[found.section.__module__]
    said = reading.said(found.name, found.section.__doc__, home.__doc__)
    return ListedPart(found.kind, found.name, package, version, said.source, said.summary)
