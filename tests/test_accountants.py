"""Epsilon by accountant, without a run: bounds where rounding, little noise or many rounds make it hard."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from raysim.server.privacy import accountant
from raysim.server.privacy.accountant import Accountant, Event, along, epsilon
from raysim.server.privacy.section import LEAST_MULTIPLIER


def test_the_accountants_lines_about_orders_are_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    absl = logging.getLogger("absl")
    before = absl.level
    absl.setLevel(logging.NOTSET)
    accountant._renyi.cache_clear()
    try:
        orders, _ = accountant._renyi(Event(0.3, probability=0.1))
        assert len(orders) > 1
        assert not caplog.records
    finally:
        absl.setLevel(before)


def test_epsilon_between_the_rounds_whose_losses_are_composed() -> None:
    # Within the accountant's own tolerance, also where epsilon begins to rise above 0.
    for z, q, delta in ((1.0, 0.05, 1e-5), (5.0, 0.1, 0.04)):
        event = Event(z, probability=q)
        its = Accountant(z, delta, "pld", "", "", lambda z, n, event=event: ((event, n),))  # type: ignore[misc]
        between = along(its.epsilon, last=1_000)
        for n in (3, 7, 77):
            assert between(n) == pytest.approx(its.epsilon(n), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(
    ("z", "probability", "rounds", "delta", "least", "most"),
    [
        (1.0, 0.01, 10_000, 1e-12, 10.3466, 10.80),
        (20.0, 0.1, 1_000_000, 1e-10, 43.6994, 46.68),
        (4.0, 0.001, 1_000_000, 1e-12, 1.6982, 1.77),
        (0.7, 0.001, 1, 1e-15, 3.8232, 4.77),
    ],
)
def test_epsilon_of_a_small_delta_is_a_bound_in_spite_of_rounding(
    z: float, probability: float, rounds: int, delta: float, least: float, most: float
) -> None:
    # `least` was composed of losses that were tilted towards epsilon, so that rounding is small beside delta; `most` is
    # Rényi's bound.
    assert least < epsilon("pld", Event(z, probability=probability), rounds, delta) < most


@pytest.mark.parametrize("z", [LEAST_MULTIPLIER, 0.01, 0.05])
def test_epsilon_of_little_noise_is_large_and_takes_little_memory(z: float) -> None:
    for n in (1, 100):
        bound, alone = epsilon("rdp", event := Event(z, probability=0.9), n, 1e-5), epsilon("pld", Event(z), n, 1e-5)
        # Nearly all clients take part, so that sampling helps little.
        assert 0.7 * alone < epsilon("pld", event, n, 1e-5) < min(bound * 1.001, alone * 1.01)
        of_one = accountant._losses(event, accountant._interval(bound)) if bound <= accountant.LARGEST else None
        assert of_one is None or of_one._pmf_remove.size < 1.5e6


def test_epsilon_falls_as_noise_grows_for_all_mechanisms_and_accountants() -> None:
    events: dict[str, Callable[[float], Event]] = {
        "plain": Event,
        "sampled": lambda z: Event(z, probability=0.01),
        "drawn": lambda z: Event(z / 2, drawn=(1000, 10)),
    }
    for name, event in events.items():
        for name_of_accountant in ("rdp", "pld") if name == "plain" else ("rdp",):
            told = [
                epsilon(name_of_accountant, event(z), 10, 1e-5)
                for z in (LEAST_MULTIPLIER, 0.01, 0.05, 0.3, 1.0, 20.0, 1e3)
            ]
            assert told == sorted(told, reverse=True)
            assert told[0] > 1e5


def test_renyi_s_bound_allows_for_the_rounding_of_each_round() -> None:
    """A divergence of a round may be too small by what numbers near 1 are rounded by, and many rounds add this up."""
    from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

    event, rounds, delta = Event(1e6, probability=0.01), 10**12, 1e-6
    orders, of_one = accountant._renyi(event)
    allowed = epsilon("rdp", event, rounds, delta) - compute_epsilon(orders, rounds * of_one, delta)[0]
    assert allowed == pytest.approx(rounds * 2.0**-51, rel=1e-3)
