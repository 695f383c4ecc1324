"""Which GPUs of a machine a training has, while their number changes: whose they are at every moment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.resizing import GpusHeld, GpusTold, after_told, in_words, kept_as_told, resized

NODE = 8


def told(*used: int, leaving: tuple[int, ...] = (), refused: tuple[int, ...] = ()) -> GpusTold:
    return GpusTold(used, leaving, refused)


@pytest.mark.parametrize(
    ("held", "wanted", "others", "then"),
    [
        (GpusHeld((0, 1), 2), 4, (), GpusHeld((0, 1, 2, 3), 4)),
        (GpusHeld((0, 1), 2), 4, (2, 5), GpusHeld((0, 1, 3, 4), 4)),
        (GpusHeld((6, 2), 2), 3, (0, 1), GpusHeld((6, 2, 3), 3)),
        (GpusHeld((0, 1, 2), 3), 1, (), GpusHeld((0, 1, 2), 1)),
        (GpusHeld((0, 1, 2), 1), 2, (3, 4, 5, 6, 7), GpusHeld((0, 1, 2), 2)),
        (GpusHeld((0, 1, 2), 1), 4, (3,), GpusHeld((0, 1, 2, 4), 4)),
        (GpusHeld((0,), 1), 2, (1, 2, 3, 4, 5, 6, 7), None),
        (GpusHeld((0,), 1), 9, (), None),
    ],
    ids=["more", "past others", "in order", "fewer", "back", "back and more", "no room", "more than there are"],
)
def test_what_is_held_once_another_number_is_wanted(
    held: GpusHeld, wanted: int, others: tuple[int, ...], then: GpusHeld | None
) -> None:
    """More at once; fewer when they were left; what is being left is taken back before anything else."""
    assert resized(held, wanted, NODE, others) == then


@pytest.mark.parametrize(
    ("held", "said", "then"),
    [
        (GpusHeld((0, 1, 2), 2), told(0, 1, 2), GpusHeld((0, 1, 2), 2)),
        (GpusHeld((0, 1, 2), 2), told(0, 1, leaving=(2,)), GpusHeld((0, 1, 2), 2)),
        (GpusHeld((0, 1, 2), 2), told(0, 1), GpusHeld((0, 1), 2)),
        (GpusHeld((0, 1, 2), 3), told(0), GpusHeld((0, 1, 2), 3)),
        (GpusHeld((0, 1, 2), 3), told(0, 1, refused=(2,)), GpusHeld((0, 1), 2)),
        (GpusHeld((0, 1, 2), 3), told(0, 1, 2, refused=(2,)), GpusHeld((0, 1, 2), 3)),
        (GpusHeld((0, 1), 2), told(refused=(0, 1)), GpusHeld((0,), 1)),
        (GpusHeld((0, 1), 2), told(5, 6, leaving=(7,), refused=(4,)), GpusHeld((0, 1), 2)),
        (GpusHeld((0, 1, 2), 1), told(), GpusHeld((0,), 1)),
    ],
    ids=[
        "still used",
        "leaving",
        "left",
        "not begun",
        "refused",
        "used after all",
        "never the first",
        "others'",
        "none",
    ],
)
def test_what_is_held_once_the_training_has_said_what_it_uses(held: GpusHeld, said: GpusTold, then: GpusHeld) -> None:
    """Whatever it says, it is given nothing by that, and loses nothing that it is to use and can."""
    assert after_told(held, said) == then


indices = st.lists(st.integers(0, NODE - 1), unique=True, max_size=NODE).map(tuple)
steps = st.lists(
    st.tuples(st.integers(0, 2), st.one_of(st.integers(1, NODE + 1), st.builds(GpusTold, indices, indices, indices))),
    max_size=30,
)


@given(steps)
def test_no_gpu_is_ever_two_runs(history: list[tuple[int, int | GpusTold]]) -> None:
    """Three runs on a machine, resized in any order, by trainings that say anything: what a run is to use is its own,
    the first of it never changes, and what it says it uses or leaves is given to nobody before it says otherwise."""
    runs = [GpusHeld((0,), 1), GpusHeld((3, 1), 2), GpusHeld((7,), 1)]
    first = [one.indices[0] for one in runs]
    for which, what in history:
        before = runs[which]
        others = {index for other, run in enumerate(runs) for index in run.indices if other != which}
        if isinstance(what, int):
            runs[which] = resized(before, what, NODE, others) or before
            assert set(before.indices) <= set(runs[which].indices)
        else:
            runs[which] = after_told(before, what)
            assert set(runs[which].indices) <= set(before.indices)
            assert {*what.used, *what.leaving} & set(before.indices) <= set(runs[which].indices)
        held = [index for run in runs for index in run.indices]
        assert len(set(held)) == len(held)
        assert [one.indices[0] for one in runs] == first
        assert all(1 <= one.wanted <= len(one.indices) and max(one.indices) < NODE for one in runs)


@given(indices.filter(bool), st.data())
def test_a_training_that_does_what_it_is_told_ends_with_just_that(held: tuple[int, ...], data: st.DataObject) -> None:
    """It says so once it uses what it is to use, and nothing else: all the rest is free then, and saying it again
    changes nothing."""
    wanted = data.draw(st.integers(1, NODE))
    asked = resized(GpusHeld(held, len(held)), wanted, NODE, ())
    assert asked is not None
    settled = after_told(asked, GpusTold(asked.in_use))
    assert (settled.indices, settled.wanted) == (asked.in_use, wanted)
    assert after_told(settled, GpusTold(settled.in_use)) == settled


def test_they_are_told_by_their_numbers() -> None:
    assert in_words((3,)) == "1 GPU (3)"
    assert in_words((2, 0, 1)) == "3 GPUs (0, 1, 2)"


@given(st.lists(st.integers(0, 9), max_size=9), st.lists(st.integers(0, 9), max_size=9), st.data())
def test_what_is_kept_is_its_own_and_never_nothing(used: list[int], leaving: list[int], data: st.DataObject) -> None:
    """Whatever an agent says."""
    indices = tuple(data.draw(st.lists(st.integers(0, 7), min_size=1, max_size=8, unique=True)))
    wanted = data.draw(st.integers(1, len(indices)))
    kept = kept_as_told(GpusHeld(indices, wanted), GpusTold(tuple(used), tuple(leaving), kept="failed"))
    assert set(kept.indices) <= set(indices) and kept.indices[0] == indices[0]
    assert kept.in_use == kept.indices
    assert {*used, *leaving} & set(indices) <= set(kept.indices)
