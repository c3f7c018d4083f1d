"""Writes a comparison as text, Markdown or LaTeX."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import MappingProxyType
from typing import Literal

from raysim.config.printable import in_one_line
from raysim.report import number_formats
from raysim.report.column_names import is_share
from raysim.report.comparison import Comparison, Method

Format = Literal["text", "markdown", "latex"]

_MARKDOWN = MappingProxyType(
    {**{each: f"&#{ord(each)};" for each in "&<>[]`$\\"}, **{each: rf"\{each}" for each in "|*_~"}}
)
"""What Markdown and a notebook act on: HTML, links, code, formulas, the ends of cells and emphasis."""
_OF_ADDRESS = re.compile(r":(?=//)|(?<=www)\.", re.IGNORECASE)
"""GitHub and notebooks make links of `https://x` and `www.x`, unless these letters are written by their numbers."""

_TESTS = MappingProxyType({"t": "paired t", "wilcoxon": "Wilcoxon"})
_LATEX = MappingProxyType(
    {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}
)


def written(comparison: Comparison, form: Format) -> str:
    """Return the comparison's heading, table and notes; what a folder says is shown, and acts on nothing."""
    heading = f"{comparison.metric}, {_when(comparison)}"
    corrected = ", Holm" if len(comparison.methods) > 2 else ""
    first = comparison.methods[0].label
    head = ["", "trials", "mean", "std", "difference", "pairs", f"p ({_TESTS[comparison.test]}{corrected})"]
    rows = [_cells(method, comparison.metric) for method in comparison.methods]
    notes = [f"Differences are from {first}, trial by trial, with their standard deviation.", *comparison.notes]
    # A setting may hold the end of a line, which would end a row, or a comment in LaTeX.
    heading, notes = in_one_line(heading), [in_one_line(note) for note in notes]
    rows = [[in_one_line(cell) for cell in row] for row in rows]
    return {"text": _text, "markdown": _markdown, "latex": _latex}[form](heading, head, rows, notes)


def as_markdown(text: str) -> str:
    """Return a text as Markdown that shows it, in one line.

    >>> as_markdown("x_train < <b>")
    'x\\\\_train &#60; &#60;b&#62;'
    """
    escaped = "".join(_MARKDOWN.get(letter, letter) for letter in in_one_line(text))
    return _OF_ADDRESS.sub(lambda found: f"&#{ord(found[0])};", escaped)


def _when(comparison: Comparison) -> str:
    """Return the rounds that count."""
    after, last = comparison.after, comparison.last
    if last == 1:
        return "newest values" if after is None else f"after round {after:,}"
    until = "" if after is None else f" until round {after:,}"
    return f"mean of the last {last} rounds that have it{until}"


def _cells(method: Method, metric: str) -> list[str]:
    in_percent = is_share(metric)
    write = number_formats.share if in_percent else number_formats.loss
    deviation = "-" if method.deviation is None else write(method.deviation)
    cells = [method.label, str(method.trials), write(method.mean), deviation]
    difference = method.difference
    if difference is None:
        return [*cells, "-", "-", "-"]
    scale, unit = (100, " points") if in_percent else (1, "")
    around = "" if difference.deviation is None else f" ± {scale * difference.deviation:.3g}"
    p = "-" if difference.p is None else f"{difference.p:.2g}"
    return [*cells, f"{scale * difference.mean:+.3g}{around}{unit}", str(difference.pairs), p]


def _text(heading: str, head: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str]) -> str:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [_aligned(row, widths) for row in (head, *rows)]
    return "\n".join([heading, *lines, *notes])


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    """Return a row with labels aligned left and numbers aligned right."""
    first, *others = zip(row, widths, strict=True)
    cells = [f"{first[0]:<{first[1]}}", *(f"{cell:>{width}}" for cell, width in others)]
    return "  ".join(cells).rstrip()


def _markdown(heading: str, head: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *([as_markdown(cell) for cell in row] for row in rows)]
    table = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([f"**{as_markdown(heading)}**", "", *table, "", *map(as_markdown, notes)])


def _latex(heading: str, head: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str]) -> str:
    """Return a `tabular` for the package booktabs, ready for \\input; heading and notes are comments."""
    lines = [" & ".join(map(_escaped, row)) + r" \\" for row in (head, *rows)]
    begin = rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}"
    body = [begin, r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule", r"\end{tabular}"]
    return "\n".join([f"% {heading}", *body, *(f"% {note}" for note in notes)])


def _escaped(text: str) -> str:
    return re.sub(r"[\\~^±&%$#_{}]", lambda found: _LATEX.get(found[0], rf"\{found[0]}"), text)
