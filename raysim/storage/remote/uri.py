"""Recognises URIs of folders: s3://bucket/runs/x, gs://..., file:///mnt/shared/x; all that pyarrow's filesystems take.

Runs record them, so they must hold no secrets: credentials come from the environment.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from raysim.errors import RaysimError, RemoteError, RunFolderError

_FORM = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.*)", re.DOTALL)
_WITH_HOST = re.compile(r"(?:--[a-z-]+=)?file://([^/]+)(.*)", re.DOTALL | re.IGNORECASE)
_SECRET = re.compile(r"secret|password|token|credential|account_key|access_key|signature|^sig$", re.IGNORECASE)


def uri_of(path: str | Path) -> str | None:
    """Return `path` as a URI; None if it is a path of this machine.

    `Path("s3://bucket/x")` has lost a slash, which is restored.

    >>> uri_of(Path("s3://bucket/runs/x")), uri_of("runs/x")
    ('s3://bucket/runs/x', None)

    Raises:
        RemoteError: the URI holds a password or a key, or names another folder than it seems to, or none.
    """
    match = _FORM.fullmatch(str(path))
    if match is None:
        return None
    check_without_host(str(path))
    scheme, rest = match[1].lower(), match[2].rstrip("/")
    uri = f"file:///{rest}" if scheme == "file" else f"{scheme}://{rest}"
    _check_open(uri)
    if not rest:
        raise RemoteError(f"{uri} names no folder: write one behind it.")
    # The file system would be asked for the folder before it.
    for mark, code in (("#", "%23"), ("?", "%3F")):
        if mark in rest and (mark == "#" or scheme == "file"):
            raise RemoteError(f"{uri}: in a URI a folder's {mark} is written {code}; what is behind {mark} is no name.")
    return uri


def check_without_host(given: str) -> None:
    """Refuse file://host/folder, of which a `Path` would make /host/folder of this machine.

    Args:
        given: a URI, a path, or an argument of a command, which may begin with an option: "--path=file://host/x".

    Raises:
        RemoteError: it is a URI of that form; says how to write it.
    """
    if (match := _WITH_HOST.fullmatch(given)) is None:
        return
    host, folder = match[1], match[2]
    here = folder if host.lower() == "localhost" else f"/{host}{folder}"
    raise RemoteError(
        f"file://{host}{folder} names the machine {host!r}, and file:// opens folders of this machine, or of disks "
        f"that it mounts. Write file://{here or '/folder'} with three slashes, or the path itself."
    )


def check_is_path(given: str | Path, what: str, error: type[RaysimError] = RunFolderError) -> None:
    """Refuse what is no path where only a path of this machine will do, also a URI: it would make a folder named "s3:".

    Args:
        given: by the user; a script may pass anything.
        what: it is, to begin a sentence: "A report's folder (--out, out=)".
        error: the class of the error.

    Raises:
        RaysimError: of the class `error`.
    """
    if (found := _no_path(given)) is not None:
        raise error(f"{what} must be a path of this machine, but got {found}.")
    uri = uri_of(given)
    if uri is not None:
        advice = f": write /{uri.removeprefix('file:///')}" if uri.startswith("file:///") else ""
        raise error(f"{what} must be a path of this machine, or of a disk that it mounts, but got {uri}{advice}.")


def _no_path(given: object) -> str | None:
    """Return what is given, if no file or folder can have such a path."""
    if not isinstance(given, str | os.PathLike):
        return "None" if given is None else f"{type(given).__name__}"
    if os.fspath(given) == "":
        return "an empty text"
    try:
        if b"\0" in os.fsencode(given):
            return f"{str(given)!r:.99}, which has a zero character"
    except UnicodeEncodeError:
        return f"{str(given)!r:.99}, which is not valid Unicode"
    return None


def _check_open(uri: str) -> None:
    """Raise RemoteError if the URI holds a secret; the error does not repeat it."""
    parts = urlsplit(uri)
    login, at, _ = parts.netloc.rpartition("@")
    secrets = ["user:password@"] if at and ":" in login else []
    secrets += [f"?{key}=" for key, _ in parse_qsl(parts.query, keep_blank_values=True) if _SECRET.search(key)]
    if secrets:
        raise RemoteError(
            f"A {parts.scheme}:// address must hold no credentials, but this one has {' and '.join(secrets)}: runs "
            f"record their addresses. Give them by the environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
            f"GOOGLE_APPLICATION_CREDENTIALS, AZURE_CLIENT_SECRET, ...), or by the files and roles of the machine."
        )
