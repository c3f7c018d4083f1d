"""The server's side of a round. What a server optimizer of one's own is written with stands here."""

from raysim.models.layout import Layout
from raysim.server.optimizers.optimizer import Descent, ServerOptimizer, Stepped, path
from raysim.server.optimizers.own import Own

__all__ = ["Descent", "Layout", "Own", "ServerOptimizer", "Stepped", "path"]
