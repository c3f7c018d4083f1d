"""Warns that a script gives a part other code between two rounds, which a run does not take over."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any

from raysim.engine.plan.plan import Plan
from raysim.run_folder import part_code

log = logging.getLogger("raysim")

BETWEEN_ROUNDS = "between two rounds"

_Codes = Mapping[str, list[CodeType]]


def watch(plan: Plan, parts: Mapping[str, Any], when: str = BETWEEN_ROUNDS) -> Callable[[], None]:
    """Return a function that warns, once, if the code of a part is another than now.

    That of a model is also the code of its layers' classes. A model with frozen parameters is not made for that: a
    large base would be in memory once more.

    Args:
        plan: the run.
        parts: by keyword; None: not passed.
        when: what came between, for the message.
    """
    watched = {f"{name}=": [part] for name, part in parts.items() if part is not None and name not in part_code.NO_CODE}
    if "model=" in watched and not plan.model.constants:
        watched["model="] += dict.fromkeys(type(child) for child in plan.model.module().modules())
    before, is_told = _codes(watched), False

    def check() -> None:
        nonlocal is_told
        now = {} if is_told else _codes(watched)
        if changed := [name for name, codes in now.items() if codes != before[name]]:
            is_told = True
            log.warning(
                "the code of %s was changed %s. A run takes code as it is when the run begins: "
                "recorded local steps and workers go on with the old one, the rest takes the new one. Stop the run, "
                "and begin one with the other code",
                " and ".join(changed),
                when,
            )

    return check


def _codes(watched: Mapping[str, list[Any]]) -> _Codes:
    return {
        name: [function.__code__ for held in each for function in part_code.functions(held)]
        for name, each in watched.items()
    }
