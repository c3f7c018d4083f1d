"""Computes epsilon after n rounds by Google's dp-accounting, an optional package.

The package is imported where an epsilon is asked for: its import takes a second. To compose the privacy losses of n
rounds takes a tenth of a second, for each n. So a run composes them for some n, and takes the others from these
(`along`); and it computes the next value in a thread, while a round trains (`ahead`).
"""

from __future__ import annotations

import importlib.util
import logging
import math
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Any, NamedTuple

from raysim.errors import ExperimentError
from raysim.server.privacy.section import AccountantName

INTERVAL = 1e-4
"""Of the discretised privacy losses: dp-accounting's default."""

SHARE = 1e-5
"""Of Rényi's bound: up to this the interval grows, because with little noise the losses are many and far apart."""

LARGEST = 1e8
"""Above this epsilon Rényi's bound is taken: exponentials of the losses are beyond float64. Budgets are below 1e6."""

ROUNDING = 2.0**-51
"""Of an event: what its divergences, and its part of a composition's delta, may lack by rounding, so bounds add it.

Compositions are made by Fourier transforms, which are wrong by up to 0.42 2^-52 an event, measured.
"""

POINTS, SPACING, STEEPEST = 6, 1.25, 1.5
"""Of `along`: exact values that a polynomial goes through, the ratio of their rounds, and the largest slope."""

LEAST_NOISE, MOST_NOISE = 0.05, 1e6
"""Between which z is searched."""


class Event(NamedTuple):
    """What one release tells, in dp-accounting's terms: a Gaussian mechanism with this noise multiplier.

    probability: of each client's part in it, if they are Poisson sampled. drawn: (N, M), if M of N clients are sampled
    without replacement. zcdp: (rho, xi) of a mechanism that is xi-approximately rho-zCDP, in place of a Gaussian.
    """

    noise_multiplier: float = 0.0
    probability: float | None = None
    drawn: tuple[int, int] | None = None
    zcdp: tuple[float, float] | None = None

    @property
    def text(self) -> str:
        """The event in words of a formula.

        >>> Event(0.5, probability=0.01).text, Event(0.5).text
        ('PoissonSampled(0.01, Gaussian(0.5))', 'Gaussian(0.5)')
        """
        inner = f"Gaussian({self.noise_multiplier:g})"
        if self.zcdp is not None:
            return f"ZCDp({self.zcdp[0]:g}, {self.zcdp[1]:g})"
        if self.drawn is not None:
            return f"SampledWithoutReplacement({self.drawn[0]}, {self.drawn[1]}, {inner})"
        return inner if self.probability is None else f"PoissonSampled({self.probability:g}, {inner})"

    def dp_event(self) -> Any:
        """Return the event of dp-accounting."""
        import dp_accounting

        inner = dp_accounting.GaussianDpEvent(self.noise_multiplier)
        if self.zcdp is not None:
            return dp_accounting.ZCDpEvent(*self.zcdp)
        if self.drawn is not None:
            return dp_accounting.SampledWithoutReplacementDpEvent(*self.drawn, inner)
        return inner if self.probability is None else dp_accounting.PoissonSampledDpEvent(self.probability, inner)


Told = tuple[tuple[Event, int], ...]
"""Events and how often they happen. Each of them alone bounds what was told, so the least epsilon is true."""


class Accountant(NamedTuple):
    """Computes epsilon: what a run's rounds tell of a client.

    events: from z and n to what n rounds tell. neighbours, released: see `Mechanism`.
    """

    noise_multiplier: float | None
    delta: float
    name: AccountantName
    neighbours: str
    released: str
    events: Callable[[float, int], Told]

    def epsilon(self, rounds: int) -> float:
        """Return epsilon after so many rounds."""
        return self.best(rounds)[0]

    def best(self, rounds: int) -> tuple[float, Event, int]:
        """Return the least epsilon after so many rounds, the event that bounds it, and how often it happens."""
        assert self.noise_multiplier is not None
        bounds = self.events(self.noise_multiplier, rounds)
        return min((epsilon(self.name, *each, self.delta), *each) for each in bounds)


def check_installed() -> None:
    """Check that there is an accountant.

    Raises:
        ExperimentError: it is not installed.
    """
    if importlib.util.find_spec("dp_accounting") is None:
        raise ExperimentError(
            "server.privacy computes epsilon with the package dp-accounting: pip install 'raysim[privacy]'."
        )


@lru_cache(maxsize=1024)
def epsilon(name: AccountantName, event: Event, count: int, delta: float) -> float:
    """Return the epsilon of `count` such events."""
    if count == 0:
        return 0.0
    if name == "rdp":
        from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

        orders, of_one = _renyi(event)
        return float(compute_epsilon(orders, count * (of_one + ROUNDING), delta)[0])
    if event.probability is None:
        from dp_accounting import get_epsilon_gaussian

        # Gaussian mechanisms compose to one, whose epsilon has a closed form.
        return float(get_epsilon_gaussian(event.noise_multiplier / math.sqrt(count), delta))
    bound, exact_delta = epsilon("rdp", event, count, delta), delta - count * ROUNDING
    if bound > LARGEST or exact_delta <= 0:
        return bound
    composed = _losses(event, _interval(bound)).self_compose(count)
    return min(bound, float(composed.get_epsilon_for_delta(exact_delta)))


