"""How figures are written for people: shares, losses, durations, sizes and counts."""

from __future__ import annotations

_MINUTE_S, _HOUR_S, _DAY_S = 60, 3_600, 86_400


def share(fraction: float) -> str:
    """A fraction in percent: 0.8712 is "87.1 %"."""
    return f"{100 * fraction:.1f} %"


def loss(value: float) -> str:
    """Four significant digits: 0.53217 is "0.5322"."""
    return f"{value:.4g}"


def duration(seconds: float) -> str:
    """The two largest units: 3725 is "1 h 02 min"; below ten seconds, a tenth: "4.2 s"."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < _MINUTE_S:
        return f"{whole} s"
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S} min {whole % _MINUTE_S:02} s"
    if whole < _DAY_S:
        return f"{whole // _HOUR_S} h {whole % _HOUR_S // _MINUTE_S:02} min"
    return f"{whole // _DAY_S} d {whole % _DAY_S // _HOUR_S:02} h"


def size(num_bytes: float) -> str:
    """Decimal units, three digits: 26_000 is "26 kB"."""
    value, unit = float(num_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB", "PB"):
        # 999.5 would be written as 1e+03: it is one of the next unit.
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{value:.3g} {unit}"


def rate(per_s: float) -> str:
    """A rate without its unit: whole above ten, else two digits."""
    return f"{per_s:,.0f}" if per_s >= 10 else f"{per_s:.2g}"


def counted(count: int, thing: str) -> str:
    """A count with its noun: "1 client", "1,200 clients"."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"
