"""Creates the rule that a script passes as `aggregator=`, and checks the results of user-defined rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from raysim.config.form import has_form, kept
from raysim.config.own_generators import OwnGenerators
from raysim.config.own_part import OwnPart
from raysim.config.plain import shown
from raysim.config.repetition import check_repetition, is_same
from raysim.config.user_call import made_by, watched_call
from raysim.errors import ExperimentError
from raysim.server.aggregators.rule import Coefficients, Coordinatewise, Rule

WANTED = (
    "aggregator= must be a raysim.Coordinatewise(fn) or a raysim.Coefficients(fn), or a function make(section) that "
    "returns one"
)


def make(section: OwnPart) -> Rule:
    """Return the rule: the passed object, or the result of its call with the section.

    Raises:
        ExperimentError: it is not a rule.
    """
    rule = section.passed
    if not isinstance(rule, Coordinatewise | Coefficients):
        rule = made_by(WANTED, rule, section)
    if not isinstance(rule, Coordinatewise | Coefficients):
        raise ExperimentError(f"{WANTED}, but returned {shown(rule)}.")
    return rule if rule.name != "own" else replace(rule, name=section.label)


def result_of(rule: Rule, given: Tensor, weights: Tensor, where: str) -> Tensor:
    """Return the rule's result for a slice (M, P') or for inner products (M, M), in float64.

    Args:
        rule: of any origin.
        given: the rule's argument, in separate memory.
        weights: (M,).
        where: the place in the run, in messages.

    Raises:
        ExperimentError: the rule failed, or returned something of another type, shape, layout or device.

    >>> median = Coordinatewise(lambda updates, weights: updates.median(0).values)
    >>> result_of(median, torch.tensor([[1.0, -3.0], [2.0, 0.0], [9.0, 1.0]]), torch.ones(3), "in round 0")
    tensor([2., 0.], dtype=torch.float64)
    """
    what = f"aggregator= ({rule.name}), {where},"
    returned: Any = watched_call(what, rule.fn, given.double(), weights.clone())
    like = given.new_empty(given.shape[1], dtype=torch.float64)
    if has_form(returned, like):
        return kept(returned)
    # torch's median, max and so on along rows return indices too.
    both = isinstance(returned, tuple) and hasattr(returned, "values")
    got = f"{type(returned).__name__}, values and indices: return its .values" if both else shown(returned)
    raise ExperimentError(f"{what} must return {shown(like)}, but returned {got}.")


def check(rule: Rule, clients: int) -> None:
    """Apply the rule to updates of a few coordinates, before the first round.

    Raises:
        ExperimentError: as `result_of`; or it returned something else when it was called again; or a rule by
            coordinate gave some coordinates alone other results.
    """
    # Any numbers, none of them alike.
    updates = torch.linspace(-1.0, 1.0, 5 * clients, dtype=torch.float64).reshape(clients, 5).sin()
    argument = updates if isinstance(rule, Coordinatewise) else updates @ updates.T
    weights, where = torch.ones(clients, dtype=torch.float64), "tried before the first round"
    # Copies: a rule may write to its arguments.
    once, own = result_of(rule, argument.clone(), weights, where), OwnGenerators(rule)
    again = result_of(rule, argument.clone(), weights, where)
    what, remedy = f"aggregator= ({rule.name})", "It must be a function of its arguments alone."
    check_repetition(what, once, again, ExperimentError, remedy, own.drew())
    if isinstance(rule, Coordinatewise) and not is_same(
        once[:2], result_of(rule, argument[:, :2].clone(), weights, where)
    ):
        raise ExperimentError(
            f"{what} must compute each coordinate from this coordinate of all updates, because it is called with "
            f"slices, but for two of five coordinates alone it returned other numbers: see docs/cookbook.md."
        )
