"""How long simulated clients take: the equations in whole numbers, and the laws of what is drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from raysim.systems.quantity import Distribution, draw_quantity
from raysim.systems.section import SystemsSection
from raysim.systems.times import Load, RoundTime, Straggler, round_times, straggler_times

EVERYONE = np.arange(4000)
ALL_ALIKE = Load(np.full(4000, 10), bytes_down=1.5e6, bytes_up=0.5e6)

DISTRIBUTIONS: list[tuple[dict[str, Any], float, float]] = [
    # mean and standard deviation: median exp(s^2 / 2) and that times sqrt(exp(s^2) - 1); (b - a) / sqrt(12); the mean.
    ({"name": "lognormal", "median": 2.0, "sigma": 0.5}, 2.0 * np.exp(0.125), 2.0 * np.exp(0.125) * 0.53294),
    ({"name": "uniform", "low": 1.0, "high": 5.0}, 3.0, 4 / np.sqrt(12)),
    ({"name": "exponential", "mean": 7.0}, 7.0, 7.0),
]


def quantity(keys: dict[str, Any]) -> Any:
    return TypeAdapter[Any](Distribution).validate_python(keys)


def make_straggler(alpha: float, delay: float) -> Straggler:
    return Straggler.model_validate({"alpha": alpha, "lambda": delay})


@pytest.mark.parametrize(("keys", "mean", "deviation"), DISTRIBUTIONS, ids=lambda value: str(value))
def test_distributions_have_their_mean_and_deviation(keys: dict[str, Any], mean: float, deviation: float) -> None:
    values = draw_quantity(quantity(keys), 3, "key", 0, EVERYONE)
    assert abs(values.mean() - mean) < 4 * deviation / np.sqrt(len(values))
    assert values.std() == pytest.approx(deviation, rel=0.1)
    assert (values > 0).all()


@pytest.mark.parametrize("keys", [keys for keys, _, _ in DISTRIBUTIONS], ids=lambda keys: keys["name"])
def test_a_device_keeps_what_it_drew_unless_it_is_drawn_every_round(keys: dict[str, Any]) -> None:
    for_the_run, anew = quantity(keys), quantity({**keys, "per": "round"})
    first = draw_quantity(for_the_run, 0, "key", 0, EVERYONE)
    assert np.array_equal(first, draw_quantity(for_the_run, 0, "key", 9, EVERYONE))
    # Whoever else is asked, in whatever order.
    np.testing.assert_allclose(draw_quantity(for_the_run, 0, "key", 0, EVERYONE[70:20:-3]), first[70:20:-3], rtol=1e-15)
    for other in (
        draw_quantity(for_the_run, 1, "key", 0, EVERYONE),
        draw_quantity(for_the_run, 0, "other", 0, EVERYONE),
        draw_quantity(anew, 0, "key", 0, EVERYONE),
        draw_quantity(anew, 0, "key", 1, EVERYONE),
    ):
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.1


def test_without_delays_a_straggler_takes_alpha_for_each_example() -> None:
    load = Load(np.array([3, 5]), 0, 0)
    assert straggler_times(make_straggler(2.0, 0.0), 0, 0, np.array([8, 9]), load).tolist() == [6.0, 10.0]


def test_a_stragglers_delay_is_exponential_in_proportion_to_its_examples() -> None:
    x = straggler_times(make_straggler(2.0, 3.0), 0, 0, EVERYONE, ALL_ALIKE)
    # 10 examples: 20 s and an exponential of mean and deviation 30 s.
    assert x.min() > 20
    assert abs(x.mean() - 50) < 4 * 30 / np.sqrt(4000)
    assert abs(np.mean(x > 20 + 30 * np.log(2)) - 0.5) < 4 * 0.5 / np.sqrt(4000)
    twice = straggler_times(make_straggler(2.0, 3.0), 0, 0, EVERYONE, Load(np.full(4000, 20), 0, 0))
    np.testing.assert_allclose(twice, 2 * x)
    longer = straggler_times(make_straggler(0.0, 6.0), 0, 0, EVERYONE, ALL_ALIKE)
    np.testing.assert_allclose(longer, 2 * (x - 20), rtol=1e-12)


def test_the_slowest_of_m_stragglers_is_as_late_as_order_statistics_say() -> None:
    # E max of M exponentials of mean 1 is the M-th harmonic number, its deviation below pi / sqrt(6).
    for m in (10, 100):
        slowest = [
            straggler_times(make_straggler(0.0, 0.1), 0, t, np.arange(m), Load(np.full(m, 10), 0, 0)).max()
            for t in range(2000)
        ]
        harmonic = sum(1 / k for k in range(1, m + 1))
        assert abs(np.mean(slowest) - harmonic) < 4 * 1.2826 / np.sqrt(2000)


def test_another_round_brings_other_delays() -> None:
    section = make_straggler(0.0, 1.0)
    one, other = (straggler_times(section, 0, t, EVERYONE, ALL_ALIKE) for t in (0, 1))
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.1


def test_the_published_figures_give_the_time_of_a_round() -> None:
    section = RoundTime(seconds_per_example=0.1)
    load = Load(np.array([10, 40]), bytes_down=1.5e6, bytes_up=0.5e6)
    # 1.5 MB / 0.75 MB/s + 0.5 MB / 0.25 MB/s + 7 * 0.1 s * N + 10 s.
    assert round_times(section, 0, 0, np.array([0, 1]), load).tolist() == pytest.approx([2 + 2 + 7 + 10, 42])


def test_each_part_of_a_rounds_time_may_differ_by_device() -> None:
    keys = {
        "download_bytes_per_s": 1.0,
        "upload_bytes_per_s": 1.0,
        "seconds_per_example": 1.0,
        "slowdown": 1.0,
        "overhead_s": 0.0,
    }
    load = Load(np.full(4000, 10), bytes_down=100, bytes_up=1000)
    seen = []
    for key in keys:
        spread = RoundTime.model_validate({**keys, key: {"name": "uniform", "low": 1.0, "high": 2.0}})
        times_s = round_times(spread, 0, 0, EVERYONE, load)
        # From 1 to 2 of what is 100 (a half of it for bandwidths), 1,000, 10, 10, and 0 seconds.
        seen.append(np.ptp(times_s))
    assert seen == pytest.approx([50, 500, 10, 10, 1], rel=0.01)


def test_who_does_not_stay_long_enough_never_reports() -> None:
    time = {"name": "straggler", "alpha": 1.0, "lambda": 0.0}
    load = Load(np.array([4, 5, 6]), 0, 0)
    section = SystemsSection.model_validate({"time": time, "session_s": 5.0})
    assert section.times(0, 0, np.arange(3), load).tolist() == [4.0, 5.0, np.inf]
    # 10 s are outlived by exp(-10 / 20) of sessions of mean 20 s.
    sessions = {"name": "exponential", "mean": 20.0, "per": "round"}
    section = SystemsSection.model_validate({"time": time, "session_s": sessions})
    stayed = np.isfinite(section.times(0, 0, EVERYONE, ALL_ALIKE)).mean()
    assert abs(stayed - np.exp(-0.5)) < 4 * 0.49 / np.sqrt(4000)


@pytest.mark.parametrize(
    ("factor", "size", "asked"), [(1.0, 7, 7), (1.3, 10, 13), (1.1, 10, 11), (1.25, 7, 9), (2.0, 80, 100)]
)
def test_over_selection_is_rounded_up_and_ends_with_the_population(factor: float, size: int, asked: int) -> None:
    time = {"name": "straggler", "alpha": 1.0, "lambda": 0.0}
    assert SystemsSection.model_validate({"time": time, "over_selection": factor}).asked(size, 100) == asked
