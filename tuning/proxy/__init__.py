"""Tries the configurations of a study on other data: how well one predicts the other.

Source: Kuo et al. (2023) tune on public proxy data, and measure what the choice loses on the clients' data.
"""
