"""Defines the optimum of a dataset: the model with the least loss over all training clients, in closed form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Optimum:
    """The optimum x* of the mean F of quadratic functions of a model x.

    Attributes:
        point: x*, shape (P,).
        hessian: of F, shape (P, P).
    """

    point: Vector
    hessian: Vector

    def distance(self, x: Vector) -> float:
        """Return |x - x*|.

        >>> Optimum(np.array([1.0, 2.0]), np.eye(2)).distance(np.array([4.0, 6.0]))
        5.0
        """
        return float(np.linalg.norm(x - self.point))

    def excess(self, x: Vector) -> float:
        """Return F(x) - F(x*), without the cancellation of a difference.

        >>> Optimum(np.array([1.0, 2.0]), 2 * np.eye(2)).excess(np.array([4.0, 6.0]))
        25.0
        """
        away = x - self.point
        return float(away @ self.hessian @ away) / 2
