"""Names the columns of user-defined metrics, and refuses names of other columns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from raysim.config.section import Section
from raysim.config.values import NAME_LETTERS

_OVER_CLIENTS = frozenset({"mean_client_accuracy", "client_accuracy_variance", "client_accuracy_range"})
_OF_CLIENTS = frozenset(
    {
        "accuracy_weight",
        "client",
        "examples",
        "label_similarity",
        "loss_weight",
        "seen",
        "split",
        "training_examples",
    }
)
TAKEN = frozenset({"accuracy", "before", "global", "loss", "new", "round", "trial"}) | _OF_CLIENTS | _OVER_CLIENTS
"""Names of other columns, beside percentiles and figures of other models of the client."""

_FORM = re.compile(r"[A-Za-z][A-Za-z0-9_@-]*")
_OTHERS = re.compile(r"p[0-9].*|(tuned|global)_.*")


def column(section: Section) -> str:
    """Return the name of a metric's columns: its label, if its section has one, else its name."""
    label = getattr(section, "label", None)
    return str(label if label is not None else getattr(section, "name", ""))


def is_name(name: object) -> bool:
    """Return whether this is a text of the form and length that names of metrics have."""
    return isinstance(name, str) and len(name) <= NAME_LETTERS and _FORM.fullmatch(name) is not None


def rule(name: object) -> str:
    """Return a sentence that tells the form from a name that has another."""
    shown = f"{name[:NAME_LETTERS]!r} and more" if isinstance(name, str) and len(name) > NAME_LETTERS else repr(name)
    return (
        f"a metric's name must be at most {NAME_LETTERS} letters, digits, '_', '-' or '@', a letter first, but got "
        f"{shown}"
    )


def refusals(sections: Sequence[Section]) -> Iterator[str]:
    """Yield a sentence for each name that cannot be a column."""
    for name, times in Counter(map(column, sections)).items():
        if not is_name(name):
            yield rule(name)
        elif name in TAKEN or _OTHERS.fullmatch(name):
            yield (
                f"a metric cannot be named {name!r}, because other columns are: {', '.join(sorted(TAKEN))}, p5 and"
                f" other percentiles, tuned_... and global_..."
            )
        elif times > 1:
            yield f"{times} metrics are named {name!r}: their columns would be the same"
