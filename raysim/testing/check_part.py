"""Checks a part against the contract that built-in parts keep."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import nn

from raysim.api.run import Round, resume, rounds, run
from raysim.cohort.sampler import CohortAt
from raysim.config.counted import counted
from raysim.config.own_part import OwnMetric, OwnPart, PartSection
from raysim.config.part import Part
from raysim.config.section import Section
from raysim.data.dataset import FederatedDataset
from raysim.engine.plan.bind import PLACES
from raysim.errors import RaysimError
from raysim.run_folder import cost_columns
from raysim.storage.scratch import scratch_folder
from raysim.testing import federation
from raysim.testing.purity_check import ContractError, follow

AS_IT_IS = ("objective", "weighting", "metric")
"""Kinds of which a script passes the function itself, and not what makes it."""
HAVE_CONSTANTS = ("objective", "weighting")
"""Kinds whose function is given the keys of its section as constants."""


class _Checked(NamedTuple):
    """What is checked: what a script passes, by its keyword, and the keys of the experiment around it."""

    passed: Mapping[str, Any]
    keys: Mapping[str, Any]
    dataset: FederatedDataset

    def rounds(self, model: Callable[[], nn.Module] = federation.plain, **engine: Any) -> list[Round]:
        """The rounds of the small experiment, with these keys of its engine."""
        parts: dict[str, Any] = {**self.passed, "dataset": self.dataset, "model": model}
        return list(rounds(federation.experiment(self.keys, **engine), **parts))


def check_part(
    part: Part,
    keys: Mapping[str, Any] | None = None,
    *,
    experiment: Mapping[str, Any] | None = None,
    workers: Sequence[int] = (0, 1, 2, 3),
) -> None:
    """Run a part in a small experiment, and raise what breaks the contract that built-in parts keep.

    - It can be made of its section, and runs: what it returns has the shapes and dtypes that it must have.
    - Its functions write to no argument (but a client optimizer's `step`), and draw from no global generator.
    - The gaps of flat vectors stay zero, and values stay finite.
    - It makes sense under float64: same dtype throughout, and about the numbers of float32.
    - The bits are the same for every number of workers, when a worker is killed, and when the run stops and goes on.

    Args:
        part: such as `raysim.Part("correction", "mine", MySection, make)`; a script's own function is checked as
            `raysim.Part("correction", "own", raysim.OwnPart, make)`. Where a script passes the function itself, `make`
            returns it.
        keys: of its section, beside the name; such as {"constants": {"mu": 0.1}} for a script's own.
        experiment: further keys of the experiment by dotted names, for what the part needs beside it; such as
            {"server.weighting": "uniform"}.
        workers: numbers of workers whose bits are compared with those in this process. Where all are 0, Ray is not
            started, and no worker is killed.

    Raises:
        ContractError: the invariant that is broken, and the line where it is.
        RaysimError: as a run with the part would.
    """
    if not isinstance(part, Part):
        raise ContractError(
            f"check_part takes a raysim.Part, such as raysim.Part('correction', 'own', raysim.OwnPart, make), but got "
            f"{part!r:.80}"
        )
    place = next((place for place in PLACES if part.kind == place.own.KEYWORD), None)
    at = part.kind if place is None else f"{place.table}.{place.key}"
    # The keys that a script's own part of this kind has in an experiment.
    own = OwnMetric if place is None else place.own
    keys_of = part.section if issubclass(part.section, Section) else own
    section: PartSection = keys_of.checked({"name": part.name, **(keys or {})}, at)
    keys_of_part, passed = _keys_of(part, section), _passed(part, section)
    checked = _Checked(passed, {**keys_of_part, **(experiment or {})}, federation.dataset())
    looked_at = checked._replace(passed=_passed(part, section, lambda made: follow(made, part.name)))
    with _contract_first():
        expected = looked_at.rounds(trainer="one_by_one")
    _check_values(expected, part)
    _check_double(checked, part, expected)
    reference = checked.rounds()
    _check_resumed(checked, part, reference)
    others = [number for number in workers if number]
    with _ray() if others else nullcontext():
        for number in others:
            _check_same(part, f"with {counted(number, 'worker')}", reference, checked.rounds(workers=number))
        if others:
            _check_killed(checked, part)


@contextmanager
def _contract_first() -> Iterator[None]:
    """Raise the broken invariant itself, and not the error that a run makes of it."""
    try:
        yield
    except RaysimError as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ContractError):
                raise cause from None
            cause = cause.__cause__ or cause.__context__
        raise


def _is_named(part: Part, section: PartSection) -> bool:
    """Whether no function stands for the part, as for the mean: then the experiment names it."""
    return part.kind == "aggregator" and not isinstance(section, OwnPart) and part.make(section) is None


def _keys_of(part: Part, section: PartSection) -> dict[str, Any]:
    """The keys by which the experiment says what is not passed: a part's name, or its constants."""
    place = next((f"{place.table}.{place.key}" for place in PLACES if part.kind == place.own.KEYWORD), None)
    if place is None:
        return {}
    if isinstance(section, OwnPart) or _is_named(part, section):
        return {place: section.model_dump(mode="json")}
    if part.kind in HAVE_CONSTANTS:
        return {place: {"name": "own", "constants": section.model_dump(mode="json", exclude={"name"})}}
    return {}


def _passed(part: Part, section: PartSection, wrap: Callable[[Any], Any] = lambda made: made) -> dict[str, Any]:
    """What a script would pass for the part, by its keyword."""
    if part.kind == "metric":
        return {"metrics": {part.name: wrap(part.make(section))}}
    if part.kind in AS_IT_IS:
        return {part.kind: wrap(part.make(section))}
    return {} if _is_named(part, section) else {part.kind: _Maker(part.make, section, wrap)}


class _Maker:
    """The part's function, called with its own section, whatever the experiment's.

    A script's own is called with what it is called with in a run: the experiment's section, or a `CohortAt`.
    """

    def __init__(self, make: Callable[[Any], Any], section: PartSection, wrap: Callable[[Any], Any]) -> None:
        self._make, self._section, self._wrap = make, section, wrap

    def __call__(self, given: Any) -> Any:
        """What a run calls."""
        if isinstance(given, CohortAt):
            return self._wrap(self._make)(given)
        return self._wrap(self._make(given if isinstance(self._section, OwnPart) else self._section))


def _check_values(got: Sequence[Round], part: Part) -> None:
    for each in got:
        if not all(bool(value.isfinite().all()) for value in each.params.values()):
            raise ContractError(f"{part.name}: the model is not finite after round {each.index}.")


def _check_double(checked: _Checked, part: Part, single: Sequence[Round]) -> None:
    double = checked.rounds(trainer="one_by_one", dtype="float64")
    for name, value in double[0].params.items():
        if value.dtype != torch.float64:
            raise ContractError(f"{part.name}: under engine.dtype = 'float64' the parameter {name} is {value.dtype}.")
        apart = float((value.float() - single[0].params[name]).abs().max())
        if not torch.allclose(value.float(), single[0].params[name], rtol=1e-2, atol=1e-3):
            raise ContractError(
                f"{part.name}: after one round the parameter {name} differs by {apart:.3g} between float32 and "
                f"float64: a constant or a vector is made in one dtype, and not in that of its arguments."
            )


def _check_resumed(checked: _Checked, part: Part, expected: Sequence[Round]) -> None:
    parts: dict[str, Any] = {**checked.passed, "dataset": checked.dataset, "model": federation.plain}
    with scratch_folder() as folder:
        path = folder / "run"
        half = federation.experiment({**checked.keys, "rounds": federation.ROUNDS // 2})
        run(half, path=path, progress=False, **parts)
        result = resume(path, rounds=federation.ROUNDS, progress=False, **parts)
    for name, value in result.params.items():
        if not torch.equal(value, expected[-1].params[name]):
            raise ContractError(
                f"{part.name}: a run that stopped after {half.rounds} rounds and went on has other bits in {name} than "
                f"one that did not stop: the part keeps something that is not in its state."
            )


def _check_killed(checked: _Checked, part: Part) -> None:
    with scratch_folder() as folder:
        note = folder / "note"
        model = federation.Factory(note)
        expected = checked.rounds(model=model)
        note.touch()
        got = checked.rounds(model=model, workers=2)
        if note.exists():
            raise ContractError(f"{part.name}: no worker trained with gradients, so none could be killed.")
    _check_same(part, "after a worker was killed", expected, got)


def _check_same(part: Part, when: str, expected: Sequence[Round], got: Sequence[Round]) -> None:
    for one, other in zip(expected, got, strict=True):
        for name, value in one.params.items():
            if not torch.equal(value, other.params[name]):
                raise ContractError(
                    f"{part.name}: {when}, the bits of {name} differ after round {one.index}. A function of the part "
                    f"depends on more than its arguments: on what it was called with before, or on the process."
                )
        if _figures(one) != _figures(other):
            raise ContractError(f"{part.name}: {when}, the figures of round {one.index} differ.")


def _figures(one: Round) -> dict[str, str]:
    """The round's figures, but those that say what it cost."""
    return {name: repr(value) for name, value in one.metrics.items() if not cost_columns.tells_cost(name)}


def _ray() -> Any:
    from raysim.engine.on_ray.cluster.cluster import connected

    return connected(None)
