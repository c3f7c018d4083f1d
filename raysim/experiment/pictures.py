"""Defines `[report]`: size, letters and files of pictures."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field

from raysim.config import overrides
from raysim.config.section import Section
from raysim.config.values import Name
from raysim.errors import ExperimentError

PictureFormat = Literal["png", "svg", "pdf"]
EVERY_FORMAT: tuple[PictureFormat, ...] = get_args(PictureFormat)
CM_PER_IN = 2.54


def _listed(given: Any) -> Any:
    return (given,) if isinstance(given, str) else given


class ReportSection(Section):
    """How pictures are drawn: of a run, `raysim report`, `compare`, `best`, `interpolate`, `tune` and `tuners`."""

    formats: (
        Annotated[
            tuple[PictureFormat, ...], Field(min_length=1, max_length=len(EVERY_FORMAT)), BeforeValidator(_listed)
        ]
        | None
    ) = Field(
        None,
        description="Files of each picture. Absent: all three; PNG of the picture beside a run, trials or a sweep.",
        examples=[("pdf",)],
    )
    width_cm: Annotated[float, Field(ge=4, le=60)] | None = Field(
        None,
        description=(
            "Width of each picture, such as a column's of a paper; letters keep their size. Absent: 12.7, and 20.3 of "
            "the picture beside a run, 30.5 beside a sweep."
        ),
        examples=[8.0],
    )
    font_size: Annotated[float, Field(ge=4, le=40)] | None = Field(
        None, description="Size of letters, in points. Absent: 9, or that of `style`.", examples=[8.0]
    )
    font: Name | None = Field(
        None, description='A font\'s name, or "serif". Absent: DejaVu Sans, or that of `style`.', examples=["serif"]
    )
    style: Name | None = Field(
        None,
        description=(
            "A style of matplotlib, by its name; matplotlib finds files of one's own in the folder stylelib of its "
            "configuration. Colours, dashes and markers of methods stay. Absent: raysim's."
        ),
        examples=["classic"],
    )

    def changed(self, set: Iterable[str]) -> ReportSection:
        """Return a validated copy, with changes of keys such as "report.width_cm=8".

        Raises:
            ExperimentError: a key that is not of `[report]`, or a value that does not fit.
        """
        table = overrides.apply({"report": self.model_dump(exclude_unset=True)}, set, ())
        if others := sorted(table.keys() - {"report"}):
            raise ExperimentError(
                f"--set {others[0]}: runs that are recorded keep their keys; what can be set here is report."
                f"{', report.'.join(ReportSection.model_fields)}."
            )
        return ReportSection.checked(table["report"], at="report")

    def size_in(self, width_in: float, height_in: float) -> tuple[float, float]:
        """Return width and height, in inches, of a picture that has these unless `width_cm` says otherwise."""
        wide = width_in if self.width_cm is None else self.width_cm / CM_PER_IN
        return wide, height_in * wide / width_in
