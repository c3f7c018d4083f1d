"""Checks a trial that a storage holds: what it records is used as it is, and a storage may be damaged or edited."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState

from tuning.errors import StudyError

FINISHED, MISSED, DIVERGED, PRUNED, FAILED = "finished", "not reached", "diverged", "pruned", "failed"
"""Outcomes of a trial: its attribute "outcome". One that missed its target is finished, but has no value to show."""

OUTCOMES = (FINISHED, MISSED, DIVERGED, PRUNED, FAILED)

_STATES: Mapping[str, tuple[TrialState, ...]] = MappingProxyType(
    {
        FINISHED: (TrialState.COMPLETE,),
        MISSED: (TrialState.COMPLETE,),
        # The worst value, for samplers that learn from complete trials only.
        DIVERGED: (TrialState.PRUNED, TrialState.COMPLETE),
        PRUNED: (TrialState.PRUNED,),
        FAILED: (TrialState.FAIL,),
    }
)
"""What a storage says of a trial with each outcome: samplers and pruners go by it."""

NO_KINDS: Mapping[str, BaseDistribution] = MappingProxyType({})

MOST_SLOTS = 10**6
"""Of a study, which numbers its trials by them."""

SEAL = "seal"
"""The attribute with the digest of what an ended trial records."""

SLOT_SEAL = "slot_seal"
"""The attribute with the digest of the slot, which a trial under way has, too."""


def seal(
    place: tuple[int, int],
    outcome: str,
    params: Mapping[str, Any],
    values: Sequence[float] | None,
    facts: Mapping[str, Any],
    learnt_from: tuple[Mapping[int, float], Mapping[str, Any]],
) -> str:
    """Return the digest of what an ended trial records; a database has no checksums of its own.

    place: its number, after which its folder is named, and its slot. learnt_from: its steps, and the attributes of the
    sampler, from which later trials are proposed or stopped.

    Optuna gives a trial that was stopped early the last value that it reported: only those of finished ones are sealed.
    """
    told = list(values or ()) if outcome in (FINISHED, MISSED) else []
    steps, attributes = learnt_from
    return digest([*place, outcome, params, told, facts, sorted(steps.items()), attributes])


def learnt_from(trial: FrozenTrial) -> tuple[Mapping[int, float], Mapping[str, Any]]:
    """Return what is sealed of a trial beside what the ledger tells: see `seal`."""
    return trial.intermediate_values, trial.system_attrs


def digest(content: Any) -> str:
    """Return the digest of plain values."""
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()


def in_slot(slot: int, **others: Any) -> dict[str, Any]:
    """Return the attributes with which a trial begins: its slot, with the digest of it, and others."""
    return {"slot": slot, SLOT_SEAL: digest(["slot", slot]), **others}


def check(trial: FrozenTrial, kinds: Mapping[str, BaseDistribution] = NO_KINDS) -> None:
    """Raise StudyError unless a trial with a slot is as the ledger writes it.

    Args:
        kinds: the space in Optuna's terms, by key. A value that the trial has must be one of that space, from which
            samplers learn; of an ended trial, each key must have a value. None here: they are not looked at.
    """
    if (flaw := _flaw(trial, kinds)) is not None:
        raise StudyError(
            f"Trial {trial.number} is damaged in the study's storage: {flaw}. Restore the storage, or give the study "
            f"another folder (--path, path=)."
        )


def _flaw(trial: FrozenTrial, kinds: Mapping[str, BaseDistribution]) -> str | None:
    slot = trial.user_attrs.get("slot")
    # Trials of earlier versions have no digest of it.
    if type(slot) is not int or not 0 <= slot < MOST_SLOTS or trial.user_attrs.get(SLOT_SEAL) not in _slot_seals(slot):
        return f"its slot is {slot!r:.40}"
    if other := [key for key, kind in trial.distributions.items() if kind != kinds.get(key, kind)]:
        return f"{other[0]} is of {trial.distributions[other[0]]}, and the space has {kinds[other[0]]}"
    if not trial.state.is_finished():
        return None
    outcome, facts = trial.user_attrs.get("outcome"), trial.user_attrs.get("facts")
    if outcome not in OUTCOMES:
        return f"its outcome is {outcome!r:.40}"
    if not isinstance(facts, Mapping):
        return f"its facts are {facts!r:.40}"
    if trial.state not in _STATES[outcome]:
        return f"its outcome is {outcome!r}, and its state {trial.state.name}"
    if outcome == DIVERGED and trial.state == TrialState.COMPLETE and not _is_worst(trial.values):
        return f"its value is {trial.values!r:.40}"
    if absent := [key for key in kinds if key not in trial.params]:
        return f"it has no value of {absent[0]}"
    if not isinstance(facts.get("why"), str | None):
        return f"its reason is {facts['why']!r:.40}"
    spent = facts.get("spent", {})
    if not isinstance(spent, Mapping) or not all(_is_number(amount) for amount in spent.values()):
        return f"what it spent is {spent!r:.40}"
    if outcome in (FINISHED, MISSED) and (flaw := _flaw_of_result(trial, facts)) is not None:
        return flaw
    expected = seal((trial.number, slot), outcome, trial.params, trial.values, facts, learnt_from(trial))
    if trial.user_attrs.get(SEAL) != expected:
        return "its record is not the one that was written"
    return None


def _slot_seals(slot: int) -> tuple[str | None, ...]:
    return (None, in_slot(slot)[SLOT_SEAL])


def _flaw_of_result(trial: FrozenTrial, facts: Mapping[str, Any]) -> str | None:
    if trial.state != TrialState.COMPLETE or not trial.values or not all(map(_is_number, trial.values)):
        return f"its value is {trial.values!r:.40}"
    values, rounds = facts.get("values"), facts.get("rounds")
    if not isinstance(values, list) or not all(value is None or _is_number(value) for value in values):
        return f"the values of its seeds are {values!r:.40}"
    if not isinstance(rounds, list) or not all(type(each) is int for each in rounds):
        return f"the rounds of its seeds are {rounds!r:.40}"
    if not isinstance(runs := facts.get("runs"), list) or not all(isinstance(each, str) for each in runs):
        return f"the fingerprints of its runs are {runs!r:.40}"
    for name in ("standard_error/seeds", "standard_error/clients"):
        if facts.get(name, "none") is not None and not _is_number(facts.get(name)):
            return f"its {name} is {facts.get(name)!r:.40}"
    return None


def _is_worst(values: Sequence[float] | None) -> bool:
    """Whether the first value, which is not sealed, is one of those of `Objective.worst`."""
    return values is not None and len(values) > 0 and values[0] in (0.0, math.inf, -math.inf)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and not math.isnan(value)
