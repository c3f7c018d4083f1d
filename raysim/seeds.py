"""Addressed randomness: every draw is a function of (seed, purpose, address), never of a global generator.

A *key* is a 64-bit hash of its address; the *stream* of a key is SplitMix64 (Steele, Lea and Flood 2014) started at
the key. Both are a handful of integer operations, so they are the same on every machine and every library version, and
a whole chunk of clients is keyed at once.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from raysim.arrays import Int64s, UInt64s

PURPOSES = MappingProxyType(
    {
        "adversary": "nothing: who attacks; round, client: an attack's noise",
        "augment": "round, client, visit: an example's augmentation",
        "batches": "round, client, epoch: the order of examples",
        "clients": "nothing: which clients of a source are the population",
        "cohort": "round: the cohort; adafl, cyclic, power_of_choice: round, client",
        "cohort/group": "client: its group, of those that take turns",
        "compression": "round, client; under it, tensor: what a client's compressor draws",
        "compression/server": "round; under it, tensor: what the server's compressor draws",
        "cohort/own": "round: what a sampler of a script's or a package's draws",
        "departure": "round, client: whether and when it leaves",
        "digits/test": "class: which examples are test examples",
        "evaluation": "nothing: which clients are scored",
        "evaluation/examples": "nothing: which of their examples are scored",
        "fedex": "round, client: the configuration that it trains by",
        "fill": "round, client, epoch: what fills a last batch",
        "fine-tuning": "nothing: the seed of fine-tuning, whose draws are then addressed as in training",
        "holdout/clients": "nothing: which clients are validation clients",
        "holdout/examples": "client: which of its examples are held out",
        "model": "nothing: initial parameters",
        "module": "round, client: dropout, and what a module draws",
        "objective": "round, client, local step: what an objective draws",
        "partition/dirichlet/client": "client: its distribution of classes",
        "partition/dirichlet/pile": "class: the order of its examples",
        "partition/dirichlet_reassign/client": "client: its distribution of classes",
        "partition/dirichlet_reassign/pile": "class: the order of its examples",
        "partition/iid": "nothing: the order of examples",
        "partition/mix/client": "client: which of its examples go to the pool",
        "partition/mix/pool": "nothing: the order of the pool",
        "partition/pachinko/client": "client: its distribution of classes",
        "partition/pachinko/pile": "class: the order of its examples",
        "partition/quantity/examples": "nothing: the order of examples",
        "partition/quantity/sizes": "nothing: the clients' sizes",
        "partition/shards": "nothing: the order of shards",
        "partition/shuffled": "nothing: the order of examples",
        "phase": "client: when in a day it is available",
        "privacy/client": "round, client: noise that it adds to its update",
        "privacy/count": "round: noise of the number of clients at or below the clip level",
        "privacy/discrete": "round, client: how it rounds, and its discrete noise",
        "privacy/rotation": "round: the rotation of all clients",
        "privacy/sum": "round, or level and index of a node: noise of the sum of updates",
        "quadratic/client": "client: its function",
        "synthetic/client": "client: its model and examples",
        "synthetic/model": "nothing: what the clients share",
        "synthetic/size": "client, 0 or 1: its number of examples",
        "systems.session_s": "-1 or round, client: how long it stays",
        "systems.time.download_bytes_per_s": "-1 or round, client",
        "systems.time.lambda": "round, client: a straggler's delay",
        "systems.time.overhead_s": "-1 or round, client",
        "systems.time.seconds_per_example": "-1 or round, client",
        "systems.time.slowdown": "-1 or round, client",
        "systems.time.upload_bytes_per_s": "-1 or round, client",
        "test/examples": "class: which client gets which test example",
        "test/partition": "nothing: the seed of a partition of test clients",
        "test/priority": "class: which clients come first",
        "transform": "round, client, place in the list: what a transform draws",
        "work": "-1 or round, client: local steps or epochs",
    }
)
"""Every purpose, and what it addresses besides the seed. One is for one draw: tests compare this with the code."""

_MASK = (1 << 64) - 1
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def _mix(z: UInt64s) -> UInt64s:
    """SplitMix64's finaliser: a bijection of the 64-bit integers."""
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))


