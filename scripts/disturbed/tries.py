"""What is done to a run: drawn from a seed; and the table of what came of it."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, TypeVar, get_args

T = TypeVar("T")

Victim = Literal["worker", "workers", "driver", "script", "raylet", "gcs_server"]
Moment = Literal["start", "rounds", "write", "resume"]
Algorithm = Literal["fedavg", "scaffold", "median"]

VICTIMS: tuple[Victim, ...] = get_args(Victim)
MOMENTS: tuple[Moment, ...] = get_args(Moment)
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)


class Try(NamedTuple):
    """One disturbed run.

    moment: while the run starts, between rounds, while it writes a file, or while a killed run is resumed. stop_s: how
    long the victim is stopped; None kills it. after_round: of a disturbance in mid-run. delay_s: from the first sight
    of the victim, of a disturbance in the start.
    """

    algorithm: Algorithm
    victim: Victim
    moment: Moment
    stop_s: float | None
    after_round: int
    delay_s: float

    def __str__(self) -> str:
        how = "SIGKILL" if self.stop_s is None else f"SIGSTOP for {self.stop_s:.0f} s"
        when = (
            f"start, {self.delay_s:.1f} s on" if self.moment == "start" else f"{self.moment}, round {self.after_round}"
        )
        return f"{self.algorithm:8} {self.victim:10} {how:16} {when}"


class Outcome(NamedTuple):
    """What came of a try. wrong: why it is; None: it ended with the same bits."""

    tried: Try
    wrong: str | None


def tries(seed: int, rounds: int) -> Iterator[Try]:
    """Draw tries without end. Every victim comes once before any comes again; the same with the moments."""
    draw = random.Random(seed)
    victims, moments = _in_turn(draw, VICTIMS), _in_turn(draw, MOMENTS)
    while True:
        yield Try(
            algorithm=draw.choice(ALGORITHMS),
            victim=next(victims),
            moment=next(moments),
            stop_s=draw.uniform(1, 12) if draw.random() < 0.2 else None,
            after_round=draw.randrange(1, rounds - 1),
            delay_s=draw.uniform(0, 3),
        )


def of_raysim(said: str) -> str:
    """Return what a script said of errors without the lines of Ray's C++ library.

    That has no log file yet while it connects to a control service or a node manager, which may have died: it warns, or
    says why it ends the script.
    """
    return re.sub(r"^\[\d{4}-\d\d-\d\d [\d:,]+ [WE] \d+ \d+\] .*\n", "", said, flags=re.MULTILINE)


def table(outcomes: Sequence[Outcome]) -> str:
    """Return lines with the numbers of tries, and of wrong ones, by victim and moment."""
    tried = Counter((one.tried.victim, one.tried.moment) for one in outcomes)
    wrong = Counter((one.tried.victim, one.tried.moment) for one in outcomes if one.wrong is not None)
    lines = [f"{'wrong of tries':14}" + "".join(f"{moment:>10}" for moment in MOMENTS)]
    for victim in VICTIMS:
        cells = (f"{wrong[victim, moment]} of {tried[victim, moment]}" for moment in MOMENTS)
        lines.append(f"{victim:14}" + "".join(f"{cell:>10}" for cell in cells))
    return "\n".join([*lines, f"{len(outcomes)} disturbed runs, {sum(wrong.values())} wrong"])


def _in_turn(draw: random.Random, choices: Sequence[T]) -> Iterator[T]:
    while True:
        yield from draw.sample(choices, len(choices))
