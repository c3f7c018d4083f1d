"""Builds the documentation's site: reference pages from code, and the pages of docs/."""
