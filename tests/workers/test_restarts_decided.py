"""When a run that is restarted for its GPUs is asked, what its end means, and what is told of it."""

from __future__ import annotations

import pytest

from tests.workers.restarted import (
    BY_RESTART,
)
from workers.agent.process import Ended
from workers.agent.restarting import FAILED, PROVE_S, SHORT, NextBegin, Restarts


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def restarts(*use: int, held: tuple[int, ...] = (0, 1, 2, 3)) -> tuple[Restarts, Clock]:
    clock = Clock()
    spec = {"use_gpus": list(use), "gpu_indices": list(held), "template": BY_RESTART}
    found = Restarts(spec, clock)
    found.begin()
    found.trains()
    found.shows()
    return found, clock


def wants(one: Restarts, *use: int) -> None:
    one.tell({"use_gpus": list(use)})


LEFT = Ended(exit_code=75, orderly=True)


def test_an_older_server_that_says_nothing_of_gpus_is_told_nothing() -> None:
    one, _ = restarts()
    assert one.used == (0, 1, 2, 3) and one.told() == {} and not one.is_due(shown=True)


def test_what_has_trained_with_a_number_once_frees_its_gpus_at_once() -> None:
    """The first time they are its own until it has shown that it goes on without, or has had its time."""
    one, clock = restarts(0, 1)
    for held, is_proven in (([1], False), ([], True)):
        wants(one, 0)
        assert one.is_due(shown=True)
        one.ask()
        one.hears()
        assert one.told()["gpus"]["leaving"] == [1]
        begin = one.after(LEFT, saved=True, told=True)
        assert begin == NextBegin((0,))
        clock.now_s += 3
        assert one.begun(begin) == 3
        assert (one.told()["gpus"]["used"], one.told()["gpus"]["leaving"]) == ([0], held)
        assert one.may_begin_again is not is_proven
        if not is_proven:
            wants(one, 0, 1)
            assert not one.is_due(shown=True), "it may have to go back first"
            clock.now_s += PROVE_S
            assert one.told()["gpus"]["leaving"] == []
        one.trains()
        wants(one, 0, 1)
        one.ask()
        one.hears()
        again = one.after(LEFT, saved=True, told=True)
        assert again == NextBegin((0, 1))
        one.begun(again)
        one.trains()
    assert one.told()["gpus"]["pause_ms"] == 0


def test_it_begins_with_what_is_wanted_by_then() -> None:
    """A run that stands by is told more than once before it begins."""
    one = Restarts({"use_gpus": [0, 1], "gpu_indices": [0, 1, 2], "template": BY_RESTART})
    wants(one, 0, 1, 2)
    assert one.begin() == (0, 1, 2) and not one.is_wanted
    wants(one, 0)
    assert one.used == (0, 1, 2) and one.is_wanted


def test_a_failure_later_on_is_its_own() -> None:
    one, _ = restarts(0, 1)
    wants(one, 0)
    one.ask()
    one.hears()
    begin = one.after(LEFT, saved=True, told=True)
    assert begin is not None
    one.begun(begin)
    one.trains()
    assert one.after(Ended(exit_code=1), saved=False, told=True) is None


def test_a_request_that_never_reached_it_explains_no_end() -> None:
    """Of code that saves by itself, and had not."""
    one, _ = restarts(0, 1)
    wants(one, 0)
    one.ask()
    one.hears()
    assert one.after(Ended(exit_code=1), saved=False, told=False) is None
    assert one.kept == ""
    wants(one, 0, 1)
    one.let_be()
    assert one.told()["gpus"]["leaving"] == []


def grown(*, had: bool = False) -> tuple[Restarts, Clock]:
    """It has just begun on two, after one."""
    one, clock = restarts(0, 1, held=(0, 1)) if had else restarts(0)
    for use in ((0,), (0, 1))[not had :]:
        wants(one, *use)
        one.ask()
        one.hears()
        begin = one.after(LEFT, saved=True, told=True)
        assert begin == NextBegin(use)
        one.begun(begin)
        if use == (0,):
            one.trains()
    return one, clock


@pytest.mark.parametrize("had", [False, True])
def test_what_grew_goes_back_as_long_as_it_took_no_step(had: bool) -> None:
    """Nothing is held for it, so it may load for an hour; meanwhile it can be asked for another number."""
    one, clock = grown(had=had)
    clock.now_s += 100 * PROVE_S
    assert (one.told()["gpus"]["used"], one.told()["gpus"]["leaving"]) == ([0, 1], [])
    wants(one, 0)
    assert one.is_due(shown=True)
    assert one.after(Ended(exit_code=1), saved=False, told=True) == NextBegin((0,), is_back=True)
    assert one.kept == FAILED


def test_with_nothing_left_to_do_it_goes_back() -> None:
    """Of what has taken a step, and of what has told no more, exit code 0 is done."""
    one, _ = grown()
    assert one.after(Ended(exit_code=0), saved=False, told=True) is None
    assert one.after(Ended(exit_code=0), saved=False, told=True, short=True) == NextBegin((0,), is_back=True)
    assert one.kept == SHORT
    one, _ = grown()
    one.trains()
    assert one.after(Ended(exit_code=0), saved=False, told=True, short=True) is None


def test_a_failure_after_a_step_where_it_has_gone_back_to_is_its_own() -> None:
    one, _ = grown()
    begin = one.after(Ended(exit_code=1), saved=False, told=True)
    assert begin is not None
    one.begun(begin)
    assert one.may_begin_again, "what is stored may do"
    assert [one.strands(Ended(exit_code=code)) for code in (1, 0)] == [True, False]
    one.trains()
    assert not one.may_begin_again and not one.strands(Ended(exit_code=1))


def test_a_pause_begins_when_its_process_hears_of_it() -> None:
    """It trains while its next save is waited for."""
    one, clock = restarts(0, 1)
    wants(one, 0)
    one.ask()
    clock.now_s += 3600
    one.hears()
    clock.now_s += 3
    begin = one.after(LEFT, saved=True, told=True)
    assert begin is not None and one.begun(begin) == 3
    clock.now_s += 4
    one.trains()
    assert one.told()["gpus"]["pause_ms"] == 7000
