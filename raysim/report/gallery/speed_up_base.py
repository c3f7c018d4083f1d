"""Finds the group that another one's speed-up is over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from raysim.report.gallery.lanes import COHORT_SIZE, values
from raysim.report.groups import Group, written

LEAST_WORK = {"client.epochs": 0, "client.local_steps": 0, "client.batch_size": -1}
"""Keys of a client's work -> the place, among the key's values in order, of the one that is least work."""


def base(groups: Sequence[Group]) -> dict[str, str]:
    """Return the keys and values that a group takes to be the one that its speed-up is over; others it keeps.

    That is the smallest cohort (McMahan et al. 2017, table 1). If cohorts do not differ it is the least work of a
    client, FedSGD (tables 2 and 4); if that does not differ either, the smallest of all numbers.
    """
    keys = dict.fromkeys(key for group in groups for key in group.keys)
    ordered = {key: list(settings) for key in keys if len(settings := values(groups, key)) > 1}
    if COHORT_SIZE in ordered:
        return {COHORT_SIZE: ordered[COHORT_SIZE][0]}
    work = {key: ordered[key][place] for key, place in LEAST_WORK.items() if key in ordered}
    is_number = {key: isinstance(values(groups, key)[settings[0]], int | float) for key, settings in ordered.items()}
    return work or {key: settings[0] for key, settings in ordered.items() if is_number[key]}


def base_of(groups: Sequence[Group], group: Group, at: Mapping[str, str]) -> Group | None:
    """Return the group with this one's keys, but for those of the base; None if it is not there."""
    wanted = {key: at.get(key, written(value)) for key, value in group.keys.items()}
    return next(
        (other for other in groups if {key: written(value) for key, value in other.keys.items()} == wanted), None
    )


def is_pooled(group: Group) -> bool:
    """Return whether a group trains on the pooled data of all clients."""
    return group.runs[0].experiment.pooled


def is_over_pooled(groups: Sequence[Group], at: Mapping[str, str]) -> bool:
    """Return whether speed-ups are over training on the pooled data (McMahan et al. 2017, table 3).

    They are if some groups do that, and if the others have no smallest cohort and no least work to be compared with.

    Args:
        groups: of the report.
        at: the base of those that are not pooled.
    """
    others = [group for group in groups if not is_pooled(group)]
    is_known = not at.keys().isdisjoint({COHORT_SIZE, *LEAST_WORK})
    found = [base_of(others, group, at) for group in others] if is_known else []
    return len(others) < len(groups) and all(
        base in (None, group) for base, group in zip(found, others[: len(found)], strict=True)
    )
