"""Reads TOML text; everything that is wrong with it is one kind of error."""

from __future__ import annotations

import tomllib
from typing import Any

TomlError = tomllib.TOMLDecodeError


def loads(text: str) -> dict[str, Any]:
    """Parse a TOML document.

    Raises:
        TomlError: it is none, or has an integer or a depth that Python's parser cannot take.
    """
    try:
        return tomllib.loads(text)
    except TomlError:
        raise
    except ValueError:
        raise TomlError("an integer has too many digits") from None
    except RecursionError:
        raise TomlError("its lists or tables are nested too deep") from None
