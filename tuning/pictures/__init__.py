"""The pictures of a study, a file each."""

from tuning.pictures.draw_all import draw_all

__all__ = ["draw_all"]
