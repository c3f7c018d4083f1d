"""Reads TOML text; everything that is wrong with it is one kind of error, which shows the place and names a remedy."""

from __future__ import annotations

import re
import tomllib
from types import MappingProxyType
from typing import Any

TomlError = tomllib.TOMLDecodeError


def loads(text: str) -> dict[str, Any]:
    """Parse a TOML document.

    Raises:
        TomlError: it is none, or has an integer or a depth that Python's parser cannot take. The message is the
            parser's, with the likely remedy, the line, and a mark below the place.
    """
    try:
        return tomllib.loads(text)
    except TomlError as error:
        raise TomlError(_located(str(error), text)) from None
    except ValueError:
        raise TomlError("an integer has too many digits") from None
    except RecursionError:
        raise TomlError("its lists or tables are nested too deep") from None


_REMEDIES = MappingProxyType(
    {
        "Unclosed array": "a list has commas between its values and ends with ]",
        "Unclosed inline table": "a table in braces has commas between its entries, is in one line and ends with }",
        "Invalid initial character for a key part": "a table in braces is in one line, without a comma before its end",
        "Expected '=' after a key": "a line is key = value, and a key has no blanks",
        "Expected newline or end of document": "a key and its value have a line of their own, and texts are quoted",
        "Cannot overwrite a value": "this key is there twice",
        "Cannot declare": "this table is there twice: write its keys below one heading",
        "Illegal character '\\n'": "a text ends with its quotation mark, in the same line",
        "Unescaped '\\'": "a text with backslashes has single quotation marks: 'C:\\data'",
        "Unterminated string": "a text ends with its quotation mark",
        "Expected ']' at the end of a table": "a table's heading has brackets: [client.optimizer]",
    }
)
"""How a message of the parser begins, and what is to be done; a message of another version has no remedy."""

_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")

_AROUND = 60
"""Characters that are shown on either side of a place: a line may be long."""


def _located(said: str, text: str) -> str:
    if (place := _PLACE.search(said)) is None:
        return said
    lines = text.rstrip().split("\n")
    if place[1] is None:
        number, column = len(lines), len(lines[-1])
    else:
        number, column = int(place[1]), int(place[2]) - 1
        lines = text.split("\n")
    line = lines[number - 1]
    before, after = line[max(0, column - _AROUND) : column], line[column : column + _AROUND]
    remedy = _of_value(before, after) if said.startswith("Invalid value") else _of_message(said)
    of_line = "".join(each if each.isprintable() else " " for each in before + after).rstrip()
    return f"{said}{f': {remedy}' if remedy else ''}\n  {of_line}\n  {' ' * len(before)}^"


def _of_message(said: str) -> str:
    return next((remedy for begins, remedy in _REMEDIES.items() if said.startswith(begins)), "")


def _of_value(before: str, after: str) -> str:
    """Return what to write in place of what is no value: the texts of its line before it, and from it on."""
    word = re.split(r"[],}#]", after, maxsplit=1)[0].strip()
    key = re.search(r"[\w.\-\"']+\s*=\s*$", before)
    to_write = key[0] if key else ""
    if not word:
        return "a value is missing here"
    if word.lower() in ("true", "false"):
        return f"truth values have small letters: {to_write}{word.lower()}"
    if word in ("None", "null", "nil"):
        return "a key without a value is left out"
    if re.fullmatch(r"[+-]?\.\d.*", word):
        return f"a number has a digit before its point: {to_write}{word.replace('.', '0.', 1)}"
    if not re.match(r"[\w./~]", word) or not word.isprintable():
        return ""
    mark = "'" if "\\" in word else '"'
    return f"texts are quoted: {to_write}{mark}{word}{mark}"
