"""The colours of all pictures, and what each becomes on a dark page."""

from __future__ import annotations

INK, QUIET, FAINT, GREY, PAPER = "#222222", "#555555", "#DDDDDD", "#ABABAB", "#FFFFFF"
ON_DARK, ON_LIGHT = "#FDFDFD", "#111111"
"""Letters on a coloured ground, which stays as it is on a dark page."""

SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's palette, which colour-blind people can tell apart; dashes or markers differ too."""

DARK = {
    INK: "#E6E6E6",
    QUIET: "#B4B9BE",
    FAINT: "#3A3F44",
    GREY: "#7C8288",
    PAPER: "#16191C",
    "#0072B2": "#4C9BE8",
    "#D55E00": "#F07F35",
    "#009E73": "#2FC79A",
    "#CC79A7": "#E29AC3",
    "#E69F00": "#F2BC45",
    "#56B4E9": "#9ADBFF",
}
"""Colour of a picture -> the colour that takes its place on a dark page."""

HEAT = "cividis"
"""matplotlib's colour map for heat maps: readable by colour-blind people, and in grey."""


def readable_on(red: float, green: float, blue: float) -> str:
    """The colour of letters on a ground whose parts are in 0..1."""
    return ON_LIGHT if 0.3 * red + 0.59 * green + 0.11 * blue > 0.5 else ON_DARK


def variable(colour: str) -> str:
    """The CSS variable that holds a colour: "#0072B2" is "--c-0072b2"."""
    return f"--c-{colour.removeprefix('#').lower()}"
