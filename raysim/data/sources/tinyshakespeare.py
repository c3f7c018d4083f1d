"""tinyshakespeare: 40,000 lines of the plays as `NAME:`, the speech, an empty line."""

from __future__ import annotations

from raysim.data.sources.gutenberg import Role
from raysim.data.sources.published import SourceFile
from raysim.errors import DataError


def roles(file: SourceFile) -> list[Role]:
    """One role per speaker's name, over all plays: the file does not say where one ends.

    Raises:
        DataError: a speech without a speaker, by line.
    """
    spoken: dict[str, list[str]] = {}
    speaker: str | None = None
    for number, line in enumerate(file.path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            speaker = None
        elif speaker is not None:
            spoken[speaker].append(line)
        elif line.endswith(":"):
            speaker = line[:-1]
            spoken.setdefault(speaker, [])
        else:
            raise DataError(f"{file.path}, line {number}: expected a speaker and a colon, found {line[:40]!r}")
    return [Role(name, tuple(lines)) for name, lines in spoken.items()]
