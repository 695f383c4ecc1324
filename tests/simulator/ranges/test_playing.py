"""Ranges of GPUs in a simulation: given, lent, had back, and moved for, at exact times."""

from __future__ import annotations

from typing import Any

import pytest

from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.core.policy import MoveCost
from app.simulator.lives import Life
from app.simulator.own.machines import HostEvent, OwnMachines
from app.simulator.own.words import read_pools
from app.simulator.ranges.drawing import TaskRange, parallel_speeds
from app.simulator.ranges.kinds import RangePoolSimulation, RangeSimulation
from app.simulator.scenario import SimulatedMarket, Task
from app.simulator.worlds.known import FRIENDLY
from tests.simulator.scenarios import HOUR_MS, SECOND_MS, Seen, market, simulate, task

LINEAR = 1.0
MOVES = MoveCost(2_000, 3_000)


def ranged(name: str, work_s: float, least: int, most: int, *, fraction: float = LINEAR, **changes: Any) -> Task:
    """Its speeds are stated, and known. Its work is that on one GPU."""
    speeds = parallel_speeds(fraction, 1, most)
    return task(name, work_s, elastic=TaskRange(least, most, speeds, speeds), **changes)


class Played:
    """What a simulation of these jobs went through, and the simulation itself."""

    def __init__(self, *tasks: Task, pool: str | OwnMachines = "none", resize_s: float = 1.0, **changes: Any) -> None:
        self.simulation: RangeSimulation | None = None
        outer = self
        own = read_pools(pool) if isinstance(pool, str) else pool
        kind: type = changes.pop("kind", RangeSimulation if own is None else RangePoolSimulation)

        class Kept(kind):  # type: ignore[misc] # whichever it is
            def __init__(self, *given: Any) -> None:
                super().__init__(*given)
                outer.simulation = self

        values: dict[str, Any] = {"moves": MOVES, "on": market(Tier.MARKETPLACE), "ahead": False}
        world = FRIENDLY.having({"resize_s": resize_s})
        self.seen: Seen = simulate("allpass", *tasks, kind=Kept, own=own, world=world, **(values | changes))
        assert all(one.finished_ms for one in self.seen.result.outcomes)

    def ended_s(self, name: str) -> float:
        return self.seen.outcome(name).finished_ms / 1000

    @property
    def figures(self) -> dict[str, float]:
        return self.seen.result.beside

    def held_s(self, name: str) -> dict[int, float]:
        """For how long it had how many GPUs that were paid."""
        assert self.simulation is not None
        held = self.simulation.seen.held_ms
        return {gpus: held_ms / 1000 for (job_id, gpus), held_ms in sorted(held.items()) if job_id == name and held_ms}


NOTHING_RENTED = SimulatedMarket({})

# In a pool


def test_it_begins_on_the_largest_piece_that_is_free() -> None:
    """An hour of work for one GPU is done by eight in an eighth of it, once the machine is cut."""
    seen = Played(ranged("a", 3_600, 1, 8), pool="8xA100", on=NOTHING_RENTED)
    assert seen.ended_s("a") == pytest.approx(450 + 1, abs=1)
    assert list(seen.held_s("a")) == [8]
    assert seen.figures["resizes"] == 0
    slower = Played(ranged("a", 3_600, 1, 8, fraction=0.5), pool="8xA100", on=NOTHING_RENTED)
    assert slower.ended_s("a") == pytest.approx(3_600 * (0.5 + 0.5 / 8) + 1, abs=1)


def test_a_job_that_waits_is_lent_a_gpu_and_the_range_has_it_back() -> None:
    """After the pause of a resize the other one begins. Once it has ended nobody waits, and the GPU returns."""
    seen = Played(ranged("a", 3_600, 1, 8), task("b", 60, at_s=100), pool="8xA100", on=NOTHING_RENTED)
    began_s = (seen.seen.outcome("b").started_ms or 0) / 1000
    assert began_s == 101
    assert seen.ended_s("b") == 161
    held = seen.held_s("a")
    assert (list(held), held[7]) == ([7, 8], 60.0), "it holds both numbers while it changes"
    # 59 s with one GPU less, and twice a second without a step.
    assert seen.ended_s("a") == pytest.approx(451 + 2 + 59 / 8, abs=1)
    assert (seen.figures["resizes"], seen.figures["lent_gpus"]) == (2, 1)
    outcome = seen.seen.outcome("a")
    assert outcome.move_ms == 2_000
    assert outcome.wait_ms == pytest.approx(3_000, abs=5), "the start and both pauses, and nothing of its speed"


