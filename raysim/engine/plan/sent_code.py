"""Finds out whether another process has the code of a script's parts as the script has it.

What a script imports is imported again there: from a file that may have been changed since, or of which the script has
changed a variable.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import FunctionType, ModuleType
from typing import Any

from raysim.config.own_part import own_parts
from raysim.engine.plan.plan import Plan
from raysim.errors import ExperimentError
from raysim.models.frozen_norms import HeldNorms
from raysim.run_folder import part_code
from raysim.run_folder.part_code import Constant, FunctionCode


def passed(plan: Plan) -> Iterator[tuple[str, Any]]:
    """Yield what a script has passed, by keyword, as it goes to workers."""
    for part in own_parts(plan.experiment):
        if part.is_bound:
            yield part.KEYWORD, part.passed
    yield "model", plan.model.factory
    yield "loss", plan.task.losses


def with_code(plan: Plan) -> Plan:
    """Return the plan with the code of its parts, right before it is sent."""
    return replace(plan, code=_code(plan))


def check(plan: Plan) -> None:
    """Refuse a process that has other code than the script's. What only one of the two has is not compared.

    Raises:
        ExperimentError: names the part and the function, and the constant that differs.
    """
    here = _code(plan) if plan.code else {}
    for keyword, functions in plan.code.items():
        for name, sent in functions.items():
            found = here.get(keyword, {}).get(name)
            if found is not None and (difference := _difference(sent, found)):
                raise ExperimentError(
                    f"{keyword}= is not the same in the script's process and in another one of the run, which imports "
                    f"modules anew: {name} {difference}. If its file was changed after the script had imported it, "
                    f"start the script again, or the notebook's kernel. If the script sets a variable of a module, set "
                    f"it in the module's file. If each process has a value of its own, such as the time, make it in "
                    f"the script, and pass it. engine.workers = 0 trains in the script's process."
                )


def _difference(sent: FunctionCode, found: FunctionCode) -> str:
    """Return how they differ, as the end of a sentence about function or class; empty if they do not."""
    if part_code.differs(sent.digest, found.digest):
        return "has other code there"
    for name, constant in sent.constants.items():
        there = found.constants.get(name, constant)
        if there != constant:
            # A text may be a password.
            if _DIGEST in constant + there:
                return f"has another {name} there"
            return f"has {name} = {constant} in the script and {there} there"
    return ""


def _code(plan: Plan) -> Mapping[str, Mapping[str, FunctionCode]]:
    return {keyword: dict(_functions(plan, part)) for keyword, part in passed(plan)}


def _functions(plan: Plan, part: Any) -> Iterator[tuple[str, FunctionCode]]:
    """Yield the script's functions and classes that a part consists of, by name; of those with one name, none."""
    whole = [part.factory if isinstance(part, HeldNorms) else part]
    if part is plan.model.factory and not plan.model.constants and any(part_code.functions(whole)):
        # A factory reads a class as an attribute of its module. A large base would be in memory once more.
        whole += dict.fromkeys(type(child) for child in plan.model.module().modules())
    own = part_code.of_scripts(whole)
    named: dict[str, list[FunctionType | type]] = {}
    found: list[FunctionType | type] = [*own, *part_code.classes(whole, own)]
    for each in found:
        named.setdefault(f"{each.__module__}.{each.__qualname__}", []).append(each)
    for name, (first, *others) in named.items():
        if not others:
            yield name, _of_class(first) if isinstance(first, type) else _of_function(first)


def _of_function(function: FunctionType) -> FunctionCode:
    # `python -O`, which workers do not have, leaves asserts out. pytest rewrites them, in its own process alone.
    how = "pytest" if "@pytest_ar" in function.__globals__ else str(sys.flags.optimize)
    module = sys.modules.get(function.__module__ or "")
    home = module if module is not None and vars(module) is function.__globals__ else None
    modules = part_code.modules_read(function)
    constants = {
        name: constant
        for name, constant in part_code.constants_read(function).items()
        if _stays(name, modules.get(name.partition(".")[0], home))
    }
    return FunctionCode(f"{how}:{part_code.digest_of_code(function)}", _sent(constants))


def _of_class(cls: type) -> FunctionCode:
    module = sys.modules.get(cls.__module__)
    home = module if module is not None and vars(module).get(cls.__qualname__) is cls else None
    constants = part_code.class_constants(cls)
    return FunctionCode("", _sent({name: one for name, one in constants.items() if _stays(name, home)}))


_DIGEST = "#"


def _sent(constants: Mapping[str, Constant]) -> Mapping[str, str]:
    """Return numbers as they are written, and the digests of texts and tuples, which may be long."""
    return {
        name: repr(one)
        if isinstance(one, bool | int | float | complex)
        else _DIGEST + hashlib.blake2b(repr(one).encode(), digest_size=16).hexdigest()
        for name, one in constants.items()
    }


def _stays(name: str, module: ModuleType | None) -> bool:
    """Whether a constant is of an imported module whose functions do not set it; others travel with the part."""
    if module is None or module.__name__ == "__main__":
        return False
    return not _places(name) & part_code.set_in_module(module)


def _places(name: str) -> set[str]:
    """Return what a function that sets the constant, or what holds it, sets.

    >>> sorted(_places("settings.scale")), sorted(_places("table['a']"))
    (['scale', 'settings'], ['[', 'table'])
    >>> ".append" in _places("weights[:]"), ".append" in _places("table['a']")
    (True, False)
    """
    held, entry, _ = name.partition("[")
    methods = part_code.CHANGING_LISTS if name.endswith("[:]") else ()
    return {*held.split("."), entry, *methods} - {""}
