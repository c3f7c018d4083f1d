"""Defines the command line: a file per group of commands."""

from raysim.cli.app import app, main

__all__ = ["app", "main"]
