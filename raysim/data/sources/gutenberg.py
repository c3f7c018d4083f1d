"""Parses the Complete Works of Shakespeare (Project Gutenberg etext 100, or tinyshakespeare) into roles."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from raysim.data.sources.published import SourceFile
from raysim.errors import DataError

_AUTHOR = "by William Shakespeare"
# Of the editions of 1994, and of 2011 and later.
_END = re.compile(r"End of this Etext|End of the Project Gutenberg|\*\*\* ?END OF")
_TITLE_WITHIN = 7
_NOT_INDENTED = "THE COMEDY OF ERRORS"
_NO_PLAY = "THE SONNETS"

_SPEECH = re.compile(r"  ([a-zA-Z][a-zA-Z ]*)\. (.*)")
_CONTINUED = re.compile(r"    (.*)")
_SPEECH_AT_MARGIN = re.compile(r"([a-zA-Z][a-zA-Z ]*)\. (.*)")


@dataclass(frozen=True)
class Role:
    """A speaker and its lines, in order; the same name in two plays is two roles."""

    name: str
    lines: tuple[str, ...]


def roles(file: SourceFile) -> list[Role]:
    """Return every role of every play, in order of first speech; the name is "PLAY_ROLE" with underscores.

    It reads editions of 1994 to 2011. There a play begins two to seven lines above "by William Shakespeare". A speech
    begins with two blanks, the speaker in letters and a full stop; its further lines begin with four blanks. The Comedy
    of Errors is not indented. The rules, and upper case for all names, are those of LEAF's script (by McMahan and
    others).

    Raises:
        DataError: the text is not UTF-8, has no play, or has no end.
    """
    with file.reading("text in UTF-8"):
        lines = file.path.read_text(encoding="utf-8-sig").splitlines()
    plays = [play for play in _plays(lines) if len(play[1]) > 1 and play[0] != _NO_PLAY]
    if not plays:
        raise DataError(
            f"{file.path}: expected the editions of 1994 to 2011, whose plays stand below {_AUTHOR!r} with speeches "
            f"indented by two blanks, found no play"
        )
    if not any(map(_END.match, lines)):
        raise DataError(
            f"{file.path}: expected a line that begins with 'End of the Project Gutenberg', 'End of this Etext' or "
            f"'*** END OF', found none in {len(lines):,} lines: its end is cut off"
        )
    found = [
        Role(re.sub(r"\W+", "_", f"{title}_{speaker}"), tuple(spoken))
        for title, parts in plays
        for speaker, spoken in parts.items()
    ]
    name, times = Counter(role.name for role in found).most_common(1)[0]
    if times > 1:
        raise DataError(f"{file.path}: expected roles of different names, found {times} that are called {name!r}")
    return found


def _plays(lines: list[str]) -> list[tuple[str, dict[str, list[str]]]]:
    """Return (title, lines by speaker) of every work, including those without speakers."""
    plays: list[tuple[str, dict[str, list[str]]]] = []
    speaker: str | None = None
    at_margin = False
    for number, line in enumerate(lines):
        if _AUTHOR in line:
            title = _title(lines, number)
            speaker, at_margin = None, title == _NOT_INDENTED
            plays.append((title, {}))
            continue
        if not plays:
            continue
        if _END.match(line):
            break
        speech = (_SPEECH_AT_MARGIN if at_margin else _SPEECH).match(line)
        if speech:
            name = speech.group(1).upper()
            speaker = None if at_margin and name.startswith("ACT ") else name
            if speaker is not None:
                plays[-1][1].setdefault(speaker, []).append(speech.group(2))
        elif speaker is not None:
            if at_margin and line.startswith("<"):
                speaker = None
            elif at_margin:
                plays[-1][1][speaker].append(line)
            elif going_on := _CONTINUED.match(line):
                plays[-1][1][speaker].append(going_on.group(1))
    return plays


def _title(lines: list[str], number: int) -> str:
    """Return the nearest line with text, two to seven lines above."""
    for above in range(2, _TITLE_WITHIN + 1):
        if number >= above and lines[number - above].strip():
            return lines[number - above].strip()
    return ""


def tiny_roles(file: SourceFile) -> list[Role]:
    """Return the roles of tinyshakespeare, whose 40,000 lines are `NAME:`, the speech, an empty line.

    A role is a speaker's name over all plays: the file does not mark the end of a play.

    Raises:
        DataError: a speech has no speaker, which names the line; or there is no speech.
    """
    spoken: dict[str, list[str]] = {}
    speaker: str | None = None
    with file.reading("text in UTF-8"):
        lines = file.path.read_text(encoding="utf-8-sig").splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            speaker = None
        elif speaker is not None:
            spoken[speaker].append(line)
        elif line.endswith(":"):
            speaker = line[:-1]
            spoken.setdefault(speaker, [])
        else:
            raise DataError(f"{file.path}, line {number}: expected a speaker and a colon, found {line[:40]!r}")
    if not spoken:
        raise DataError(f"{file.path}: expected speeches below their speakers, found none")
    return [Role(name, tuple(lines)) for name, lines in spoken.items()]
