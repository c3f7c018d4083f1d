"""Numbers as people read them."""

from __future__ import annotations

import pytest

from raysim.config.counted import counted
from raysim.report import number_formats


@pytest.mark.parametrize(("fraction", "text"), [(0.8712, "87.1 %"), (0.0, "0.0 %"), (1.0, "100.0 %")])
def test_a_share_is_written_in_percent(fraction: float, text: str) -> None:
    assert number_formats.share(fraction) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (3725, "1 h 02 min"),
        (90_000, "1 d 01 h"),
    ],
)
def test_a_duration_has_its_two_largest_units(seconds: float, text: str) -> None:
    assert number_formats.duration(seconds) == text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (26_000, "26 kB"), (999_600, "1 MB"), (2.08e9, "2.08 GB")],
)
def test_a_size_has_a_decimal_unit(num_bytes: float, text: str) -> None:
    assert number_formats.size(num_bytes) == text


@pytest.mark.parametrize(("per_s", "text"), [(1234.5, "1,234"), (10.4, "10"), (0.256, "0.26")])
def test_a_rate_shows_digits_only_where_it_is_small(per_s: float, text: str) -> None:
    assert number_formats.rate(per_s) == text


def test_one_is_singular() -> None:
    assert [counted(n, "client") for n in (0, 1, 1200)] == ["0 clients", "1 client", "1,200 clients"]
