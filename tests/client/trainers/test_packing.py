"""Texts are packed up to the last of their places that counts, and each row knows the one before it."""

from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from raysim.client.trainers.packing import pack

COUNTS = st.integers(1, 6).flatmap(
    lambda places: st.lists(st.lists(st.booleans(), min_size=places, max_size=places), min_size=1, max_size=7)
)


@given(COUNTS)
def test_rows_are_the_places_that_an_lstm_goes_through(counts: list[list[bool]]) -> None:
    length = len(counts[0])
    lengths = [max((place + 1 for place in range(length) if text[place]), default=0) for text in counts]
    packing = pack(torch.tensor(counts))
    rows = [divmod(place, length) for place in packing.places.tolist()]
    assert sorted(rows) == [(text, place) for text, end in enumerate(lengths) for place in range(end)]
    assert [place for _, place in rows] == sorted(place for _, place in rows)
    assert list(packing.reaching) == [sum(end > place for end in lengths) for place in range(max(lengths))]
    # The first rows of states are those before all places, in the order of the first place.
    first = packing.reaching[0] if packing.reaching else 0
    for (text, place), before in zip(rows, packing.before.tolist(), strict=True):
        if place == 0:
            assert rows[before] == (text, 0)
        else:
            assert rows[before - first] == (text, place - 1)
    # What the passes rely on: the texts of a place are the first ones of the place before.
    texts = [[text for text, at in rows if at == place] for place in range(max(lengths))]
    assert all(later == earlier[: len(later)] for earlier, later in pairwise(texts))
