"""Lists every part that an experiment can name: raysim's, and those of installed packages, without importing them."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType

from raysim.config import section_source
from raysim.config.section_source import GROUP, Named

KEYS: Mapping[str, tuple[Named, str, str]] = MappingProxyType(
    {
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
)
"""For each kind, the key in which an experiment names a part: a section, its key, and the key's dotted name."""

OURS: Mapping[str, tuple[Named, str, str]] = MappingProxyType(
    {
        "composite": (Named("raysim.experiment.experiment", "Experiment"), "composite", "composite"),
        "posterior": (Named("raysim.client.section", "ClientSection"), "posterior", "client.posterior"),
        "compression": (Named("raysim.client.section", "ClientSection"), "compression", "client.compression"),
        "server_compression": (Named("raysim.server.section", "ServerSection"), "compression", "server.compression"),
        "fairness": (Named("raysim.server.section", "ServerSection"), "fairness", "server.fairness"),
        "privacy": (Named("raysim.server.section", "ServerSection"), "privacy", "server.privacy"),
        "personalisation": (
            Named("raysim.client.section", "ClientSection"),
            "personalisation",
            "client.personalisation",
        ),
    }
)
"""The same of kinds whose parts are all raysim's: no package and no script has others."""

ALL: Mapping[str, tuple[Named, str, str]] = MappingProxyType({**KEYS, **OURS})

KEYWORDS = MappingProxyType({"metric": "metrics"})
"""The keyword of a script, if it differs from the kind."""


@dataclass(frozen=True)
class ListedPart:
    """A part in the list. package: "raysim", or the part's package. problem: why it cannot be named; else empty."""

    kind: str
    name: str
    package: str
    version: str
    source: str
    summary: str
    problem: str = ""


def parts(version: str) -> list[ListedPart]:
    """List every part by kind, raysim's first, with this version; the parts of scripts, "own", are left out."""
    listed = [
        ListedPart(kind, each.name, "raysim", version, each.source, each.summary)
        for kind, (section, key, _) in ALL.items()
        for each in section_source.choices(section, key)
        if each.name != "own"
    ]
    listed += [_of_package(entry) for entry in sorted(entry_points(group=GROUP))]
    order = [*ALL, ""]
    return sorted(_with_conflicts(listed), key=lambda each: order.index(each.kind))


def _with_conflicts(found: list[ListedPart]) -> Iterator[ListedPart]:
    """Yield the parts; those whose name several packages have get a problem."""
    owners = Counter((each.kind, each.name) for each in found if not each.problem)
    for each in found:
        others = [o.package for o in found if (o.kind, o.name) == (each.kind, each.name) and o is not each]
        if owners[each.kind, each.name] > 1 and not each.problem:
            each = replace(each, problem=f"{' and '.join(others)} has one of that name too: uninstall one of them")
        yield each


def _of_package(entry: EntryPoint) -> ListedPart:
    package, version = (entry.dist.name, entry.dist.version) if entry.dist else (entry.module, "")
    try:
        kind, described = _read(entry)
    except LookupError:
        return _loaded(entry, package, version)
    return ListedPart(kind, described.name, package, version, described.source, described.summary)


def _read(entry: EntryPoint) -> tuple[str, section_source.Described]:
    """Read the part's kind and its section's description from the source of the call of `raysim.Part`."""
    module, call = section_source.call(Named(entry.module, entry.attr))
    arguments = dict(zip(("kind", "name", "section", "make"), call.args, strict=False))
    arguments |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    described = section_source.choice(module, arguments["section"])
    match arguments.get("kind"), arguments.get("name"):
        case ast.Constant(str(kind)), ast.Constant(described.name) if kind in KEYS:
            return kind, described
    raise LookupError(f"{entry.value} has no kind and name that can be read")


def _loaded(entry: EntryPoint, package: str, version: str) -> ListedPart:
    """Import a part whose source cannot be read."""
    from raysim.config import part

    record = part.load_part(entry)
    if isinstance(record, str):
        return ListedPart("", entry.name, package, version, "", "", record)
    home = sys.modules[record.section.__module__]
    described = section_source.described(record.name, record.section.__doc__, home.__doc__)
    return ListedPart(record.kind, record.name, package, version, described.source, described.summary)
