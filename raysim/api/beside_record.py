"""Tells when a run's model or round, computed again, has other figures than the run's folder has on record."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from raysim.errors import RunFolderError
from raysim.run_folder import cost_columns, round_table
from raysim.storage.remote.folder import named

log = logging.getLogger("raysim")


def warn_of_others(where: Path, index: int, metrics: Mapping[str, float | None]) -> None:
    """Warn if figures of round `index` are not those of its row, to the bit; a figure that either lacks is passed over.

    What a folder records of a script's parts (`passed_parts.py`) says which there were, and warns where their code is
    another. Whether their numbers are others shows here, to the bit.
    """
    try:
        [row] = round_table.read_rounds(where).slice(index, 1).to_pylist() or [{}]
    except RunFolderError as error:
        # The figures need no record: they are returned all the same.
        log.warning("the figures cannot be compared with the record: %s", error)
        return
    both = {
        name: (value, row[name])
        for name, value in metrics.items()
        if value is not None and row.get(name) is not None and not cost_columns.tells_cost(name)
    }
    # By repr, in which NaN is NaN.
    differing = [name for name, (value, recorded) in both.items() if repr(float(value)) != repr(float(recorded))]
    if differing:
        first = differing[0]
        value, recorded = both[first]
        names = ", ".join(islice(differing, 5)) + (f" and {len(differing) - 5} others" if len(differing) > 5 else "")
        log.warning(
            "round %s of %s is on record with other figures (%s): %s is %r here, and was %r. Own parts, such as model= "
            "or loss=, are not those of the run, or processor or version of torch are others",
            index,
            named(where),
            names,
            first,
            value,
            recorded,
        )
