"""Writes the address of a SQLite file as databases take it: letters of its path, such as "?", end a path in a URL."""

from __future__ import annotations

from pathlib import Path

from raysim.errors import RaysimError


def sqlite_url(file: Path, error: type[RaysimError]) -> str:
    """Return the URL that SQLAlchemy reads as this file.

    >>> sqlite_url(Path("runs/lr?/study.db"), RaysimError)
    'sqlite:///runs/lr%3F/study.db'

    Raises:
        RaysimError: of the class `error`; no URL names the file.
    """
    from sqlalchemy.engine import URL, make_url  # slow to import

    try:
        url = URL.create("sqlite", database=str(file)).render_as_string()
        is_read = make_url(url).database == str(file)
    except UnicodeEncodeError:
        is_read = False
    if not is_read:
        # Versions of SQLAlchemy differ in what they escape.
        raise error(
            f"{str(file)!r} cannot be the file of a database, because no URL names it: choose a folder whose path is "
            f"text in UTF-8, without '?' and '%'."
        )
    return url
