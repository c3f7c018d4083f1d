"""What a figure's drawing functions leave on their axes."""

from __future__ import annotations

from typing import Any

from raysim.report.gallery.figure import Figure


def drawn(figure: Figure) -> list[Any]:
    """Return the axes of each panel, drawn."""
    from matplotlib.figure import Figure as Canvas

    every = []
    for panel in figure.panels:
        axes = Canvas().add_subplot()
        panel.draw(axes)
        axes.set_title(panel.title)
        every.append(axes)
    return every


def texts(axes: Any) -> list[str]:
    """Return the texts inside axes, in order."""
    return [text.get_text() for text in axes.texts]


def ticks(axes: Any) -> list[str]:
    """Return the texts below axes."""
    return [label.get_text() for label in axes.get_xticklabels()]
