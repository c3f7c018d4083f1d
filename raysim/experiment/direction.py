"""Says whether a recorded figure is to be large, by the name of its column."""

from __future__ import annotations

import re
from types import MappingProxyType

_LARGE = re.compile(r"accuracy|mean_client_accuracy|p[0-9.]+")
_SMALL = frozenset({"loss", "perplexity", "client_accuracy_variance", "client_accuracy_range"})


def is_maximised(column: str, maximise: bool | None = None) -> bool | None:
    """Return whether the column is to be large; None if its name does not tell. `maximise`: what an experiment says.

    >>> is_maximised("eval/test/accuracy"), is_maximised("loss"), is_maximised("eval/test/f1")
    (True, False, None)
    """
    name = column.rpartition("/")[2]
    if maximise is not None or name in _SMALL:
        return bool(maximise)
    return True if _LARGE.fullmatch(name) else None


def refusal(column: str, maximise: bool | None) -> str | None:
    """Return why the direction is not known, or not the one that the name tells; None if it is known."""
    known = is_maximised(column)
    if known is None and maximise is None:
        hint = "" if (meant := _meant(column)) is None else f" (did you mean {meant!r}?)"
        must = f"maximise must say whether {column!r} is to be large (true) or small (false)"
        return f"{must}, because its name does not{hint}"
    if None not in (known, maximise) and known != maximise:
        return f"maximise must be {str(known).lower()} for {column!r}, or left out, but got {str(maximise).lower()}"
    return None


_METRICS = MappingProxyType({"accuracy": "accuracy", "acc": "accuracy", "loss": "loss"})
_SPLITS = MappingProxyType(
    {"test": "test", "validation": "validation", "valid": "validation", "val": "validation", "train": "train"}
)


def _meant(column: str) -> str | None:
    """Return the column that people mean by a name of other tools; None if it is like none.

    >>> _meant("test_accuracy"), _meant("eval/val/acc"), _meant("train.loss"), _meant("acc"), _meant("eval/test/f1")
    ('eval/test/accuracy', 'eval/validation/accuracy', 'eval/train/loss', 'accuracy', None)
    """
    words = re.split(r"[^a-z]+", column.lower())
    metric = next((_METRICS[word] for word in words if word in _METRICS), None)
    split = next((_SPLITS[word] for word in words if word in _SPLITS), None)
    return metric if metric is None or split is None else f"eval/{split}/{metric}"
