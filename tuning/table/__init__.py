"""Keeps a grid of configurations as a table: tuners are compared on it without training.

Source: FedHPO-B (Wang et al. 2022), whose tabular mode answers a tuner from recorded runs.
"""
