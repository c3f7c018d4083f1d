"""Opens a study's storage: SQLite, a journal file, or any database that Optuna supports."""

from __future__ import annotations

import os
import re
import sqlite3
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from optuna import storages
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, RDBStorage
from sqlalchemy import NullPool, create_engine
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, OperationalError, ProgrammingError, SQLAlchemyError

from raysim import RaysimError
from raysim.storage.inside import inside
from raysim.storage.reading import regular, why
from raysim.storage.remote.uri import check_is_path, uri_of
from raysim.storage.sqlite_url import sqlite_url
from tuning.errors import StorageError, StudyError
from tuning.journal import Journal
from tuning.write_ahead import is_here, put_back, write_ahead

JOURNAL = "journal:"

_WAITS_S = (0.1, 0.3, 1.0, 3.0)
"""Seconds between attempts, when two processes create the tables of a new database."""
_BUSY_S = 60
"""Seconds that a SQLite file may be busy with another process."""


_PASSWORD = re.compile(r"(//[^:/@]*:)[^/@]*(?=@)")


def default_url(folder: Path) -> str:
    """Return the URL of the SQLite file of a study's folder; StudyError if no URL names it."""
    return sqlite_url(folder / "study.db", StudyError)


def shown(url: str) -> str:
    """Return the URL without its password."""
    try:
        return _parsed(url).render_as_string(hide_password=True)
    except ArgumentError:
        return _PASSWORD.sub(r"\1***", url)


def absolute(url: str) -> str:
    """Return the URL with an absolute path if it names a file: a script, or a part of it, may change its folder.

    >>> absolute("journal:/tmp/study.log"), absolute("postgresql://user@host/name")
    ('journal:/tmp/study.log', 'postgresql://user@host/name')

    Raises:
        StorageError: no URL names the file by its absolute path.
    """
    if url.startswith(JOURNAL):
        file = url.removeprefix(JOURNAL)
        return url if uri_of(file) else f"{JOURNAL}{Path(file).absolute()}"
    try:
        address = _parsed(url)
    except ArgumentError:
        # What opens it says what is wrong.
        return url
    is_uri, path = _sqlite_path(address)
    if not path or Path(path).is_absolute():
        return url
    database = f"{_SQLITE_URI if is_uri else ''}{Path(path).absolute()}"
    found = address.set(database=database).render_as_string(hide_password=False)
    if _parsed(found).database != database:
        raise StorageError(f"The storage {url} is {database}, which no URL names: put it into another folder.")
    return found


_SQLITE_URI = "file:"


def _sqlite_path(address: URL) -> tuple[bool, str]:
    """Return whether SQLite takes a URL's database as a URI, and the path of its file; "" if it has none."""
    database = address.database or ""
    if address.get_backend_name() != "sqlite" or database == ":memory:" or address.query.get("mode") == "memory":
        return False, ""
    return database.startswith(_SQLITE_URI), database.removeprefix(_SQLITE_URI)


def portable_address(url: str, folder: Path) -> str:
    """Return the storage for the study's folder to record: the same from everywhere, without its password.

    A file has its absolute path; a file in the folder has its path relative to it, because folders are moved.
    """
    if url.startswith(JOURNAL):
        return JOURNAL + _path_from(folder, url.removeprefix(JOURNAL))
    try:
        address = _parsed(url)
    except ArgumentError:
        return shown(url)
    if address.get_backend_name() == "sqlite" and address.database:
        address = address.set(database=_path_from(folder, address.database))
    return address.render_as_string(hide_password=True)


