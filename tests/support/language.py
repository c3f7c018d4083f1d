"""A small language model with fresh weights, its tokeniser, and instructions for it, as files of the usual form."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import torch

WORDS = ("<unk>", "</s>", "what", "is", "the", "sum", "of", "one", "two", "three", "four", "and", "say")
USERS = ("ann", "bob", "cyd", "dan", "eve")


def write_model(folder: Path, words: int = len(WORDS), places: int = 32) -> Path:
    """Write a Llama of two layers, its weights drawn with seed 0, and its tokeniser."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=words,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=places,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(folder)
    return write_tokenizer(folder)


def write_tokenizer(folder: Path, words: Iterable[str] = WORDS) -> Path:
    """Write a tokeniser of whole words, whose end is "</s>"."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "</s>"}}))
    return folder


def write_lines(
    file: Path, users: Iterable[str] = USERS, each: int = 3, keys: tuple[str, str, str] = ("user", "prompt", "answer")
) -> Path:
    """Write lines of the users in turn: sums of two numbers, and names."""
    numbers, lines = ("one", "two", "three", "four"), []
    for index in range(each):
        for place, user in enumerate(users):
            first, second = numbers[place % 4], numbers[(place + index) % 4]
            prompt = f"what is the sum of {first} and {second}" if index % 2 == 0 else f"say {first}"
            answer = f"{first} and {second}" if index % 2 == 0 else first
            lines.append(dict(zip(keys, (user, prompt, answer), strict=True)))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file
