"""Progress below a notebook's cell: one display that is replaced in place, without widgets and without scripts."""

from __future__ import annotations

from html import escape
from types import TracebackType
from typing import Any, Self

from raysim.report.standing import Standing

EVERY_S = 0.25
"""A notebook keeps every message, so a display is not replaced more often than this."""


class NotebookBar:
    """A display for kernels. Where HTML is not shown, such as in a console, its text stands in."""

    def __init__(self) -> None:
        self._said: list[str] = []
        self._handle: Any = None
        self._shown_s: float | None = None
        self._unshown: Standing | None = None

    def __enter__(self) -> Self:
        from IPython.display import display

        self._handle = display(self._content(None), raw=True, display_id=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._unshown is not None:
            self._update(self._unshown)

    def say(self, text: str) -> None:
        """Show a line above the bar from now on."""
        self._said.append(text)
        self._handle.update(self._content(None), raw=True)

    def show(self, standing: Standing) -> None:
        """Show the standing, if it is time, or else with the next one."""
        now_s = standing.finishes[-1].at_s
        if self._shown_s is None or now_s - self._shown_s >= EVERY_S or standing.done >= standing.total:
            self._update(standing)
        else:
            self._unshown = standing

    def _update(self, standing: Standing) -> None:
        self._handle.update(self._content(standing), raw=True)
        self._shown_s, self._unshown = standing.finishes[-1].at_s, None

    def _content(self, standing: Standing | None) -> dict[str, str]:
        above = "".join(f"{line}\n" for line in self._said)
        if standing is None:
            return {"text/plain": f"{above}starting ...", "text/html": f"<pre>{escape(above)}starting ...</pre>"}
        rounds = f"round {standing.done:,}/{standing.total:,}"
        figures = "   ".join([*standing.quality(), *standing.trouble(), *standing.pace()])
        bar = f'<progress max="{standing.total}" value="{standing.done}" style="width: 24em"></progress>'
        return {
            "text/plain": f"{above}{rounds}: {figures}",
            "text/html": f"<pre>{escape(above)}{rounds}  {bar}\n{escape(figures)}</pre>",
        }
