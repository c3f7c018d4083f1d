"""Encodes texts by a tokeniser that may come from elsewhere, within bounds of memory and of time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BufferedReader, BufferedWriter
from typing import Any, cast

from raysim.data.tokens import encoder_process
from raysim.data.tokens.growth import TextGrowth
from raysim.errors import DataError

Encode = Callable[[Sequence[str]], Iterator[list[int]]]
"""Yields the tokens of each text."""

CPU_S = 60
"""Seconds of a processor that any texts may take."""

LETTERS_A_SECOND = 10_000
"""Further seconds are for so many letters each: tokenisers of published models take some hundred times as many."""


@contextmanager
def encoding(tokenizer: Any, growth: TextGrowth, most: int, marks: bool = False) -> Iterator[Encode]:
    """Start a process that encodes; yields the function that asks it.

    The function raises ValueError where the tokeniser cannot encode a text, a text may become too long, or texts take
    too long.

    Args:
        tokenizer: of the package tokenizers, with its padding and truncation.
        growth: of texts, by the tokeniser.
        most: tokens of a text that are kept.
        marks: whether the tokens that it puts around a text count.

    Raises:
        DataError: the process does not start; says why.
    """
    process = subprocess.Popen(
        [sys.executable, "-P", encoder_process.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        # Ctrl-C is for this process, which then ends that one.
        process_group=0,
    )
    asked, answered = cast(BufferedWriter, process.stdin), cast(BufferedReader, process.stdout)

    def ask(question: dict[str, Any]) -> dict[str, Any] | None:
        """Return the answer; None if the process has ended."""
        try:
            asked.write(json.dumps(question).encode() + b"\n")
            asked.flush()
            line = answered.readline()
        except BrokenPipeError:
            return None
        return cast(dict[str, Any], json.loads(line)) if line.endswith(b"\n") else None

    def encode(texts: Sequence[str]) -> Iterator[list[int]]:
        for group in growth.groups(texts):
            cpu_s = CPU_S + sum(map(len, group)) // LETTERS_A_SECOND
            answer = ask({"texts": group, "cpu_s": cpu_s})
            if answer is None:
                raise ValueError(_end(process.wait(), len(group), cpu_s))
            if "error" in answer:
                raise ValueError(answer["error"])
            yield from answer["tokens"]

    try:
        started = ask(
            {
                "tokenizer": tokenizer.to_str(),
                # The package does not write it with the tokeniser, and older versions do not have it.
                "splits_marks": getattr(tokenizer, "encode_special_tokens", False),
                "marks": marks,
                "most": most,
            }
        )
        why = f"it ended with {_code(process.wait())}" if started is None else started.get("error")
        if why is not None:
            raise DataError(f"The process that encodes texts did not start: {why}")
        yield encode
    finally:
        process.kill()
        answered.close()
        # What it has not read is dropped.
        with suppress(BrokenPipeError):
            asked.close()
        process.wait()


def _end(code: int, texts: int, cpu_s: int) -> str:
    if code == -signal.SIGXCPU:
        return f"it worked on {texts:,} of the texts for {cpu_s:,} s of a processor without an end"
    return f"it crashed on a text ({_code(code)})"


def _code(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
