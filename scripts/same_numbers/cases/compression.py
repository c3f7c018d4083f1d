"""Cases of compression: of updates, with and without error feedback, and of the model."""

from __future__ import annotations

from typing import Any

from .case import Case

COMPRESSORS: dict[str, dict[str, Any]] = {
    "quantise": {"name": "quantise", "levels": 3, "scope": "group"},
    "quantise rotated": {"name": "quantise", "levels": 1, "norm": "max", "rotate": True},
    "sign": {"name": "sign"},
    "top_k": {"name": "top_k", "fraction": 0.2},
    "random_k": {"name": "random_k", "fraction": 0.2, "scale": "unbiased"},
    "random_k least": {"name": "random_k", "fraction": 0.2, "scale": "least"},
    "eden": {"name": "eden", "bits": 2, "scale": "unbiased"},
    "eden least": {"name": "eden", "bits": 2, "scale": "least", "scope": "group"},
    "top_k groups": {"name": "top_k", "fraction": 0.2, "scope": "group"},
    "sign groups": {"name": "sign", "scope": "group"},
    "random_k groups": {"name": "random_k", "fraction": 0.2, "scope": "group"},
}


def of_compressors() -> dict[str, Case]:
    """Compressors up and down, alone and with error feedback."""
    made = {}
    for place, (name, keys) in enumerate(COMPRESSORS.items()):
        of = ("model", "change")[place % 2]
        made[f"compression {name}"] = Case({"client.compression": keys})
        made[f"compression {name} rest"] = Case({"client.compression": {**keys, "error_feedback": True}})
        made[f"compression {name} down"] = Case({"server.compression": {**keys, "of": of}})
    return made
