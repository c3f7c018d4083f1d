"""The reference of the Python names, from their docstrings, which mkdocstrings reads when the site is built."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import ModuleType

import raysim
import raysim.data
import raysim.server
import tuning

PAGE = "reference/api.md"

MODULES: tuple[ModuleType, ...] = (raysim, raysim.data, raysim.server, tuning)
"""What people import from."""

HEAD = """# Python

What stands here is what scripts may rely on; all else may change from one version to the next.
"""


def page() -> str:
    """Markdown, in which every public name is a place for mkdocstrings to fill in."""
    return "\n".join([HEAD, *(line for module in MODULES for line in _module(module))])


def _module(module: ModuleType) -> Iterator[str]:
    values = {name: getattr(module, name) for name in module.__all__}
    errors = [name for name, value in values.items() if inspect.isclass(value) and issubclass(value, Exception)]
    classes = [name for name, value in values.items() if inspect.isclass(value) and name not in errors]
    functions = [name for name in values if name not in (*errors, *classes)]
    for title, names in (("functions", functions), ("records", classes), ("errors", errors)):
        if names:
            yield f"## {module.__name__}: {title}\n"
            yield from (f"::: {module.__name__}.{name}\n" for name in names)
