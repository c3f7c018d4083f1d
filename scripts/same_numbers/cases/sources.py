"""Lists the cases of data sources and partitions."""

from __future__ import annotations

from typing import Any

from .case import Case


def of_sources() -> dict[str, Case]:
    """Sources read the small files that the tests make of each; digits come with scikit-learn."""
    partitions: dict[str, dict[str, Any]] = {
        "iid": {"name": "iid"},
        "shards": {"name": "shards", "shards": 24},
        "dirichlet": {"name": "dirichlet", "alpha": 0.3},
        "dirichlet empirical": {"name": "dirichlet", "alpha": 0.3, "prior": "empirical"},
        "dirichlet_reassign": {"name": "dirichlet_reassign", "alpha": 0.3},
        "dirichlet_reassign uniform": {"name": "dirichlet_reassign", "alpha": 0.3, "prior": "uniform"},
        "dirichlet_reassign remaining": {"name": "dirichlet_reassign", "alpha": 0.01, "fill": "remaining"},
        "quantity": {"name": "quantity", "sigma": 0.7},
        "shuffled": {"name": "shuffled", "sizes_of": {"name": "dirichlet", "alpha": 0.3}},
    }
    few = {"rounds": 2, "client.max_local_steps": 2}
    made = {
        f"partition {name}": Case({"data": {"name": "digits", "clients": 12, "partition": partition}, **few}, None)
        for name, partition in partitions.items()
    }
    cut = {"clients": 4, "test_clients": "pooled"}
    char = {"model": {"name": "lstm_char", "embedding": 4, "hidden": 6, "layers": 1}}
    word = {"model": {"name": "lstm_word", "embedding": 4, "hidden": 6}}
    text = {"model": {"name": "bilstm", "embedding": 4, "hidden": 6}}
    words = {"name": "words", "vocabulary": 30, "length": 6}
    table = {"name": "arrow", "root": ".", "train": "train.parquet", "test": "test.parquet"}
    named = {
        "validation": "validation.parquet",
        "client": "who",
        "x": ["a", "b"],
        "y": "label",
        "classes": 5,
        "scale": 0.5,
    }
    sources: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "quadratic": (
            {
                "name": "quadratic",
                "clients": 8,
                "dimension": 3,
                "smoothness": 2.0,
                "convexity": 0.1,
                "spread": 0.5,
                "holdout": 0.25,
                "seed": 2,
            },
            {"model": {"name": "linear", "bias": False}, "client.local_steps": 3},
        ),
        "digits": ({"name": "digits", "clients": 12, "holdout": 0.25, "mix": 0.3, "seed": 4, **_dirichlet()}, {}),
        "digits examples": ({"name": "digits", "clients": 12, "holdout_examples": 0.2}, {}),
        "synthetic": (
            {"name": "synthetic", "clients": 9, "alpha": 0.5, "beta": 0.5, "max_examples": 60, "seed": 2},
            {},
        ),
        "synthetic iid": ({"name": "synthetic", "clients": 9, "iid": True, "sizes": 12, "holdout": 0.3}, {}),
        "synthetic examples": ({"name": "synthetic", "clients": 9, "sizes": 12, "holdout_examples": 0.3}, {}),
        "mnist": ({"name": "mnist", "test_clients": "partition", "clients": 6}, {}),
        "fashion_mnist": ({"name": "fashion_mnist", **cut}, {}),
        "emnist": ({"name": "emnist", "min_examples": 2, "max_examples": 5, "holdout": 0.25, "seed": 4}, {}),
        "emnist digits": ({"name": "emnist", "digits": True, "holdout_examples": 0.3}, {}),
        "emnist natural": ({"name": "emnist", "clients": 3, "partition": {"name": "natural"}}, {"cohort.size": 2}),
        "emnist dealt": (
            {"name": "emnist", "clients": 5, "partition": {"name": "iid"}, "mix": 0.5, "test_clients": "partition"},
            {},
        ),
        "emnist shuffled": (
            {
                "name": "emnist",
                "partition": {"name": "shuffled", "sizes_of": {"name": "natural"}},
                "test_clients": "pooled",
            },
            {},
        ),
        "emnist_idx": ({"name": "emnist_idx", "root": "idx/emnist", "split": "letters", **cut}, {}),
        "cifar10": ({"name": "cifar10", "crop": 24, "standardise": True, **cut}, {}),
        "cifar10 plain": ({"name": "cifar10", **cut}, {}),
        "cifar100 pachinko": (
            {"name": "cifar100", "clients": 4, "partition": {"name": "pachinko", "alpha": 0.5, "beta": 5.0}},
            {},
        ),
        "cifar100": ({"name": "cifar100", "labels": "coarse", "crop": 8, "standardise": True, "clients": 6}, {}),
        "cifar100 test clients": (
            {"name": "cifar100", "clients": 4, "partition": {"name": "pachinko"}, "test_clients": 5},
            {},
        ),
        "fed_cifar100": ({"name": "fed_cifar100", "crop": 24, "standardise": True}, {}),
        "fed_cifar100 coarse": ({"name": "fed_cifar100", "labels": "coarse", "mix": 0.5}, {}),
        "shakespeare": ({"name": "shakespeare", "form": "mcmahan", "min_lines": 3, "length": 9}, char),
        "shakespeare window": ({"name": "shakespeare", "example": "window", "min_lines": 3, "length": 9}, char),
        "shakespeare tff": ({"name": "shakespeare", "form": "tff", "length": 9}, char),
        "stackoverflow": ({"name": "stackoverflow", "vocabulary": 12, "length": 5}, word),
        "ag_news": ({"name": "ag_news", "tokens": words, "clients": 6}, text),
        "newsgroups": ({"name": "newsgroups", "headers": False, "quotes": False, "tokens": words, "clients": 6}, text),
        "newsgroups headers": ({"name": "newsgroups", "tokens": words, "clients": 6}, text),
        "leaf": ({"name": "leaf", "root": "leaf", "classes": 3}, {}),
        "gld": ({"name": "gld", "size": 8}, {}),
        "instructions": (
            {"name": "instructions", "tokenizer": "language", "length": 10, "test_users": 0.4},
            {"model": {"name": "causal_lm", "path": "language", "recompute": True}},
        ),
        "instructions by file": (
            {
                "name": "instructions",
                "root": "questions",
                "tokenizer": "language",
                "length": 10,
                "end": "say",
                "train": "a.jsonl",
                "validation": "b.jsonl",
                "test": "b.jsonl",
                "user": "who",
                "prompt": "question",
                "answer": "reply",
            },
            {"model": {"name": "causal_lm", "path": "language", "dtype": "bfloat16"}, "client.accumulate": 2},
        ),
        "arrow": ({**table, "shape": [2, 3]}, {}),
        "arrow named": ({**table, **named}, {}),
    }
    settings = {"rounds": 2, "client.max_local_steps": 2, "cohort.size": 3}
    return made | {
        f"source {name}": Case({"data": data, **settings, **more}, None) for name, (data, more) in sources.items()
    }


def _dirichlet() -> dict[str, Any]:
    return {"partition": {"name": "dirichlet", "alpha": 1.0}}
