"""The server's side of a round. What a server optimizer of one's own is written with stands here."""

from raysim.layout import Layout
from raysim.server.optimizer import Descent, ServerOptimizer, Stepped
from raysim.server.own import Own

__all__ = ["Descent", "Layout", "Own", "ServerOptimizer", "Stepped"]
