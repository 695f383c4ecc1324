"""How many GPUs runs had, and why that changed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.core.model.money import Money
from app.core.size_history import HeldSize, SizeReason, Wish, explained


def held(size_id: str, from_ms: int, before: int | None = 1, run_id: str = "run_a", gpus: int = 2) -> HeldSize:
    return HeldSize(size_id, run_id, "node_a", "A100", gpus, before, Money(1), from_ms, None)


def test_each_has_the_newest_wish_of_its_run_by_then() -> None:
    """A wish that was taken later is the reason all the same; one of another run is not."""
    sizes = [held("1", 0, None), held("2", 100), held("3", 250), held("4", 300), held("5", 10, None, "run_b")]
    wishes = [
        Wish("run_a", 100, SizeReason.ASKED, "its owner wants it on 2 GPUs, not 1"),
        Wish("run_a", 200, SizeReason.LENT, "lends 1", "job_w"),
        Wish("run_b", 240, SizeReason.REFUSED, "not this one's"),
        Wish("run_a", 300, SizeReason.RETURNED, "has 2 of its 2"),
    ]
    found = [(one.held.size_id, one.why, one.for_job_id) for one in explained(sizes, wishes)]
    assert found == [
        ("1", SizeReason.BEGUN, None),
        ("2", SizeReason.ASKED, None),
        ("3", SizeReason.LENT, "job_w"),
        ("4", SizeReason.RETURNED, None),
        ("5", SizeReason.BEGUN, None),
    ]


def test_what_is_not_on_record_is_said_to_be_so() -> None:
    """A row of an older release, or whose events are gone."""
    (one,) = explained([held("1", 50, 4)], [Wish("run_a", 51, SizeReason.ASKED, "later")])
    assert (one.why, one.text) == (SizeReason.UNKNOWN, "after 4; why is not on record")


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9)), max_size=8), st.lists(st.integers(0, 9)))
def test_no_size_is_lost_and_none_has_a_wish_of_later(wanted: list[tuple[str, int]], times: list[int]) -> None:
    sizes = [held(str(number), at, 1, "run_a") for number, at in enumerate(sorted(times))]
    wishes = [Wish(f"run_{run}", at, SizeReason.LENT, str(at)) for run, at in sorted(wanted, key=lambda one: one[1])]
    found = explained(sizes, wishes)
    assert [one.held for one in found] == sizes
    for one in found:
        by_then = [wish for wish in wishes if wish.run_id == "run_a" and wish.at_ms <= one.held.from_ms]
        assert one.text == (by_then[-1].text if by_then else "after 1; why is not on record")
