"""Tuning of federated experiments on held-out clients. Uses the public names of raysim only."""
