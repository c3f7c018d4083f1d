"""The sources in C that are written in vectors of the processor's width (`vectors.h`)."""

from __future__ import annotations

from pathlib import Path

from raysim.storage.compiled_c import CSource


def vectorised(name: str) -> CSource:
    """Return the file of this name beside this one: compiled in two seconds; with "-O3" in five, and no faster."""
    return CSource(
        Path(__file__).with_name(name),
        optimisation=("-O2", "-ftree-vectorize", "-fvect-cost-model=dynamic"),
        headers=(Path(__file__).with_name("vectors.h"),),
    )