def kept(recorded: str, folder: Path) -> str:
    """Return the URL of a study that is kept in its folder, from what `portable_address` has recorded there.

    Raises:
        StudyError: it is kept elsewhere, or its file is not there.
    """
    kind, _, file = recorded.partition("///") if recorded.startswith("sqlite:") else recorded.partition(":")
    if kind == "sqlite:":
        file = _parsed(recorded).database or ""
    if kind not in ("sqlite:", JOURNAL.rstrip(":")) or Path(file).is_absolute() or not file:
        if recorded == "a table":
            raise StudyError(f"{folder} is a study on a table, which is not kept: carry it out again, in seconds.")
        raise StudyError(f"The trials of {folder} are kept in {recorded}: pass the study's storage (storage=...).")
    place = inside(folder, file, folder, StudyError)
    if not place.is_file():
        raise StudyError(f"The trials of {folder} are kept in {place}, which is not there.")
    return sqlite_url(place, StudyError) if kind == "sqlite:" else f"{JOURNAL}{place}"


def _path_from(folder: Path, file: str) -> str:
    absolute, inside = Path(file).absolute(), folder.absolute()
    return str(absolute.relative_to(inside) if absolute.is_relative_to(inside) else absolute)


@contextmanager
def open_storage(url: str) -> Iterator[BaseStorage]:
    """Open a storage, or create it if it is new; close its connections at the end.

    Args:
        url: "journal:PATH", or a database's URL such as "sqlite:///study.db" or "postgresql://user@host/name".

    Raises:
        StorageError: the storage cannot be reached, or its driver is missing; the message has no password.
    """
    if url.startswith(JOURNAL):
        yield _journal(url.removeprefix(JOURNAL))
        return
    database, file = _database(url), _file_here(url)
    if file is not None:
        # The tables were made by connections of the other mode.
        database.engine.dispose()
        write_ahead(database.engine)
    try:
        yield storages._CachedStorage(database)
    finally:
        database.engine.dispose()
        if file is not None:
            put_back(file)


@contextmanager
def answering(url: str) -> Iterator[None]:
    """Raise StorageError if the storage stops answering during the block; it names the storage and how to resume."""
    try:
        yield
    except Exception as error:
        if (damage := _damage(error, url)) is not None:
            raise StorageError(damage) from error
        if not isinstance(error, StorageInternalError | SQLAlchemyError) and not _is_of_lost(error, url):
            if _is_of_content(error):
                raise StorageError(_damaged(shown(url), why(error))) from error
            raise
        raise StorageError(
            f"The storage {shown(url)} no longer answers: {first_line(error.__cause__ or error)}. Finished rounds are "
            f"kept: once it is there, the same command goes on."
        ) from error


def _damaged(what: str, reason: str) -> str:
    return (
        f"The storage {what} is damaged: {reason}. Put back a copy of it. Without one, give the study another folder "
        f"(--path, path=), where it begins afresh; what was trained stays in this one."
    )


_PASSING = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_CONSTRAINT,
    }
)
"""SQLite's errors that do not come of the file's content."""


def _damage(error: BaseException | None, url: str) -> str | None:
    """Return what to say if SQLite could not read the content of its file; None: something else is wrong."""
    while error is not None and not isinstance(error, sqlite3.DatabaseError):
        error = getattr(error, "orig", None) or error.__cause__
    # The first byte of a code is its kind; a text that is no UTF-8 has no code.
    if error is None or getattr(error, "sqlite_errorcode", -1) & 0xFF in _PASSING:
        return None
    return _damaged(shown(url), first_line(error))


_OF_DATABASES = ("sqlalchemy", "psycopg", "optuna.storages")


def _is_of_content(error: Exception) -> bool:
    """Return whether a library of databases could not read a value that it has stored."""
    if isinstance(error, RaysimError) or not isinstance(error, ValueError | LookupError | AssertionError):
        return False
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    last = next((name for name in reversed(modules) if name.partition(".")[0] != "json"), "")
    return last.startswith(("sqlalchemy.", "optuna.storages", "optuna.distributions"))