def test_what_it_needs_it_never_lends() -> None:
    """The other one waits until it is done."""
    seen = Played(ranged("a", 600, 4, 4), task("b", 60, at_s=10), pool="4xA100", on=NOTHING_RENTED)
    assert seen.figures["resizes"] == 0
    assert (seen.seen.outcome("b").started_ms or 0) / 1000 >= seen.ended_s("a")
    seen = Played(ranged("a", 600, 3, 4), task("b", 60, at_s=10, gpus=2), pool="4xA100", on=NOTHING_RENTED)
    assert seen.figures["lent_gpus"] == 0


def test_a_range_that_is_larger_than_any_machine_has_as_many_as_there_are() -> None:
    seen = Played(ranged("a", 3_600, 1, 8), pool="2x2xA100", on=NOTHING_RENTED)
    assert list(seen.held_s("a")) == [2]
    # What needs more than a host has is rented.
    rented = Played(ranged("a", 3_600, 4, 8), pool="2x2xA100")
    assert list(rented.held_s("a")) == [4]
    assert rented.seen.result.bills["vast"] > 0


def test_where_all_are_ranges_each_lends_to_those_that_come() -> None:
    """Eight of them on eight GPUs: each begins, and none waits for another one to end."""
    tasks = [ranged(f"a{at}", 3_600, 1, 8, at_s=60 * at) for at in range(8)]
    seen = Played(*tasks, pool="8xA100", on=NOTHING_RENTED)
    begun = [(seen.seen.outcome(one.job_id).started_ms or 0) / 1000 for one in tasks]
    assert all(began_s - 60 * at < 30 for at, began_s in enumerate(begun))
    assert max(seen.ended_s(one.job_id) for one in tasks) < 3_600 * 1.3


def test_interactive_jobs_are_lent_to_first() -> None:
    """Of two that wait for one GPU, the one that was submitted later and is due later, as somebody waits for it."""
    long = ranged("a", 7_200, 1, 2)
    batch = task("b", 1_000, at_s=100, due_s=2_000)
    person = task("c", 100, at_s=100, due_s=5_000, kind="interactive")
    seen = Played(long, batch, person, pool="2xA100", on=NOTHING_RENTED)
    started = {name: seen.seen.outcome(name).started_ms or 0 for name in "bc"}
    assert min(started.values()) == 101 * SECOND_MS
    assert seen.figures["lent_gpus"] >= 1


def test_gpus_that_make_it_no_faster_are_given_up() -> None:
    """Its speeds are not stated: it is measured with eight, then with fewer, of which two are as fast."""
    flat = TaskRange(1, 8, (1000, 1900, 1900, 1900, 1900, 1900, 1900, 1900))
    first = task("a", 36_000, elastic=flat)
    others = [task(f"b{at}", 120, at_s=1_000 + 200 * at, gpus=6) for at in range(3)]
    seen = Played(first, *others, pool="8xA100", on=NOTHING_RENTED)
    held = seen.held_s("a")
    assert held[2] > held[8]


def test_it_moves_to_a_larger_piece_once_nobody_waits() -> None:
    """It began on the one GPU that was free; then seven fall free beside it."""
    others = [task(name, 600, gpus=gpus) for name, gpus in (("a", 4), ("c", 2), ("d", 1))]
    seen = Played(*others, ranged("b", 36_000, 1, 4, at_s=10), pool="8xA100", on=NOTHING_RENTED)
    assert seen.figures["moved_larger"] >= 1
    assert list(seen.held_s("b")) == [1, 4]
    assert seen.ended_s("b") < 600 + 36_000 / 4 + 60
    assert seen.seen.outcome("b").moves == 1


# On rented machines


def test_without_a_need_for_more_it_has_the_least() -> None:
    seen = Played(ranged("a", 3_600, 2, 8))
    assert list(seen.held_s("a")) == [2]
    assert seen.ended_s("a") == 36 + 1_800
    assert seen.seen.result.bills["vast"] == pytest.approx(2 * 0.74e6 / 2, abs=400)


def longer_than_thought(**changes: Any) -> Task:
    """Four hours of work, of which two were thought, and three of time."""
    return ranged("a", 4 * 3_600, 1, 8, due_s=3 * 3_600, predicted_ms=2 * HOUR_MS, refined=True, **changes)


def test_it_begins_with_what_its_deadline_needs() -> None:
    """Four hours of work and two and a half of time. With two GPUs it would be in time, and not if it takes a quarter
    longer; it has four, and two once enough is done."""
    seen = Played(ranged("a", 4 * 3_600, 1, 8, due_s=2.5 * 3_600))
    assert (seen.figures["begun_larger"], seen.figures["grown_for_deadlines"]) == (1, 0)
    assert list(seen.held_s("a"))[-1] == 4
    assert 1 not in seen.held_s("a")
    assert not seen.seen.outcome("a").missed
    ample = Played(ranged("a", 4 * 3_600, 1, 8, due_s=5.1 * 3_600))
    assert (ample.figures["begun_larger"], list(ample.held_s("a"))) == (0, [1])


