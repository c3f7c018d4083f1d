"""Generates quadratic functions as least squares: clients that disagree, and an optimum in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field as Key
from pydantic import model_validator

from raysim.arrays import Int64s
from raysim.config.section import Section
from raysim.config.values import NonNegative, Positive, Seed
from raysim.data.field import Field
from raysim.data.holdout import ClientsShare
from raysim.data.optimum import Optimum, Vector
from raysim.seeds import generator, key

# Changes, and with it the fingerprint, whenever the same section and seed give other examples.
VERSION = 1

TARGET = Field((), "float64")

LEAST_RATIO = 1e-12
"""Of convexity to smoothness: below, a solution in float64 has no correct digit."""


class Quadratic(Section):
    """Client i has F_i(x) = 1/2 (x - c_i)' A_i (x - c_i), A_i = Q_i diag(e) Q_i', c_i ~ N(0, spread^2 I).

    e is geometric from `convexity` to `smoothness`; Q_i is uniform among the orthogonal matrices. The client's d =
    `dimension` examples are the rows of sqrt(d/2) A_i^(1/2), and their targets these rows times c_i: F_i is the mean of
    their squared errors under `model = { name = "linear", bias = false }`. Under that model, evaluations also write
    `distance_to_optimum`, |x - x*|, and `excess_loss`, F(x) - F(x*), where F is the mean of all F_i, and x* = (sum
    A_i)^-1 sum A_i c_i; but not where clients are held out.

    Source: Wang et al. (2021), section 4.3.1, which prints no distribution of A_i and c_i.
    """

    name: Literal["quadratic"] = "quadratic"
    clients: int = Key(ge=1, le=10**6, description='Number of clients; their ids are "0", "1" and so on.')
    dimension: int = Key(ge=1, le=1000, description="Numbers of the model; also a client's number of examples.")
    smoothness: Positive = Key(1.0, description="Largest eigenvalue of every A_i.")
    convexity: Positive = Key(0.01, description="Smallest eigenvalue of every A_i.")
    spread: NonNegative = Key(1.0, description="Standard deviation of c_i: how much the clients' optima differ.")
    holdout: ClientsShare = 0.0
    seed: Seed | None = Key(None, description="Seed of every draw above. Absent: the experiment's.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not LEAST_RATIO * self.smoothness <= self.convexity <= self.smoothness:
            raise ValueError(
                f"{LEAST_RATIO:g} smoothness <= convexity <= smoothness must hold, but got convexity = "
                f"{self.convexity:g} and smoothness = {self.smoothness:g}"
            )
        return self

    @property
    def features(self) -> Field:
        """The form of an example."""
        return Field((self.dimension,), "float64")


@dataclass(frozen=True)
class QuadraticClients:
    """Every client's examples; a source for `GeneratedSplit`."""

    section: Quadratic
    seed: int

    def sizes(self, clients: Int64s) -> Int64s:
        """Return the number of examples, d for every client."""
        return np.full(len(clients), self.section.dimension, np.int64)

    def client(self, client: int) -> tuple[Vector, Vector]:
        """Return the client's examples: x (d, d), y (d,)."""
        basis, centre = drawn(self.section, self.seed, client)
        rows = (basis * np.sqrt(self.section.dimension / 2 * eigenvalues(self.section))) @ basis.T
        return rows, rows @ centre


def eigenvalues(section: Quadratic) -> Vector:
    """Return e, shape (d,).

    >>> eigenvalues(Quadratic(clients=1, dimension=3)).round(9).tolist()
    [0.01, 0.1, 1.0]
    """
    e: Vector = np.geomspace(section.convexity, section.smoothness, section.dimension)
    return e


def drawn(section: Quadratic, seed: int, client: int) -> tuple[Vector, Vector]:
    """Return the client's Q_i (d, d) and c_i (d,)."""
    draws = generator(key(seed, "quadratic/client", client))
    centre = section.spread * draws.standard_normal(section.dimension)
    basis, triangle = np.linalg.qr(draws.standard_normal((section.dimension, section.dimension)))
    # Uniform only with the signs that make the triangle's diagonal positive (Mezzadri 2007).
    return basis * np.where(np.diag(triangle) < 0, -1.0, 1.0), centre


@cache
def optimum(section: Quadratic, seed: int) -> Optimum:
    """Return x* = (sum A_i)^-1 sum A_i c_i, and the mean of A_i; a pass over all clients."""
    e = eigenvalues(section)
    hessian, pulled = np.zeros((section.dimension, section.dimension)), np.zeros(section.dimension)
    for client in range(section.clients):
        basis, centre = drawn(section, seed, client)
        curvature = (basis * e) @ basis.T
        hessian += curvature
        pulled += curvature @ centre
    return Optimum(np.linalg.solve(hessian, pulled).astype(np.float64), hessian / section.clients)


def quadratic_address(section: Quadratic, seed: int) -> dict[str, Any]:
    """Return the facts that determine the dataset's content."""
    return {"name": "quadratic", "version": VERSION, "section": section.model_dump(exclude={"seed"}), "seed": seed}
