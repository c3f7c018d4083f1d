"""Cuts texts into windows of characters; each character is the target of the one before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from raysim.errors import DataError

CHARACTERS = "dhlptx@DHLPTX $(,048cgkoswCGKOSW[_#'/37;?bfjnrvzBFJNRVZ\"&*.26:\naeimquyAEIMQUY]!%)-159\r"
"""The 86 characters of TensorFlow Federated's Shakespeare, in its order: numbers 1 to 86."""

PADDING = 0
UNKNOWN, BEGIN, END = (len(CHARACTERS) + extra for extra in (1, 2, 3))
NUM_CLASSES = len(CHARACTERS) + 4
UNCOUNTED = (UNKNOWN, BEGIN, END)

_NUMBERS = np.full(128, UNKNOWN, np.uint8)
_NUMBERS[[ord(character) for character in CHARACTERS]] = np.arange(1, len(CHARACTERS) + 1)


def numbers(text: str) -> npt.NDArray[np.uint8]:
    """Return the number of each character; UNKNOWN for characters outside the 86."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    return np.where(codes < len(_NUMBERS), _NUMBERS[np.minimum(codes, len(_NUMBERS) - 1)], UNKNOWN).astype(np.uint8)


def known(text: str, where: str) -> npt.NDArray[np.uint8]:
    """Return the number of each character; DataError naming one outside the 86."""
    found = numbers(text)
    unknown = np.flatnonzero(found == UNKNOWN)
    if len(unknown):
        raise DataError(f"{where}: expected only the 86 characters of the vocabulary, found {text[unknown[0]]!r}")
    return found


def continuous(text: npt.NDArray[np.uint8], length: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Return x and y (windows, length) of the stream begin, text, end.

    y is the stream shifted by one place, and every place of it occurs once. The last window is padded.
    """
    stream = np.concatenate([[BEGIN], text, [END]]).astype(np.uint8)
    num_windows = -(-(len(stream) - 1) // length)
    padded = np.full(num_windows * length + 1, PADDING, np.uint8)
    padded[: len(stream)] = stream
    x, y = padded[:-1].reshape(-1, length).copy(), padded[1:].reshape(-1, length)
    x[y == PADDING] = PADDING  # the end mark is not an input
    return x, y


def by_line(lines: Sequence[str], length: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Return x and y (rows, length) of lines: y is a line with its line end, x begins it and is one place behind.

    Every line begins a row, and a line of more characters than fit goes on in further rows.

    >>> x, y = by_line(["dh", "d"], length=2)
    >>> [[row.tolist() for row in part] for part in (x == BEGIN, y == numbers("\\n"))]
    [[[True, False], [False, False], [True, False]], [[False, False], [True, False], [False, True]]]
    """
    text = numbers("".join(f"{line}\n" for line in lines))
    sizes = np.array([len(line) + 1 for line in lines], np.int64)
    starts, rows = np.cumsum(sizes) - sizes, -(-sizes // length)
    place = np.arange(len(text)) - np.repeat(starts, sizes)
    where = np.repeat(np.cumsum(rows) - rows, sizes) + place // length, place % length
    before = np.concatenate([[BEGIN], text[:-1]])
    before[starts] = BEGIN
    x, y = (np.full((int(rows.sum()), length), PADDING, np.uint8) for _ in range(2))
    x[where], y[where] = before, text
    return x, y


def separate(text: npt.NDArray[np.uint8], length: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Return x and y (windows, length) as in TensorFlow Federated: begin, text, end, padded, cut every length + 1.

    So the first character of every window except the first is never a target.
    """
    stream = np.concatenate([[BEGIN], text, [END]]).astype(np.uint8)
    num_windows = -(-len(stream) // (length + 1))
    padded = np.full(num_windows * (length + 1), PADDING, np.uint8)
    padded[: len(stream)] = stream
    windows = padded.reshape(-1, length + 1)
    return windows[:, :-1], windows[:, 1:]