def _interval(bound: float) -> float:
    """Return the interval of the losses, by a bound of epsilon; one of few values, so that losses are used again.

    >>> _interval(39.0), _interval(41.0), _interval(1e6)
    (0.0001, 0.0004, 6.5536)
    """
    grown = bound * SHARE / INTERVAL
    return INTERVAL if grown < 1 else INTERVAL * 4.0 ** math.floor(math.log(grown, 4))


@lru_cache(maxsize=64)
def _renyi(event: Event) -> tuple[Any, Any]:
    """Return the orders of Rényi's divergence, and its values for one event."""
    from dp_accounting import NeighboringRelation
    from dp_accounting.rdp import RdpAccountant

    # It writes a line for each order whose series does not converge, which it leaves out: the bound holds without them.
    logging.getLogger("absl").setLevel(logging.ERROR)
    relation = NeighboringRelation.ADD_OR_REMOVE_ONE if event.drawn is None else NeighboringRelation.REPLACE_ONE
    accountant = RdpAccountant(neighboring_relation=relation).compose(event.dp_event())
    return accountant.orders, accountant.rdp


@lru_cache(maxsize=8)
def _losses(event: Event, interval: float) -> Any:
    """Return the privacy loss distribution of one event, at this interval."""
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    return from_gaussian_mechanism(
        event.noise_multiplier, value_discretization_interval=interval, sampling_prob=event.probability
    )


def is_rounded(rounds: int, delta: float) -> bool:
    """Return whether so many events may round delta by more than a thousandth: epsilon has the noise of that.

    >>> is_rounded(1_000, 1e-6), is_rounded(100_000, 1e-9)
    (False, True)
    """
    return rounds * ROUNDING > delta / 1000


def least_noise(accountant: Accountant, rounds: int, budget: float) -> float:
    """Return the least z whose epsilon after so many rounds is within the budget, up to a millionth of it.

    Raises:
        ExperimentError: no z within reason does it.
    """

    def excess(log_z: float) -> float:
        # Nearly linear, so that few steps find its root.
        epsilon = accountant._replace(noise_multiplier=math.exp(log_z)).epsilon(rounds)
        return math.log(max(epsilon, 1e-300) / budget)

    # Rényi's bound is quick and never lower, so that it begins near the root.
    rough = accountant.name == "pld" and accountant._replace(name="rdp")
    high = math.log(least_noise(rough, rounds, budget)) if rough else 0.0
    while excess(high) > 0:
        high += math.log(2)
        if high > math.log(MOST_NOISE):
            raise ExperimentError(
                f"server.privacy.epsilon = {budget:g} after {rounds:,} rounds needs noise_multiplier > {MOST_NOISE:g}: "
                f"raise epsilon or lower rounds."
            )
    low = high - math.log(1.5)
    while excess(low) <= 0:
        high, low = low, low - math.log(2)
        if high <= math.log(LEAST_NOISE):
            return math.exp(high)
    from scipy.optimize import brentq  # slow to import, in every process of a run

    root = float(brentq(excess, low, high, xtol=1e-6))
    # A root may lie on either side.
    while excess(root) > 0:
        root += 1e-6
    return math.exp(root)


def along(exactly: Callable[[int], float], last: int) -> Callable[[int], float]:
    """Return epsilon after n rounds from exact values at 1, 2, ..., 6, 8, 10, 12, 15, ... and at the last round.

    Between them log epsilon is the polynomial in log n through six of them, which is within a millionth of it, or 1e-5
    where it is small: less than the discretisation of the losses adds. Where epsilon has only begun to rise above 0, it
    is computed.

    >>> cubic = along(lambda n: n**0.3 + n**0.6, last=1000)
    >>> abs(cubic(17) / (17**0.3 + 17**0.6) - 1) < 1e-6
    True
    """

    def value(n: int) -> float:
        nodes = [1]
        while len([node for node in nodes if node > n]) < POINTS // 2:
            nodes.append(max(nodes[-1] + 1, round(nodes[-1] * SPACING)))
        if n == last or n in nodes:
            return exactly(n)
        beside = nodes[-POINTS:]
        epsilons = [exactly(node) for node in beside]
        if min(epsilons) <= 0:
            return exactly(n)
        x, y = [math.log(node / n) for node in beside], [math.log(each) for each in epsilons]
        if y[1] - y[0] > STEEPEST * (x[1] - x[0]):
            return exactly(n)
        others = [math.prod(b / (b - a) for b in x if b != a) for a in x]
        return math.exp(sum(weight * each for weight, each in zip(others, y, strict=True)))

    return value


def ahead(function: Callable[[int], float]) -> Callable[[int], float]:
    """Return the function, whose next value a thread computes while the caller goes on.

    >>> square = ahead(lambda n: n * n)
    >>> square(3), square(4)
    (9, 16)
    """
    begun: dict[int, Future[float]] = {}
    thread = ThreadPoolExecutor(1, thread_name_prefix="epsilon")

    def value(n: int) -> float:
        for each in (n, n + 1):
            if each not in begun:
                begun[each] = thread.submit(function, each)
        for past in [each for each in begun if each < n]:
            del begun[past]
        return begun[n].result()

    return value