def test_it_grows_for_its_deadline() -> None:
    """Once it is seen that it will be late with one GPU."""
    seen = Played(longer_than_thought())
    assert (seen.figures["begun_larger"], seen.figures["grown_for_deadlines"]) == (0, 1)
    assert list(seen.held_s("a")) == [1, 2]
    assert seen.ended_s("a") < 3.5 * 3_600
    fixed = Played(task("a", 4 * 3_600, due_s=2.5 * 3_600), ranged("z", 1, 1, 1))
    assert fixed.seen.outcome("a").missed


def test_a_deadline_that_nobody_can_keep_is_paid_nothing_for() -> None:
    seen = Played(ranged("a", 4 * 3_600, 1, 8, due_s=600))
    assert seen.figures["grown_for_deadlines"] == seen.figures["begun_larger"] == 0
    assert list(seen.held_s("a")) == [1]
    assert seen.seen.outcome("a").missed


def test_speeds_that_nobody_knows_are_not_paid_for() -> None:
    unknown = TaskRange(1, 8, parallel_speeds(1.0, 1, 8))
    seen = Played(task("a", 4 * 3_600, due_s=2.5 * 3_600, elastic=unknown))
    assert seen.figures["grown_for_deadlines"] == seen.figures["begun_larger"] == 0


def test_it_moves_to_a_smaller_machine_once_nothing_presses() -> None:
    """It was thought to take twice as long; what is left of the error is what is left of the work."""
    work_s = 8 * 3_600
    wrong = ranged(
        "a", work_s, 1, 8, fraction=0.8, due_s=0.9 * work_s, predicted_ms=2 * work_s * SECOND_MS, refined=True
    )
    seen = Played(wrong)
    assert seen.figures["begun_larger"] == 1
    assert seen.figures["moved_smaller"] >= 1
    assert not seen.seen.outcome("a").missed
    assert len(seen.held_s("a")) > 1, "what its deadline was thought to need, and fewer"


class NothingLarge(RangeSimulation):
    """Once somebody has left for more GPUs, no machine with more than one is to be had."""

    def _offers(self) -> tuple[Offer, ...]:
        return tuple(one for one in super()._offers() if one.gpu_count == 1 or not self.seen.grown)

    def _ask_for(self, life: Life, gpus: int) -> None:
        super()._ask_for(life, gpus)
        self._set_offers()


def test_a_machine_that_does_not_come_is_waited_for_for_ten_minutes() -> None:
    seen = Played(longer_than_thought(), kind=NothingLarge)
    assert seen.figures["grown_for_deadlines"] == 1
    course = seen.seen.course()
    left_s = next(at_s for at_s, kind in course if kind == "release")
    again_s = next(at_s for at_s, kind in course if kind == "provision" and at_s > left_s)
    assert 590 <= again_s - left_s < 700, "from when it was asked to leave on"
    assert list(seen.held_s("a")) == [1]


# What goes wrong in the middle


@pytest.mark.parametrize("after_s", [5, 29, 31, 200])
def test_a_host_that_dies_while_a_range_changes_loses_no_work_twice(after_s: int) -> None:
    """It is asked to change at 100 s and stands still for half a minute; its host is unplugged about then. What it had
    saved counts, and all of its work is done in the end."""
    pools = read_pools("2x8xA100")
    assert pools is not None
    first, second = pools.hosts
    events = (
        HostEvent(0, first.host_id, "join"),
        HostEvent((100 + after_s) * SECOND_MS, first.host_id, "unplug"),
        HostEvent(HOUR_MS, first.host_id, "join"),
        HostEvent(200 * SECOND_MS, second.host_id, "join"),
    )
    own = OwnMachines(pools.pools, pools.hosts, events)
    seen = Played(ranged("a", 3_600, 1, 8), task("b", 60, at_s=100), pool=own, on=NOTHING_RENTED, resize_s=30.0)
    outcome = seen.seen.outcome("a")
    assert outcome.faults == 1
    assert outcome.lost_ms > 0
    assert seen.ended_s("a") > 451


def test_a_machine_that_fails_again_and_again_ends_nobody() -> None:
    on = market(Tier.MARKETPLACE, mean_life_s={Tier.MARKETPLACE: 3_000.0})
    tasks = [ranged(f"a{at}", 6_000, 1, 4, due_s=5_000, at_s=100 * at) for at in range(6)]
    seen = Played(*tasks, on=on, seed=3)
    assert sum(one.faults for one in seen.seen.result.outcomes) > 0


def test_a_resize_that_costs_nothing_is_done_at_once() -> None:
    seen = Played(ranged("a", 3_600, 1, 8), task("b", 60, at_s=100), pool="8xA100", on=NOTHING_RENTED, resize_s=0.0)
    assert seen.seen.outcome("b").started_ms == 100 * SECOND_MS
    assert seen.ended_s("a") == pytest.approx(451 + 60 / 8, abs=1)
