"""Keeps an iterator to the process that made it: a forked one would write to the same folder, and end the same Ray."""

from __future__ import annotations

import ctypes
import inspect
import os
from collections.abc import Generator
from typing import Any, NoReturn, TypeVar
from weakref import WeakSet

from raysim.api.closed_at_end import closed_at_end
from raysim.errors import ResourceError

T = TypeVar("T")


def left_to_parent(what: str) -> ResourceError:
    """Return the error of a forked process that would go on with what its parent has open."""
    return ResourceError(
        f"{what} belongs to the process that made it, and this one was forked from that: go on with it there, or call "
        f"it again here, for another folder."
    )


class OfOneProcess(Generator[T, None, None]):
    """An iterator over a generator, with its methods; in a forked process it raises, and what is open stays as it is.

    One that a script still has when it ends is closed then, while modules can be used.

    Args:
        generator: what to iterate over; nobody else has a reference to it.
        what: its name for people.

    Raises:
        ResourceError: from every method but `close`, in a process that was forked from the one that made it.
    """

    def __init__(self, generator: Generator[T, None, None], what: str) -> None:
        self._generator, self._what, self._is_inherited = generator, what, False
        _made_here.add(self)

    def send(self, value: None) -> T:
        """Return the next value."""
        self._check()
        made = self._generator.send(value)
        closed_at_end(self._end)
        return made

    def throw(self, *error: Any) -> T:
        """Raise an error where the generator waits."""
        self._check()
        return self._generator.throw(*error)

    def close(self) -> None:
        """End it, and close what it has opened; in a forked process nothing is closed."""
        if not self._is_inherited:
            self._generator.close()

    def __reduce__(self) -> NoReturn:
        # copy.copy would make a second one of the same run.
        raise TypeError(
            f"{self._what} is under way, and cannot be copied or pickled: go on with it here, or call it again for "
            f"another folder"
        )

    def _end(self) -> None:
        # Another thread may still be in it.
        if inspect.getgeneratorstate(self._generator) != inspect.GEN_RUNNING:
            self.close()

    def _check(self) -> None:
        if self._is_inherited:
            raise left_to_parent(self._what)

    def _leave_to_parent(self) -> None:
        """Make sure that this process never ends the generator, whose last lines close what the parent has open."""
        self._is_inherited = True
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._generator))


_made_here: WeakSet[OfOneProcess[Any]] = WeakSet()


def _leave_all() -> None:
    for each in tuple(_made_here):
        each._leave_to_parent()
    _made_here.clear()


os.register_at_fork(after_in_child=_leave_all)
