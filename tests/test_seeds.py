"""Addressed randomness: equal addresses give equal draws, different ones independent draws."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import raysim
from raysim import seeds
from raysim.systems.times import RoundTime


def test_a_key_is_the_same_alone_and_in_an_array() -> None:
    clients = np.array([0, 1, 7, 2**40])
    together = seeds.keys(3, "batches", 5, clients)
    assert together.tolist() == [seeds.key(3, "batches", 5, int(client)) for client in clients]


@pytest.mark.parametrize(
    "other", [(4, "batches", 5, 7), (3, "module", 5, 7), (3, "batches", 6, 7), (3, "batches", 7, 5), (3, "batches", 5)]
)
def test_every_part_of_an_address_counts(other: tuple[int, str, int]) -> None:
    seed, purpose, *address = other
    assert seeds.key(seed, purpose, *address) != seeds.key(3, "batches", 5, 7)


def test_uniforms_are_inside_the_unit_interval() -> None:
    ends = seeds.uniforms(np.array([0, 2**64 - 1], dtype=np.uint64)).tolist()
    assert ends == [2.0**-53, 1 - 2.0**-53]
    middle = seeds.uniforms(seeds.stream(4, 10_000))
    assert abs(middle.mean() - 0.5) < 4 * 0.2887 / 100


def test_a_longer_stream_begins_with_a_shorter_one() -> None:
    assert seeds.stream(9, 100)[:10].tolist() == seeds.stream(9, 10).tolist()


def test_the_stream_is_splitmix64() -> None:
    # The first outputs for state 1234567, as published with the reference implementation (Vigna, splitmix64.c).
    assert seeds.stream(1234567, 3).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_permutations_are_uniform() -> None:
    counts = dict.fromkeys(itertools.permutations(range(4)), 0)
    draws = 24_000
    for key in seeds.stream(1, draws).tolist():
        counts[tuple(seeds.permutation(key, 4).tolist())] += 1
    chi_square = sum((count - draws / 24) ** 2 / (draws / 24) for count in counts.values())
    assert chi_square < 49.73  # the 0.999 quantile with 23 degrees of freedom


def test_many_permutations_at_once_are_the_single_ones() -> None:
    starts, lengths = seeds.keys(0, "p", np.arange(4)), np.array([5, 1, 100, 7])
    together = np.split(seeds.permutations(starts, lengths), np.cumsum(lengths)[:-1])
    for start, length, got in zip(starts, lengths, together, strict=True):
        np.testing.assert_array_equal(got, seeds.permutation(start, length))
    assert not len(seeds.permutations(starts[:0], lengths[:0]))


def test_a_draw_by_its_place_is_that_of_the_stream() -> None:
    starts = seeds.keys(0, "p", np.arange(2))
    drawn = seeds.draws(starts[:, None], np.arange(5))
    assert drawn.tolist() == [seeds.stream(start, 5).tolist() for start in starts]


def test_a_key_can_be_derived_in_two_parts() -> None:
    clients = np.arange(5)
    whole, derived = seeds.keys(3, "p", clients, 7), seeds.derive(seeds.keys(3, "p", clients), 7)
    np.testing.assert_array_equal(whole, derived)


TAKING_A_PURPOSE = {"key": 1, "keys": 1, "ClassPiles": 2, "draw_quantity": 2}
"""The argument of each function that is a purpose, where it is a text."""


def purposes_in_the_code() -> Iterator[tuple[str, str]]:
    """(file, purpose) of each call with a purpose in its text."""
    for path in Path(raysim.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                place = TAKING_A_PURPOSE.get(name, len(node.args))
                for argument in node.args[place : place + 1]:
                    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                        yield path.name, argument.value


def test_the_code_draws_for_the_listed_purposes_only() -> None:
    used = {purpose for _, purpose in purposes_in_the_code()}
    # A model of time draws for its fields, by name.
    of_times = {f"systems.time.{name}" for name in RoundTime.model_fields.keys() - {"name", "server_s"}}
    assert used | of_times == set(seeds.PURPOSES)


def test_a_purpose_is_used_in_one_file_or_for_one_draw() -> None:
    files: dict[str, set[str]] = {}
    for file, purpose in purposes_in_the_code():
        files.setdefault(purpose, set()).add(file)
    # Samplers are alternatives: a run has one.
    assert {purpose for purpose, found in files.items() if len(found) > 1} == {"cohort"}


def test_purposes_do_not_clash() -> None:
    keys = [seeds.key(seed, purpose) for seed in range(20) for purpose in seeds.PURPOSES]
    assert len(set(keys)) == len(keys)