def _is_of_lost(error: Exception, url: str) -> bool:
    """Return whether a library of databases raised an error while a server does not answer.

    These read a row that never came as if it were there, and then raise whatever Python says of None.
    """
    if isinstance(error, RaysimError) or url.startswith(JOURNAL):
        return False
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    if not any(name == of or name.startswith(f"{of}.") for name in modules for of in _OF_DATABASES):
        return False
    address = _address(url)
    if address.get_backend_name() == "sqlite":
        return False
    try:
        create_engine(address, poolclass=NullPool).connect().close()
    except Exception:
        return True
    return False


def _parsed(url: str) -> URL:
    """Return the URL's parts; ArgumentError if it has none."""
    try:
        return make_url(url)
    except ValueError as error:
        # SQLAlchemy lets a port that is no number pass.
        raise ArgumentError(str(error)) from None


def _address(url: str) -> URL:
    address = _parsed(url)
    # Without a driver's name, each version of SQLAlchemy chooses another driver.
    return address.set(drivername="postgresql+psycopg") if address.drivername == "postgresql" else address


def _journal(path: str) -> BaseStorage:
    check_is_path(path, "The journal's file (tuning.storage)", StorageError)
    if os.path.lexists(path):
        regular(Path(path), StorageError)
    try:
        return storages.JournalStorage(Journal(Path(path)))
    except Exception as error:
        # Optuna replays the file's lines, and raises whatever comes of one that it did not write.
        raise StorageError(f"The journal file {path} cannot be opened: {why(error)}") from error


def _database(url: str) -> RDBStorage:
    try:
        address = _address(url)
        if address.get_backend_name() == "sqlite":
            if (address.database or ":memory:") == ":memory:" or address.query.get("mode") == "memory":
                raise StorageError(f"The storage {url} ends with its process: keep a study in a file or on a server.")
            if os.path.lexists(address.database or ""):
                regular(Path(address.database or ""), StorageError)
        arguments = {"timeout": _BUSY_S} if address.get_backend_name() == "sqlite" else {}
        full = address.render_as_string(hide_password=False)
        # A connection that the database dropped meanwhile is opened again, without an error.
        _make_tables(full, {"connect_args": arguments})
        return RDBStorage(full, engine_kwargs={"connect_args": arguments, "pool_pre_ping": True})
    except ArgumentError:
        raise StorageError(
            f"A storage is journal:PATH or a database's URL, such as sqlite:///study.db or "
            f"postgresql://user@host/name, but got {shown(url)!r}."
        ) from None
    except ImportError as error:
        of_postgres = _parsed(url).get_backend_name() == "postgresql"
        install = ": pip install 'raysim[postgresql]'" if of_postgres else ", one that SQLAlchemy takes"
        raise StorageError(
            f"The storage {shown(url)} needs a driver that is not installed ({error.__cause__ or error}){install}."
        ) from None
    except (SQLAlchemyError, OSError, RuntimeError) as error:
        if (damage := _damage(error, url)) is not None:
            raise StorageError(damage) from None
        raise StorageError(f"The storage {shown(url)} cannot be opened: {first_line(error)}") from None


def _file_here(url: str) -> Path | None:
    """Return the SQLite file of the URL if it lies on a disk of this machine."""
    address = _parsed(url)
    if address.get_backend_name() != "sqlite" or not address.database or not is_here(Path(address.database)):
        return None
    return Path(address.database)


def _make_tables(url: str, engine: dict[str, Any]) -> None:
    """Have Optuna create its tables if they are missing; another process may do so at the same moment."""
    for wait_s in _WAITS_S:
        try:
            # Without a pool, a failed attempt leaves no open connection.
            RDBStorage(url, engine_kwargs={**engine, "poolclass": NullPool})
            return
        except (IntegrityError, ProgrammingError, OperationalError) as error:
            if not isinstance(error, IntegrityError) and "already exists" not in str(error):
                raise
            time.sleep(wait_s)


def first_line(error: BaseException) -> str:
    """Return the first line of a database's error, for a sentence."""
    return str(error).strip().partition("\n")[0].removesuffix(".")
