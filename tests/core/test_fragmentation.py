"""What would fit now is counted, and every free GPU that nothing can have is told with its reason."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.fragmentation import FreeRoom, StrandedRoom, gangs_that_fit, requests_that_fit

_rooms = st.lists(
    st.builds(FreeRoom, st.just("n"), st.integers(0, 8), st.integers(0, 128_000), st.sampled_from("xyz")), max_size=8
)


def test_gpus_are_stranded_for_gpus_and_for_cpus() -> None:
    rooms = [FreeRoom("a", 7, 128_000), FreeRoom("b", 8, 24_000), FreeRoom("c", 8, 128_000)]
    assert requests_that_fit(rooms, 8, 128_000) == StrandedRoom(1, for_gpus=7, for_cpus=8)
    assert requests_that_fit(rooms, 1, 8_000) == StrandedRoom(7 + 3 + 8, for_gpus=0, for_cpus=5)


def test_a_gang_is_under_one_switch() -> None:
    rooms = [FreeRoom(f"n{number}", 8, 128_000, "x" if number < 16 else "y") for number in range(31)]
    assert gangs_that_fit(rooms, 128, 8, 128_000) == StrandedRoom(1, 0, 0, for_switch=15 * 8)
    assert gangs_that_fit(rooms, 256, 8, 128_000) == StrandedRoom(0, 0, 0, for_switch=31 * 8)


def test_nothing_and_what_makes_no_sense() -> None:
    assert requests_that_fit([], 1, 0) == gangs_that_fit([], 8, 8, 0) == StrandedRoom(0, 0, 0)
    assert requests_that_fit([FreeRoom("a", -3, -1), FreeRoom("b", 2, 0)], 1, 0).fitting == 2
    for gpus, cpus_milli in ((0, 1), (-1, 1), (1, -1)):
        with pytest.raises(ValueError, match="no request"):
            requests_that_fit([], gpus, cpus_milli)
    for gpus, piece in ((12, 8), (8, 0), (0, 8)):
        with pytest.raises(ValueError, match="whole pieces"):
            gangs_that_fit([], gpus, piece, 0)


@settings(max_examples=150, deadline=None)
@given(_rooms, st.integers(1, 8), st.integers(0, 40_000), st.integers(1, 4))
def test_every_free_gpu_is_told_once(rooms: list[FreeRoom], gpus: int, cpus_milli: int, pieces: int) -> None:
    free = sum(room.gpus for room in rooms)
    one, gang = requests_that_fit(rooms, gpus, cpus_milli), gangs_that_fit(rooms, gpus * pieces, gpus, cpus_milli)
    for found, size in ((one, gpus), (gang, gpus * pieces)):
        assert found.fitting * size + found.for_gpus + found.for_cpus + found.for_switch == free
    assert gang.fitting * pieces <= one.fitting
