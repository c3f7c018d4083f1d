"""Generates FedProx's synthetic(alpha, beta): softmax regression clients with chosen differences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field as Key
from pydantic import model_validator

from raysim.arrays import Int64s, UInt64s
from raysim.config.section import Section, has_other
from raysim.config.values import Factor, Seed
from raysim.data.field import Field
from raysim.data.holdout import ClientsShare, ExamplesShare, check_holdout, num_held_out
from raysim.seeds import generator, key, keys

DIMENSION = 60
CLASSES = 10
FEATURES = Field((DIMENSION,), "float32")
# Changes, and with it the fingerprint, whenever the same section and seed give other examples.
VERSION = 1

_FEATURE_STD = np.arange(1, DIMENSION + 1) ** -0.6

Part = Literal["train", "validation", "test"]


class Synthetic(Section):
    """Clients drawn from a population, each from a separate address: client k is the same in a population of any size.

    Client k draws u_k ~ N(0, alpha), B_k ~ N(0, beta), a feature mean v_k with v_kj ~ N(B_k, 1), a model W_k of
    (60, 10) and b_k of (10,), all ~ N(u_k, 1); its examples are x ~ N(v_k, diag(j^-1.2)) and y = argmax(x W_k + b_k).
    It has int(lognormal(4, 2)) + 50 examples; the last tenth (rounded up) are its test examples.

    Source: Li et al. 2020 (Federated Optimization in Heterogeneous Networks) and its released generator, which this
    follows where the two differ: alpha and beta are *standard deviations*, and one u_k serves W_k and b_k. Departures:
    draws are addressed by client (the generator is unseeded), features are rounded to float32, and sizes are capped.
    """

    name: Literal["synthetic"] = "synthetic"
    clients: int = Key(
        ge=1, le=10**12, description='Number of clients, validation clients included; their ids are "0", "1" and so on.'
    )
    alpha: Factor = Key(1.0, description="Standard deviation of u_k: how much models differ between clients.")
    beta: Factor = Key(1.0, description="Standard deviation of B_k: how much features differ between clients.")
    iid: bool = Key(
        False, description="synthetic_iid: one model W, b ~ N(0, 1) for all, and v_k = 0; alpha and beta are ignored."
    )
    sizes: Literal["lognormal"] | Annotated[int, Key(ge=2, le=10**6)] = Key(
        "lognormal", description='Examples per client: "lognormal", or one number for all.'
    )
    max_examples: int = Key(
        1000,
        ge=2,
        le=10**15,
        description="Upper bound of lognormal sizes, a departure: their tail reaches hundreds of thousands.",
    )
    holdout: ClientsShare = 0.0
    holdout_examples: ExamplesShare = 0.0
    seed: Seed | None = Key(None, description="Seed of every draw above. Absent: the experiment's.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_holdout(self.clients, self.holdout, self.holdout_examples)
        if self.iid and has_other(self, "alpha", "beta"):
            raise ValueError("alpha and beta have no part in iid = true: leave them out")
        if self.sizes != "lognormal" and has_other(self, "max_examples"):
            raise ValueError("max_examples caps lognormal sizes: leave it out where sizes is a number")
        return self


@dataclass(frozen=True)
class SyntheticClients:
    """One part of every client's examples; a source for `GeneratedSplit`."""

    section: Synthetic
    seed: int
    part: Part

    def sizes(self, clients: Int64s) -> Int64s:
        """Return the number of examples of the part, without computing them."""
        start, stop = self._bounds(sizes(self.section, self.seed, clients))
        return stop - start

    def client(self, client: int) -> tuple[npt.NDArray[np.float32], Int64s]:
        """Return the part's examples: x (n, 60), y (n,)."""
        size = sizes(self.section, self.seed, np.array([client], np.int64))
        start, stop = self._bounds(size)
        x, y = examples(self.section, self.seed, client, int(size[0]))
        rows = slice(int(start[0]), int(stop[0]))
        return x[rows], y[rows]

    def _bounds(self, size: Int64s) -> tuple[Int64s, Int64s]:
        """Return the part's first row and the row after its last, for clients of these sizes."""
        num_kept = size * 9 // 10
        num_train = num_kept - num_held_out(self.section.holdout_examples, num_kept)
        match self.part:
            case "train":
                return np.zeros_like(size), num_train
            case "validation":
                return num_train, num_kept
            case "test":
                return num_kept, size


def sizes(section: Synthetic, seed: int, clients: Int64s) -> Int64s:
    """Return the number of examples of each client, test examples included."""
    if section.sizes != "lognormal":
        return np.full(len(clients), section.sizes, np.int64)
    # Box and Muller on two keys per client, so that a million sizes are a few array operations.
    radius = np.sqrt(-2 * np.log(_uniform(keys(seed, "synthetic/size", clients, 0))))
    normal = radius * np.cos(2 * np.pi * _uniform(keys(seed, "synthetic/size", clients, 1)))
    drawn: Int64s = np.exp(4 + 2 * normal).astype(np.int64) + 50
    return np.minimum(drawn, section.max_examples)


def examples(section: Synthetic, seed: int, client: int, size: int) -> tuple[npt.NDArray[np.float32], Int64s]:
    """Return one client's examples, in the order drawn: x (size, 60) float32, y (size,) int64."""
    draws = generator(key(seed, "synthetic/client", client))
    if section.iid:
        shared = generator(key(seed, "synthetic/model"))
        weight, bias = shared.standard_normal((DIMENSION, CLASSES)), shared.standard_normal(CLASSES)
        mean = np.zeros(DIMENSION)
    else:
        model_mean, feature_mean = draws.normal(0, section.alpha), draws.normal(0, section.beta)
        mean = draws.normal(feature_mean, 1, DIMENSION)
        weight, bias = draws.normal(model_mean, 1, (DIMENSION, CLASSES)), draws.normal(model_mean, 1, CLASSES)
    x = mean + draws.standard_normal((size, DIMENSION)) * _FEATURE_STD
    y = np.argmax(x @ weight + bias, axis=1)
    return x.astype(np.float32), y.astype(np.int64, copy=False)


def synthetic_address(section: Synthetic, seed: int) -> dict[str, Any]:
    """Return the facts that determine the dataset's content."""
    return {"name": "synthetic", "version": VERSION, "section": section.model_dump(exclude={"seed"}), "seed": seed}


def _uniform(bits: UInt64s) -> npt.NDArray[np.float64]:
    """Return uniform numbers in (0, 1], from the upper 53 bits."""
    return ((bits >> np.uint64(11)) + np.uint64(1)).astype(np.float64) * 2.0**-53
