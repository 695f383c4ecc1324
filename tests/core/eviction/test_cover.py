"""The cover of a node: exact, feasible whenever anything is, and shrinking before ending."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.eviction import cover as covers_module
from app.core.eviction.cover import GiveUp, cheapest_cover
from tests.core.eviction.makers import cheapest_subset

vectors = st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 9))


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(vectors, st.integers(0, 99)), max_size=7), vectors)
def test_the_cover_equals_trying_every_set(jobs: list[tuple[tuple[int, ...], int]], missing: tuple[int, ...]) -> None:
    """Of vectors with two kinds of GPU and memory: the same cost, and none exactly where there is none."""
    options = {f"j{number}": job for number, job in enumerate(jobs)}
    found = cheapest_cover((GiveUp(name, frees, cost) for name, (frees, cost) in options.items()), missing)
    assert (None if found is None else found.cost_gpu_us) == cheapest_subset(options, missing)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(vectors, st.integers(0, 99)), min_size=1, max_size=9), st.data())
def test_a_full_table_still_finds_some_cover(jobs: list[tuple[tuple[int, ...], int]], data: st.DataObject) -> None:
    """With room for three states only, whatever could be covered is covered, though maybe not at the least cost."""
    options = {f"j{number}": job for number, job in enumerate(jobs)}
    missing = data.draw(vectors)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(covers_module, "MOST_STATES", 3)
        found = cheapest_cover((GiveUp(name, frees, cost) for name, (frees, cost) in options.items()), missing)
    best = cheapest_subset(options, missing)
    assert (found is None) == (best is None)
    if found is not None and best is not None:
        assert found.cost_gpu_us >= best
        assert all(sum(one.frees[place] for one in found.options) >= missing[place] for place in range(3))


def test_nobody_ends_where_shrinking_is_enough() -> None:
    """Two jobs shrink at a high cost rather than one ending for next to nothing; ending frees what shrinking cannot."""
    options = [GiveUp("a", (2,), 900, 0), GiveUp("a", (4,), 1), GiveUp("b", (2,), 900, 0), GiveUp("b", (4,), 1)]
    shrunk = cheapest_cover(options, (4,))
    assert shrunk is not None
    assert [one.shrink for one in shrunk.options] == [0, 0]
    both = cheapest_cover(options, (8,))
    assert both is not None
    assert [one.shrink for one in both.options] == [None, None]


def test_a_job_gives_once() -> None:
    """Its ways to give are alternatives: they are never added up."""
    options = [GiveUp("a", (2,), 1, 0), GiveUp("a", (3,), 2, 1), GiveUp("a", (4,), 5)]
    assert cheapest_cover(options, (5,)) is None


@pytest.mark.parametrize(("frees", "cost"), [((-1,), 1), ((1,), -1)])
def test_less_than_nothing_is_refused(frees: tuple[int], cost: int) -> None:
    """A job that takes GPUs by ending, or pays for it, is a mistake of the caller, one among many good ones too."""
    with pytest.raises(ValueError, match="below zero"):
        cheapest_cover([GiveUp("fine", (1,), 1), GiveUp("wrong", frees, cost)], (1,))


def test_nothing_missing_costs_nothing() -> None:
    """Nobody ends for what is there already, even if it would be free of charge; huge numbers are no trouble."""
    found = cheapest_cover([GiveUp("a", (8,), 0)], (0,))
    assert found is not None
    assert found.options == ()
    huge = cheapest_cover([GiveUp("a", (10**18,), 10**30), GiveUp("b", (10**18,), 10**30 + 1)], (10**18,))
    assert huge is not None
    assert huge.job_ids == ("a",)
