"""Reads LEAF's json of numbers: the released synthetic(alpha, beta) files and others of this form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
from pydantic import Field as Key

from raysim.config.section import Section
from raysim.config.values import FilePath, Width
from raysim.data.field import Field
from raysim.data.populated import Populated
from raysim.data.source import LABEL, ClientRows, Population
from raysim.data.sources import leaf_json
from raysim.data.sources.root import locate
from raysim.errors import DataError

_PUBLISHED_AT = "https://github.com/litian96/FedProx, data/synthetic_*; https://github.com/TalwalkarLab/leaf"


class Leaf(Populated, Section):
    """Users with rows of numbers x and integer labels y."""

    name: Literal["leaf"] = "leaf"
    root: FilePath | None = Key(
        None,
        description=(
            "Folder with data/train/*.json and data/test/*.json, such as FedProx's data/synthetic_1_1. Absent: "
            "$RAYSIM_DATA/leaf or data/leaf."
        ),
    )
    classes: Width = Key(10, description="Number of classes; labels are in 0..classes - 1.")


def open_source(section: Leaf) -> Population:
    """Find the files, and read the shape of x from the first user with examples.

    Raises:
        DataError: a file is missing or damaged; names it.
    """
    folder = locate(section.root, "leaf", leaf_json.published(_PUBLISHED_AT))
    sides = {side: leaf_json.find(folder, side, _PUBLISHED_AT) for side in ("train", "test")}
    first = next(((file, user) for file in sides["train"] for user in leaf_json.users(file) if user.x), None)
    if first is None:
        raise DataError(f"{sides['train'][0].path.parent}: expected users with examples, found none")
    shape = leaf_json.numbers(first[1].x, f"{first[0].path}, user {first[1].name!r}").shape[1:]

    def stream() -> Iterator[ClientRows]:
        for split, files in sides.items():
            for file, user in leaf_json.all_users(files):
                where = f"{file.path}, user {user.name!r}"
                x = leaf_json.numbers(user.x, where) if user.x else np.empty((0, *shape), np.float32)
                if x.shape[1:] != shape:
                    raise DataError(f"{where}: expected x of shape {shape} as the first user's, found {x.shape[1:]}")
                yield ClientRows(split, user.name, x, leaf_json.labels(user.y, section.classes, where))

    address = {"name": "leaf", "files": leaf_json.digests(sides)}
    x = Field(shape, "float32")
    return Population(address, x, LABEL, section.classes, lambda: leaf_json.names(sides["train"]), stream)
