"""Converts texts to rows of numbers; a source's `tokens` key chooses the way."""