def _mix_one(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


@lru_cache(maxsize=256)
def _root(seed: int, purpose: str) -> int:
    digest = hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def keys(seed: int, purpose: str, *address: int | Int64s) -> UInt64s:
    """Keys at the given addresses; the parts of an address broadcast against each other.

    Args:
        seed: the experiment's (or the section's) seed.
        purpose: what the draw is for, such as "cohort" or "batches"; different purposes are independent.
        address: integers or int64 arrays: round, client, step, in the order that the purpose fixes.

    Returns:
        uint64 array of the broadcast shape; shape () without an address.
    """
    return derive(np.asarray(_root(seed, purpose), dtype=np.uint64), *address)


def key(seed: int, purpose: str, *address: int) -> int:
    """One key as a Python integer in [0, 2**64): `keys` of plain integers, without NumPy's cost for a single number."""
    value = _root(seed, purpose)
    for part in address:
        value = _mix_one(((value + 0x9E3779B97F4A7C15) & _MASK) ^ _mix_one((part + 0x9E3779B97F4A7C15) & _MASK))
    return value


def derive(start: UInt64s, *address: int | Int64s) -> UInt64s:
    """Keys under existing keys: `derive(keys(seed, purpose, a), b)` is `keys(seed, purpose, a, b)`; parts broadcast."""
    key = start
    with np.errstate(over="ignore"):
        for part in address:
            key = _mix((key + _GOLDEN) ^ _mix(np.asarray(part).astype(np.uint64) + _GOLDEN))
    return key


def stream(start: int | np.uint64, length: int) -> UInt64s:
    """The first `length` 64-bit draws of the key's stream; a longer stream begins with a shorter one."""
    return draws(np.asarray(start, dtype=np.uint64), np.arange(length))


def draws(starts: UInt64s, places: Int64s) -> UInt64s:
    """The draws at these places of the keys' streams, the first of which is 0; keys and places broadcast."""
    with np.errstate(over="ignore"):
        steps = places.astype(np.uint64)
        steps += np.uint64(1)
        steps *= _GOLDEN
        return _mix(starts + steps)


def uniforms(draws: UInt64s) -> npt.NDArray[np.float64]:
    """Draws as numbers between 0 and 1, neither of them included: the middles of 2**52 equal parts."""
    return np.asarray(((draws >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52)


def uniform(start: int) -> float:
    """A number between 0 and 1 at the key, beside those of the key's stream."""
    return ((_mix_one(start) >> 12) + 0.5) * 2.0**-52


def permutation(start: int | np.uint64, length: int) -> Int64s:
    """A uniform permutation of range(length): the order in which the stream's draws rank (a tie has odds 2**-64)."""
    return np.argsort(stream(start, length), kind="stable").astype(np.int64, copy=False)


def permutations(starts: UInt64s, lengths: Int64s) -> Int64s:
    """`permutation(start, length)` for each pair, one behind the other: many short streams are drawn in one go."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    drawn = draws(np.repeat(starts, lengths), np.arange(total) - np.repeat(ends - lengths, lengths))
    pieces = [drawn[a:b].argsort(kind="stable") for a, b in pairwise([0, *ends.tolist()])]
    return np.concatenate(pieces) if pieces else np.zeros(0, np.int64)


def sample(start: int, population: int, size: int) -> Int64s:
    """The first `size` entries of the key's permutation of range(population), without repeats; size <= population.

    A smaller sample is the beginning of a larger one. Cost is O(size), whatever the population: the first swaps of a
    Fisher-Yates shuffle, with the array kept as the dictionary of its moved entries.
    """
    moved: dict[int, int] = {}
    chosen = np.empty(size, dtype=np.int64)
    for place, draw in enumerate(stream(start, size).tolist()):
        # The high word of a 64 x 64 bit product: uniform on range(population - place), except for a bias of
        # population / 2**64.
        other = place + (draw * (population - place) >> 64)
        chosen[place] = moved.get(other, other)
        moved[other] = moved.get(place, place)
    return chosen


def generator(start: int) -> np.random.Generator:
    """A NumPy generator (Philox) at the key, for distributions that NumPy draws better than we would."""
    return np.random.Generator(np.random.Philox(key=start))
