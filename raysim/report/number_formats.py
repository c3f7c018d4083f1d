"""Formats numbers of the records for people: shares, losses, durations, sizes and rates."""

from __future__ import annotations

_MINUTE_S, _HOUR_S, _DAY_S = 60, 3_600, 86_400


def share(fraction: float) -> str:
    """Return a fraction in percent.

    >>> share(0.8712)
    '87.1 %'
    """
    return f"{100 * fraction:.1f} %"


def asked_share(fraction: float) -> str:
    """Return a fraction that was asked for in percent, with all of its decimals: 0.9996 is not 100 %.

    >>> asked_share(0.9), asked_share(0.9996)
    ('90.0 %', '99.96 %')
    """
    written = f"{100 * fraction:.10g}"
    return f"{written} %" if "." in written else share(fraction)


def tick(fraction: float) -> str:
    """Return a fraction in percent, with the decimals that it has: ticks may be close to each other.

    >>> tick(0.234), tick(0.2345), tick(1.0)
    ('23.4 %', '23.45 %', '100 %')
    """
    return f"{100 * fraction:.6g} %"


def loss(value: float) -> str:
    """Return a loss with four significant digits.

    >>> loss(0.53217)
    '0.5322'
    """
    return f"{value:.4g}"


def setting_number(value: float) -> str:
    """Return a setting's number with six digits; with all of them where it has nine at most, as one that people write.

    >>> setting_number(0.1234567), setting_number(1e6), setting_number(10**-1.5)
    ('0.1234567', '1e+06', '0.0316228')
    """
    six, nine = f"{value:g}", f"{value:.9g}"
    return nine if float(six) != value == float(nine) else six


def duration(length_s: float) -> str:
    """Return a duration in its two largest units; below ten seconds, in tenths.

    >>> duration(4.2), duration(42), duration(3725), duration(90_000)
    ('4.2 s', '42 s', '1 h 02 min', '1 d 01 h')
    """
    if length_s < 9.95:
        return f"{length_s:.1f} s"
    whole = round(length_s)
    if whole < _MINUTE_S:
        return f"{whole} s"
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S} min {whole % _MINUTE_S:02} s"
    if whole < _DAY_S:
        return f"{whole // _HOUR_S} h {whole % _HOUR_S // _MINUTE_S:02} min"
    return f"{whole // _DAY_S} d {whole % _DAY_S // _HOUR_S:02} h"


def size(num_bytes: float) -> str:
    """Return a size in decimal units with three digits.

    >>> size(999), size(26_000), size(999_600)
    ('999 B', '26 kB', '1 MB')
    """
    value, unit = float(num_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB", "PB"):
        # 999.5 would be written as 1e+03, so it takes the next unit.
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{value:.3g} {unit}"


def rate(per_s: float) -> str:
    """Return a rate without its unit: whole above ten, else two digits.

    >>> rate(1234.5), rate(0.123)
    ('1,234', '0.12')
    """
    return f"{per_s:,.0f}" if per_s >= 10 else f"{per_s:.2g}"
