"""Encodes texts by a tokeniser in a process of its own: a stranger's patterns may take for ever on ordinary texts.

It is run as a script, and imports nothing of raysim, so that it starts at once. Its standard input has lines of JSON:
first the tokeniser as the package tokenizers writes it, whether marks that a text has are split like its words, whether
the marks around a text count, and how many tokens of a text are kept; then texts, with the seconds of a processor that
they may take. It writes a line for each: with the key "ready" for the tokeniser, with their tokens for texts, and with
the key "error" for what failed.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any


def main() -> None:
    """Answer until the input ends."""
    _limit(resource.RLIMIT_CORE, 0)
    told = json.loads(sys.stdin.buffer.readline())
    try:
        tokenizer = _tokenizer(told)
    except BaseException as error:
        _send(_failure(error))
        return
    _send({"ready": True})
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        _limit(resource.RLIMIT_CPU, int(time.process_time()) + asked["cpu_s"])
        _send(_answer(tokenizer, asked["texts"], told["marks"], told["most"]))


def _tokenizer(told: dict[str, Any]) -> Any:
    from tokenizers import Tokenizer  # optional

    tokenizer: Any = Tokenizer.from_str(told["tokenizer"])
    if told["splits_marks"]:
        tokenizer.encode_special_tokens = True
    return tokenizer


def _answer(tokenizer: Any, texts: list[str], marks: bool, most: int) -> dict[str, Any]:
    try:
        return {"tokens": [each.ids[:most] for each in tokenizer.encode_batch(texts, add_special_tokens=marks)]}
    except BaseException as error:
        # What the library's own language calls a panic is no `Exception`.
        return _failure(error)


def _failure(error: BaseException) -> dict[str, Any]:
    return {"error": str(error) or type(error).__name__}


def _send(answer: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
    sys.stdout.buffer.flush()


def _limit(kind: int, value: int) -> None:
    """Set a limit of this process, below the one that it was started with."""
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


if __name__ == "__main__":
    main()
