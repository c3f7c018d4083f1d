"""What scripts and commands call: a file for each thing that can be asked for. `raysim` re-exports the names."""
