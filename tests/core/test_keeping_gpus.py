"""Whether the training of an elastic job keeps the GPUs that it began with."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from app.core.keeping_gpus import FOLLOWED_BY_MS, SAVED_BY_MS, SILENT_MS, SPOKEN_BY_MS, KeepsGpus, WatchedRun, kept
from app.core.resizing import GpusHeld, GpusTold, is_settled

HELD = GpusHeld((0, 1, 2, 3), 4)
SILENT = WatchedRun("run_a", "job_a", HELD, None, running_ms=0, has_stepped=True, wanted_ms=0)


def test_code_that_follows_says_so_before_its_first_step() -> None:
    """Where no step is told either, it may still be loading."""
    assert [kept(SILENT, now_ms) for now_ms in (SPOKEN_BY_MS - 1, SPOKEN_BY_MS)] == [None, KeepsGpus.SILENT]
    loading = replace(SILENT, has_stepped=False)
    assert [kept(loading, now_ms) for now_ms in (SILENT_MS - 1, SILENT_MS)] == [None, KeepsGpus.SILENT]


def test_what_is_not_left_or_begun_on_in_time_is_kept() -> None:
    asked = replace(SILENT, held=GpusHeld((0, 1, 2, 3), 3), told=GpusTold((0, 1, 2, 3)), wanted_ms=50)
    assert [kept(asked, 50 + past) for past in (FOLLOWED_BY_MS - 1, FOLLOWED_BY_MS)] == [None, KeepsGpus.NOT_LEFT]
    more = replace(asked, held=HELD, told=GpusTold((0, 1)))
    assert kept(more, 50 + FOLLOWED_BY_MS) is KeepsGpus.NOT_USED


def test_code_that_changes_them_after_its_next_save_has_hours_to_save() -> None:
    for held, used in (((0, 1, 2, 3), (0, 1, 2, 3)), ((0, 1, 2, 3), (0,))):
        waits = replace(SILENT, held=GpusHeld(held, 3), told=GpusTold(used, after_save=True))
        assert [kept(waits, past) is None for past in (SAVED_BY_MS - 1, SAVED_BY_MS)] == [True, False]


indices = st.lists(st.integers(0, 5), unique=True, min_size=1)


@given(indices, st.integers(1, 6), indices, indices, st.integers(0, 10 * FOLLOWED_BY_MS))
def test_whoever_uses_just_what_it_is_to_use_follows(
    held: list[int], wanted: int, used: list[int], leaving: list[int], now_ms: int
) -> None:
    """However long ago that was asked; and only what is held beyond the wish can be left."""
    holds = GpusHeld(tuple(held), min(wanted, len(held)))
    run = replace(SILENT, held=holds, told=GpusTold(tuple(used), tuple(leaving)))
    found = kept(run, now_ms)
    if is_settled(holds, GpusTold(tuple(used), tuple(leaving))):
        assert found is None
    if found is KeepsGpus.NOT_LEFT:
        assert holds.wanted < len(holds.indices)
