"""Places without eviction, by the paper's three criteria; and what is reserved for whom."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from app.core.eviction import DecayedCount, NodeRoom, Reservation, free_for, place_beside, still_reserved
from app.core.eviction.placing import HALF_LIFE_MS

counts = st.integers(0, 20)


def _found(rooms: list[NodeRoom], spot: bool, gpus: int = 2) -> str | None:
    found = place_beside((gpus,), spot, rooms, 0)
    return found and found.node_id


def test_packing_comes_before_company_and_that_before_evictions() -> None:
    """Each criterion breaks the ties of the one before: with packing first, nodes of spot jobs alone matter only among
    nodes that would be left with as much idle."""
    tight = NodeRoom("tight", (2,), 3, DecayedCount(9.0))
    alone = NodeRoom("alone", (4,), 0, DecayedCount(9.0))
    calm = NodeRoom("calm", (4,), 0, DecayedCount(1.0))
    busy = NodeRoom("busy", (4,), 1, DecayedCount(5.0))
    assert _found([calm, tight], spot=True) == "tight"
    assert _found([busy, alone, calm], spot=True) == "calm"
    assert _found([alone, calm, busy], spot=False) == "busy"
    assert _found([calm, alone], spot=False) == "alone"
    assert _found([calm, replace(calm, node_id="a")], spot=True) == "a"
    assert _found([], spot=True) is None
    assert _found([tight], spot=True, gpus=3) is None


@given(st.lists(st.tuples(st.integers(0, 8), counts, counts), max_size=8), st.booleans(), st.integers(1, 8))
def test_whatever_fits_is_found_and_is_the_tightest(nodes: list[tuple[int, int, int]], spot: bool, gpus: int) -> None:
    """A place is found exactly where one is, and no other would have been left with less."""
    rooms = [NodeRoom(f"n{n}", (free,), jobs, DecayedCount(past)) for n, (free, jobs, past) in enumerate(nodes)]
    found = place_beside((gpus,), spot, rooms, 0)
    fitting = [one.free[0] for one in rooms if one.free[0] >= gpus]
    assert (None if found is None else found.free[0]) == (min(fitting) if fitting else None)


def test_evictions_are_forgotten_by_half_lives() -> None:
    """Eight evictions long ago weigh less than two of now, which the paper's count without a window turns round."""
    old = DecayedCount(8.0, 0)
    now_ms = 3 * HALF_LIFE_MS
    assert old.at(now_ms) == 1.0
    recent = DecayedCount(0.0, 0).one_more(now_ms).one_more(now_ms)
    rooms = [NodeRoom("old", (8,), 0, old), NodeRoom("recent", (8,), 0, recent)]
    found = place_beside((1,), True, rooms, now_ms)
    assert found is not None
    assert found.node_id == "old"
    assert old.value > recent.value
    assert old.at(-5) == 8.0


def test_what_was_freed_is_for_whom_it_was_freed_until_it_expires() -> None:
    """Others see nothing of it, the one it is for all of it; an instant later it is anybody's."""
    held = [Reservation("g", "n1", (3,), 100), Reservation("h", "n1", (9,), 50), Reservation("g", "n2", (1,), 100)]
    assert free_for("g", "n1", (8,), held, 99) == (8,)
    assert free_for("other", "n1", (8,), held, 99) == (5,)
    assert free_for("other", "n1", (8,), held, 49) == (0,)
    assert free_for("other", "n1", (8,), held, 100) == (8,)
    assert still_reserved(held, 50) == [held[0], held[2]]
    assert still_reserved(held, 0, started="g") == [held[1]]


@given(st.integers(0, 2**32))
def test_no_two_jobs_take_turns_in_evicting_each_other(seed: int) -> None:
    """Whatever asks in whatever order, what is reserved for one job goes to no other before it expires."""
    chance = Random(seed)
    held = [Reservation(chance.choice("ab"), "n1", (chance.randrange(9),), chance.randrange(100)) for _ in range(4)]
    now_ms = chance.randrange(100)
    seen = {job: free_for(job, "n1", (8,), held, now_ms)[0] for job in "abc"}
    living = {job: sum(one.amounts[0] for one in held if one.job_id == job and now_ms < one.until_ms) for job in "ab"}
    assert seen["c"] == max(0, 8 - sum(living.values()))
    assert seen["a"] == max(0, 8 - living["b"])
