"""The command line: a file per command."""

from raysim.cli.app import app, main

__all__ = ["app", "main"]
