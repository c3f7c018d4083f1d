"""Defines the functions that scripts and commands call, a file for each task. `raysim` re-exports the names."""
