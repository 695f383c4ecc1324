"""Ids: their shape, their order, and what is taken for one."""

from __future__ import annotations

from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from app.core.model.ids import ENTROPY_BITS, Prefix, is_id, make_id

prefixes = st.sampled_from(get_args(Prefix))
times = st.integers(0, 2**50 - 1)
chances = st.integers(0, 2**80)


@given(prefixes, times, chances)
def test_an_id_has_its_own_prefix_only(prefix: Prefix, time_ms: int, entropy: int) -> None:
    """What is made under a prefix is an id of that kind and of no other."""
    made = make_id(prefix, time_ms, entropy)
    assert len(made) == len(prefix) + 21
    assert [kind for kind in get_args(Prefix) if is_id(made, kind)] == [prefix]


@given(prefixes, times, times, chances, chances)
def test_ids_sort_by_time(prefix: Prefix, one: int, other: int, chance: int, another: int) -> None:
    """Of two ids of a kind the one made earlier sorts first, whatever their chance parts."""
    first, second = make_id(prefix, one, chance), make_id(prefix, other, another)
    if one != other:
        assert (first < second) == (one < other)


@given(times, chances, chances)
def test_chance_tells_ids_of_one_moment_apart(time_ms: int, one: int, other: int) -> None:
    """Two ids of one millisecond are equal only when the lowest 50 bits of chance are."""
    same = one % 2**ENTROPY_BITS == other % 2**ENTROPY_BITS
    assert (make_id("job", time_ms, one) == make_id("job", time_ms, other)) == same


def test_what_is_no_id() -> None:
    """Wrong length, wrong letters (I, L, O, U), lower case and stray space are refused."""
    good = make_id("job", 1_800_000_000_000, 7)
    assert is_id(good, "job")
    bad = [good[:-1], good + "0", good.lower(), good[:-1] + "U", good[:-1] + "I", " " + good, good + "\n", "job_", ""]
    assert not [text for text in bad if is_id(text, "job")]
