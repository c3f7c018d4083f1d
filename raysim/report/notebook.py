"""How results show themselves in a notebook: the closing table, and the learning curve."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape

import pyarrow as pa

from raysim.report import curve
from raysim.report.closing import Line

DPI = 80


def html(lines: Sequence[Line], rounds: pa.Table, title: str, deviations: pa.Table | None = None) -> str:
    """An HTML fragment that needs nothing beside itself.

    Args:
        lines: of the closing table.
        rounds, title, deviations: as for the learning curve; without a figure to draw there is no picture.
    """
    rows = "".join(
        f'<tr><th style="text-align:left">{escape(label)}</th><td style="text-align:left">{escape(said)}</td></tr>'
        for label, said in lines
    )
    return f"<table>{rows}</table>{_picture(rounds, title, deviations)}"


def _picture(rounds: pa.Table, title: str, deviations: pa.Table | None) -> str:
    drawn = curve.figure(rounds, title, deviations)
    if drawn is None:
        return ""
    file = io.BytesIO()
    drawn.savefig(file, format="png", dpi=DPI)
    content = base64.b64encode(file.getvalue()).decode()
    return f'<img alt="{escape(title)}: learning curve" src="data:image/png;base64,{content}">'
