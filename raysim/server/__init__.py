"""Carries out the server's side of a round. User-defined server optimizers import their interface from here."""

from raysim.models.layout import Layout
from raysim.server.optimizers.optimizer import Descent, ServerOptimizer, Stepped, path
from raysim.server.optimizers.step_check import Own

__all__ = ["Descent", "Layout", "Own", "ServerOptimizer", "Stepped", "path"]
