"""Reads LEAF's json: files of users, each with x and y."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from raysim.arrays import Int64s
from raysim.data import exact32
from raysim.data.sources.editions import instead
from raysim.data.sources.published import Published, SourceFile
from raysim.errors import DataError, MissingFileError
from raysim.storage.reading import json_value


class LeafUser(NamedTuple):
    """A user of a file."""

    name: str
    x: list[Any]
    y: list[Any]


def published(address: str) -> tuple[Published, ...]:
    """Return the files that a folder must hold; LEAF's scripts choose their names."""
    return tuple(Published(f"data/{side}/*.json", address) for side in ("train", "test"))


def find(folder: Path, side: str, published_at: str) -> list[SourceFile]:
    """Return the json files of `folder`/`side` in order of name; MissingFileError if there is none."""
    for place in (folder / "data" / side, folder / side):
        files = sorted(place.glob("*.json"))
        if files:
            return [SourceFile(file) for file in files]
    there = instead(folder, ("data/train/*.json",))
    raise MissingFileError(
        f"{there}{folder / 'data' / side} and {folder / side} hold no json file; LEAF's scripts write them there "
        f"({published_at})"
    )


def users(file: SourceFile) -> Iterator[LeafUser]:
    """Yield the users of one file, checked against its list and counts.

    A file is read whole: LEAF's files have a hundred users each.

    Raises:
        DataError: the file is truncated, or users, counts and data do not agree; names the user.
    """
    with file.reading("a whole json file"), file.path.open(encoding="utf-8") as stream:
        content = json_value(stream.read())
    try:
        names, counts, data = (content[key] for key in ("users", "num_samples", "user_data"))
    except (KeyError, TypeError):
        raise DataError(f"{file.path}: expected the keys users, num_samples and user_data") from None
    if not (isinstance(names, list) and isinstance(counts, list) and isinstance(data, dict)):
        raise DataError(f"{file.path}: expected lists users and num_samples, and user_data by user")
    if len(names) != len(counts):
        raise DataError(f"{file.path}: expected as many num_samples as users, found {len(counts)} and {len(names)}")
    if unlisted := data.keys() - {name for name in names if isinstance(name, str)}:
        raise DataError(f"{file.path}: user {min(unlisted)!r:.60} is in user_data, but not in users")
    for name, count in zip(names, counts, strict=True):
        if not (isinstance(name, str) and isinstance(data.get(name), dict)):
            raise DataError(f"{file.path}: user {name!r:.60} is in users, but not in user_data")
        x, y = (data[name].get(column, []) for column in ("x", "y"))
        if not (isinstance(x, list) and isinstance(y, list)):
            raise DataError(f"{file.path}, user {name!r}: expected lists x and y, found {x!r:.40} and {y!r:.40}")
        if type(count) is not int:
            raise DataError(f"{file.path}, user {name!r}: expected a whole number in num_samples, found {count!r:.40}")
        if not len(x) == len(y) == count:
            raise DataError(f"{file.path}, user {name!r}: expected {count} samples, found {len(x)} x and {len(y)} y")
        yield LeafUser(str(name), x, y)


def all_users(files: list[SourceFile]) -> Iterator[tuple[SourceFile, LeafUser]]:
    """Yield the users of all files, with their file.

    Raises:
        DataError: as `users`; or a user is there twice, as in a copy of a file.
    """
    found: dict[str, SourceFile] = {}
    for file in files:
        for user in users(file):
            if user.name in found:
                raise DataError(f"{file.path}: user {user.name!r} is in {found[user.name].path} already")
            found[user.name] = file
            yield file, user


def names(files: list[SourceFile]) -> list[str]:
    """Return the users of all files."""
    return [user.name for _, user in all_users(files)]


def digests(sides: dict[str, list[SourceFile]]) -> dict[str, list[str]]:
    """Return the digests of each side's files: a file that is moved to the other side makes another dataset."""
    return {side: [file.digest for file in files] for side, files in sides.items()}


def numbers(rows: list[Any], where: str) -> npt.NDArray[np.float32]:
    """Return rows of numbers as float32.

    Raises:
        DataError: they are ragged, one is not a finite number, or a whole number that float32 cannot hold.
    """
    try:
        found = np.array(rows)
        # Large whole numbers stay Python's; texts of digits would become numbers below.
        if (found.size and found.dtype.kind not in "iufO") or _has_truth_value(rows):
            raise DataError(f"{where}: expected numbers as x, found texts or truth values")
        # What is too large becomes an infinity, which is refused below.
        with np.errstate(over="ignore"):
            array = found.astype(np.float32)
    except DataError:
        raise
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(f"{where}: expected rows of equally many numbers: {error}") from error
    if 0 in array.shape[1:]:
        raise DataError(f"{where}: expected at least one number in each row of x, found none")
    if not np.isfinite(array).all():
        raise DataError(f"{where}: expected finite numbers as x, found null, NaN or an infinity")
    if (inexact := exact32.changed(found)).any():
        number = found[inexact].flat[0]
        raise DataError(
            f"{where}: expected whole numbers as x that float32 holds, found {int(number)}, which would be "
            f"{int(array[inexact].flat[0])}: ids and times of this size lose their last digits, so leave them out, or "
            f"divide them"
        )
    return array


def _has_truth_value(values: list[Any]) -> bool:
    """Whether true or false is among the numbers, which NumPy would make 1 and 0."""
    kinds = set(map(type, values))
    return bool in kinds or (list in kinds and any(_has_truth_value(each) for each in values if type(each) is list))


def labels(values: list[Any], num_classes: int, where: str) -> Int64s:
    """Return labels, which some scripts write as 3.0; DataError if one is not a whole number in 0..num_classes - 1."""
    for label in values:
        # NaN and infinity leave a remainder that is not 0 either.
        if type(label) not in (int, float) or label % 1 != 0 or not 0 <= label < num_classes:
            raise DataError(f"{where}: expected whole numbers in 0..{num_classes - 1} as labels, found {label!r:.40}")
    return np.array(values, np.int64)
