"""Knows what a script passed to a run beside its experiment, as far as two runs can be told apart by it.

Of each part its keyword is known. Of code a digest is, and of a model, a loss and an objective what they answer to a
client's first examples. The initial values of `params=` are numbers, so a digest of these is. docs/architecture.md says
what follows from each.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import torch

from raysim.models.layout import given_tensor
from raysim.run_folder import part_code

KNOWN_OTHERWISE = ("dataset",)
"""Keywords that need not be passed again: a fingerprint covers the data, wherever they come from."""


Answers = Mapping[str, tuple[float, ...]]
"""What parts answer to a client's first examples, by keyword (engine/plan/first_answers.py)."""

CLOSE = 1e-3
"""Difference of answers, relative to the largest, that is none: processors and kernels round otherwise."""


class Passed(NamedTuple):
    """names: keywords of the parts. params: digest of the values of `params=`; None: none, or it is not known.
    answers, code: of the parts for which they are known; code: digests (part_code.py)."""

    names: tuple[str, ...] = ()
    params: str | None = None
    answers: Mapping[str, tuple[float, ...]] = {}
    code: Mapping[str, str] = {}

    @classmethod
    def of(cls, parts: Mapping[str, Any]) -> Self:
        """Return what is known of parts by keyword; None as a part was not passed.

        Raises:
            ModelError: `params=` has a value that is not an array of numbers.
        """
        names = tuple(name for name, part in parts.items() if part is not None)
        digests = {name: part_code.digest(parts[name]) for name in names if name not in part_code.NO_CODE}
        return cls(names, _digest(parts.get("params")), code={name: one for name, one in digests.items() if one})

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Self | None:
        """Return what the record of a run's folder, whose kinds are checked, says; None if it says nothing."""
        names = record.get("passed")
        if names is None:
            return None
        answers = {name: tuple(map(float, each)) for name, each in (record.get("passed_answers") or {}).items()}
        code = {name: str(each) for name, each in (record.get("passed_code") or {}).items()}
        return cls(tuple(map(str, names)), record.get("passed_params"), answers, code)

    @property
    def record(self) -> dict[str, Any]:
        """The entries of a folder's record."""
        answers = {name: list(each) for name, each in self.answers.items()}
        return {
            "passed": list(self.names),
            "passed_params": self.params,
            "passed_answers": answers,
            "passed_code": dict(self.code),
        }

    def owner(self, fingerprint: str) -> str:
        """Return whose the files of a run are: of the fingerprint, and of what a script passed that it does not cover.

        Two runs of one experiment on the same data may begin at other values, or have another loss.
        """
        others = [name for name in self.names if name not in KNOWN_OTHERWISE]
        if not others:
            return fingerprint
        told = [fingerprint, sorted(others), self.params, sorted(self.code.items())]
        return hashlib.blake2b(json.dumps(told).encode(), digest_size=16).hexdigest()

    @property
    def has_params(self) -> bool:
        """Whether there were initial values."""
        return "params" in self.names

    def begins_as(self, other: Passed) -> bool:
        """Whether both have the same initial values, or none; values that are not known count as the same."""
        if self.has_params != other.has_params:
            return False
        return self.params is None or other.params is None or self.params == other.params

    def answers_otherwise(self, other: Passed) -> list[str]:
        """Return the keywords of parts that both know, and that answer otherwise."""
        return [name for name, each in self.answers.items() if not _is_close(each, other.answers.get(name, each))]

    def other_code(self, other: Passed) -> list[str]:
        """Return the keywords of parts that both know, and whose code is another."""
        return part_code.other_code(self.code, other.code)

    def other_names(self, other: Passed) -> list[str]:
        """Return the keywords that only one of both has, without those that are known otherwise."""
        each = dict.fromkeys([*self.names, *other.names])
        return [n for n in each if (n in self.names) != (n in other.names) and n not in KNOWN_OTHERWISE]


NOTHING = Passed()


def _is_close(one: Sequence[float], other: Sequence[float]) -> bool:
    if len(one) != len(other):
        return False
    most = CLOSE * max(map(abs, (*one, *other)), default=0.0)
    return all(abs(a - b) <= most for a, b in zip(one, other, strict=True))


def _digest(params: object) -> str | None:
    """Return a digest of the values by name, or of each cluster's; equal for equal numbers of any dtype."""
    each = [params] if isinstance(params, Mapping) else params
    if not isinstance(each, Sequence) or not each or not all(isinstance(named, Mapping) for named in each):
        # None was passed; or it is nothing that a run takes, which the plan says.
        return None
    digest = hashlib.blake2b(digest_size=16)
    for named in each:
        digest.update(f"{len(named)} tensors".encode())
        for name in sorted(named, key=str):
            tensor = given_tensor(name, named[name])
            digest.update(f"{name!r} {tuple(tensor.shape)}".encode())
            digest.update(tensor.to(torch.float64).reshape(-1).contiguous().numpy().data)
    return digest.hexdigest()
