"""Says what an option that a command has not may have been meant for: most often a key of the experiment."""

from __future__ import annotations

from typing import Any

import typer

UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""The errors of options and arguments: typer has no public name for them."""


def explain(error: Any) -> None:
    """Add to the error of an option that there is none of what to write in its place, where that is known."""
    option, ctx = getattr(error, "option_name", None), error.ctx
    if not isinstance(option, str) or ctx is None:
        return
    taken = {name for parameter in ctx.command.params for name in parameter.opts}
    hint = _of_key(option.lstrip("-").replace("-", "_")) if "--set" in taken else None
    if hint is None and option in ("--set", "--unset") and ctx.command.name == "resume":
        hint = (
            "a run continues with its own settings; `raysim run FILE --set KEY=VALUE --resume` changes those that may"
        )
    if hint is not None:
        error.message, error.possibilities = f"{error.message} ({hint})", None


def _of_key(word: str) -> str | None:
    """Return how a key of this name is set; None if an experiment has none."""
    from raysim.config import part
    from raysim.experiment.keys import Elsewhere, places

    found = places(word, Elsewhere({}, part.sections()))
    return f"a key of the experiment is set by --set {found[0]}=VALUE" if found else None
