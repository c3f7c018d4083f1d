"""Reads the commands of the page about the papers' experiments."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import raysim
from raysim.experiment import sweep

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "papers.md"


class Command(NamedTuple):
    """A command in a block of the page.

    label: M1, M2, ...; None for what is in no paper. file: of the experiment, without its suffix. name: of the folder
    it writes, "" for none. points: what it runs. reads: the folders, in `runs`, from which a command that runs nothing
    makes pictures.
    """

    label: str | None
    text: str
    kind: str
    file: str
    name: str
    points: tuple[raysim.Experiment, ...]
    reads: tuple[str, ...] = ()


def spread(text: str) -> list[str]:
    """Return the labels that a text names.

    >>> spread("M1, M3 to M5 and M9"), spread("figure 2")
    (['M1', 'M3', 'M4', 'M5', 'M9'], [])
    """
    found = []
    for letter, first, last in re.findall(r"\b([A-Z])(\d+)(?: to [A-Z](\d+))?\b", text):
        found += [f"{letter}{number}" for number in range(int(first), int(last or first) + 1)]
    return found


def sections() -> dict[str, str]:
    """Return the page's sections about papers, by heading."""
    parts = re.split(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def groups(section: str) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the labels in a comment of a block of commands, and the commands below it."""
    for block in re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL):
        for comment, lines in re.findall(r"^# (.+)\n((?:raysim .+\n)+)", block, re.MULTILINE):
            yield spread(re.split(r"[,;:]", comment, maxsplit=1)[0]), lines.splitlines()


@cache
def commands() -> tuple[Command, ...]:
    """Return all commands of the page, in order."""
    found = []
    for section in sections().values():
        for labels, lines in groups(section):
            named: list[str | None] = [*labels] or [None] * len(lines)
            found += [_command(label, line) for label, line in zip(named, lines, strict=True)]
    return tuple(found)


def _command(label: str | None, text: str) -> Command:
    kind, *words = shlex.split(text)[1:]
    if kind in ("best", "interpolate"):
        return _picture(label, text, kind, words)
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("kind")
    parser.add_argument("file")
    for option in ("--set", "--unset", "--sweep"):
        parser.add_argument(option, action="append", default=[])
    parser.add_argument("--centralized", action="store_true")
    asked = parser.parse_args(shlex.split(text)[1:])
    exp = raysim.load(ROOT / asked.file, asked.set, asked.unset)
    if asked.centralized:
        exp = raysim.centralized(exp)
    points = tuple(point.experiment for point in sweep.points(exp, sweep.parse(asked.sweep))) if asked.sweep else (exp,)
    name = {"run": exp.name, "tune": f"{exp.name}-tuning", "check": ""}[asked.kind]
    return Command(label, text, asked.kind, asked.file.removeprefix("configs/").removesuffix(".toml"), name, points)


def _picture(label: str | None, text: str, kind: str, words: Sequence[str]) -> Command:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("folders", nargs="+", type=_folder)
    for option in ("--by", "--after", "--shown"):
        parser.add_argument(option, action="append", default=[])
    parser.add_argument("--out", required=True, type=_folder)
    asked = parser.parse_args(words)
    return Command(label, text, kind, "", asked.out, (), tuple(asked.folders))


def _folder(path: str) -> str:
    folder, _, name = path.partition("/")
    assert folder == "runs", path
    return name
