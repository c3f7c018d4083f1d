"""What a command's exit code says, beside 0: it did what was asked."""

from __future__ import annotations

FAILED = 1
"""Something broke."""

MISUSED = 2
"""What was asked for cannot be done."""

INTERRUPTED = 130
"""Ctrl-C, as shells count signals: 128 and SIGINT's number."""
