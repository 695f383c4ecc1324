"""Which machines a range is weighed against: those on offer, and those of its project that are there and idle."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.board import Board
from app.core.elastic.other_machines import SPARE
from app.core.elastic.profile import SpeedProfile
from app.core.elastic.range_moves import (
    AGAIN_MS,
    LARGER,
    PATIENCE_MS,
    SMALLER,
    PlannedChange,
    SeenRanges,
    change_of,
    growth_of,
    idle_machines,
    may_leave,
    nodes_in,
    rents_less_than,
    start_of,
    without_rivals,
)
from app.core.elastic.runs import ElasticRun
from app.core.model.job import Caps, JobState, Resources
from app.core.model.money import Money
from app.core.model.node import NodeState, Tier
from app.core.model.plan import Assign, Migrate, MoveOut, Plan, Release
from app.core.model.snapshot import NodeView
from app.core.resizing import GpusHeld, GpusTold
from tests.core import samples
from tests.core.elastic.test_sharing import measured
from tests.simulator.scenarios import config

CURVE = measured(g1=1.0, g2=1.8, g3=2.4, g4=2.8)
FOUR = (0, 1, 2, 3)
HELD = ElasticRun("run_a", "job_a", "node_a", GpusHeld(FOUR, 4), GpusTold(FOUR), 4, 0, is_range=True)
HOURS_S = 10 * 3_600.0


def machine(node_id: str, gpus: int, usd_per_gpu: float = 1.0, **changes: Any) -> NodeView:
    price = Money(round(usd_per_gpu * gpus * 1_000_000))
    more: dict[str, Any] = {"gpu_count": gpus, "free_gpus": tuple(range(gpus)), "price_per_hour": price, "cpus": 64}
    return samples.node(node_id, **(more | changes))


def seen(*idle: NodeView, may_rent: bool = False, **changes: Any) -> SeenRanges:
    """A range that has four GPUs of a machine for itself, and these other machines."""
    own = machine("node_a", 4, free_gpus=())
    job = samples.job("job_a", JobState.RUNNING, resources=Resources(gpus_min=4, gpus_max=4))
    board = Board.of(samples.snapshot(jobs=(job,), runs=(samples.run("run_a", "job_a", "node_a"),), nodes=(own,)))
    return SeenRanges(board, {"run_a": CURVE}, config(), False, may_rent, idle, **changes)


def change(looked: SeenRanges, run: ElasticRun = HELD) -> PlannedChange | None:
    return change_of(looked, looked.board.jobs["job_a"], run, HOURS_S, looked.board.now_ms)


def test_an_idle_machine_is_taken_though_none_may_be_rented() -> None:
    found = change(seen(machine("node_b", 2), machine("node_c", 1)))
    assert found is not None
    assert (found.kind, found.gpus) == (SMALLER, 1)
    assert isinstance(found.move, Migrate)
    assert (found.move.node_id, found.move.gpu_indices) == ("node_c", (0,))
    assert "node_c" in dict(found.move.versions), "it is dropped where the machine is another's by then"
    assert "to an idle machine with 1" in found.move.reason
    assert change(seen()) is None


def test_of_two_that_are_alike_the_first_is_taken() -> None:
    found = change(seen(machine("node_b", 2), machine("node_c", 2)))
    assert found is not None and isinstance(found.move, Migrate)
    assert found.move.node_id == "node_b"


@pytest.mark.parametrize(
    "other",
    [
        machine("node_b", 4),
        machine("node_b", 8),
        machine("node_b", 2, project_id="another"),
        machine("node_b", 2, gpu_type="H100"),
        machine("node_b", 2, 2.5),
        machine("node_b", 2, image="another"),
    ],
    ids=["as large", "larger", "another project's", "another kind", "dear", "another image"],
)
def test_what_does_not_do_is_left_alone(other: NodeView) -> None:
    assert change(seen(other)) is None


def test_it_keeps_what_it_needs() -> None:
    assert change(seen(machine("node_b", 1)), replace(HELD, least=2)) is None
    assert change(seen(machine("node_b", 2)), replace(HELD, least=2)) is not None


def test_idle_is_what_is_rented_ready_and_free_for_nobody() -> None:
    nodes = [
        machine("node_d", 2),
        machine("node_c", 2),
        machine("node_a", 2, free_gpus=(1,)),
        machine("node_b", 2, state=NodeState.BOOTING),
        machine("node_e", 2, tier=Tier.OWN),
        machine("node_f", 2, tier=Tier.SERVERLESS),
        machine("node_g", 2),
    ]
    plan = Plan("any", (Assign("job_b", "node_g", (0,), "", ()), Release("node_x", "", ())))
    assert nodes_in(plan) == {"node_g", "node_x"}
    assert [one.node_id for one in idle_machines(nodes, nodes_in(plan))] == ["node_c", "node_d"]
    assert rents_less_than(6, nodes) and not rents_less_than(5, nodes), "own and serverless ones are no rented nodes"


def test_two_do_not_take_one_machine() -> None:
    moves: list[Migrate | MoveOut] = [Migrate(name, "", "node_b", (0,), "", ()) for name in ("job_a", "job_b")]
    moves.append(MoveOut("job_c", "", samples.offer("x"), (0,), "", ()))
    changes = [PlannedChange(HELD, 1, LARGER, one) for one in moves]
    assert without_rivals(changes) == [changes[0], changes[2]]


def test_who_has_changed_lately_stays() -> None:
    job, now_ms = samples.job("job_a", JobState.RUNNING), 10 * AGAIN_MS
    assert may_leave(job, 0, 5), "never, also where clocks have just begun"
    assert not may_leave(job, None, now_ms)
    assert not may_leave(job, now_ms - AGAIN_MS + 1, now_ms)
    assert may_leave(job, now_ms - AGAIN_MS, now_ms)
    assert not may_leave(replace(job, locked=True), 0, now_ms)


def grown(*idle: NodeView, offers: Any = (), due_h: float = 6.0) -> int | None:
    """The GPUs that a range goes on with that has one of four, and ten hours to go."""
    own = machine("node_a", 1, free_gpus=())
    job = samples.job("job_a", JobState.RUNNING, resources=Resources(gpus_min=1, gpus_max=4))
    runs = (samples.run("run_a", "job_a", "node_a"),)
    board = Board.of(samples.snapshot(jobs=(job,), runs=runs, nodes=(own, *idle), offers=offers))
    now_ms = board.now_ms
    run = replace(HELD, held=GpusHeld((0,), 1), told=GpusTold((0,)), due_ms=now_ms + int(due_h * 3_600_000))
    found = growth_of(board, job, run, CURVE, HOURS_S, now_ms, idle)
    return None if found is None else found.to.gpus


def test_for_its_deadline_it_goes_to_a_machine_that_is_there_and_idle() -> None:
    """Also where none is on offer; with what is there it need not wait for one to come."""
    assert grown() is None
    assert grown(machine("node_b", 2)) == 2
    assert grown(machine("node_b", 4)) == 4
    assert grown(machine("node_b", 2), due_h=5.0) is None, "it would be late there as well"
    assert grown(machine("node_b", 8)) is None, "it may have four"
    assert grown(machine("node_b", 2, project_id="another")) is None
    assert grown(machine("node_b", 2, gpu_type="H100")) is None
    dear = samples.offer("of-2", Tier.MARKETPLACE, "9.00", gpu_count=2, cpus=64, startup_ms=30_000)
    assert grown(machine("node_b", 4), offers=(dear,)) == 4, "more speed for a dollar"


# What a job begins with

MINUTE_MS = 60_000
SIZES = tuple(
    samples.offer(f"of-{gpus}", Tier.MARKETPLACE, f"{gpus}.00", gpu_count=gpus, cpus=64, startup_ms=30_000)
    for gpus in (1, 2, 4)
)


def begins(run_min: int, due_min: float, curve: Any = CURVE, offers: Any = SIZES, **changes: Any) -> int | None:
    """The GPUs that a job begins with, of whose range one to four it needs one: with that it takes `run_min`."""
    need: dict[str, Any] = {"resources": Resources(gpus_min=1, gpus_max=4), "total_run_ms": run_min * MINUTE_MS}
    need |= changes
    job = samples.job("job_a", deadline_ms=samples.NOW_MS + int(due_min * MINUTE_MS), **need)
    board = Board.of(samples.snapshot(jobs=(job,), offers=offers))
    found = start_of(board, job, curve, samples.NOW_MS)
    return None if found is None else found.to.gpus


def test_it_begins_with_as_many_as_its_deadline_needs() -> None:
    """An hour of work with one GPU, 33 minutes with two, 21 with four; half a minute goes until they are there."""
    assert begins(60, 72) is None, "about a quarter to spare with what it needs"
    assert begins(60, 71) == 2
    assert begins(60, 43) == 2, "with a quarter to spare"
    assert begins(60, 42) == 4, "two would be in time, and not with a quarter to spare"
    assert begins(60, 25) == 4, "in time, and nothing to spare"
    assert begins(60, 21) is None, "late all the same: it costs what it needs"


def test_what_is_told_is_what_is_predicted() -> None:
    job = samples.job(
        "job_a", resources=Resources(gpus_min=1, gpus_max=4), total_run_ms=60 * MINUTE_MS,
        deadline_ms=samples.NOW_MS + 50 * MINUTE_MS,
    )  # fmt: skip
    found = start_of(Board.of(samples.snapshot(jobs=(job,), offers=SIZES)), job, CURVE, samples.NOW_MS)
    assert found is not None
    assert (found.late_s, round(found.early_s)) == (600, 3_000 - 30 - 2_000)


def test_guesses_are_not_paid_for() -> None:
    assert begins(60, 43, SpeedProfile(1)) is None
    assert begins(60, 43, measured(g1=1.0)) is None
    assert begins(60, 43, measured(g2=1.8)) is None, "nobody knows how fast it is with what it needs"
    assert begins(60, 43, total_run_ms=None) is None


def test_only_what_is_on_offer_and_allowed() -> None:
    assert begins(60, 43, offers=SIZES[::2]) == 4
    assert begins(60, 43, offers=SIZES[:1]) is None
    assert begins(60, 43, caps=Caps(max_hourly=Money.usd("3.50"))) == 2
    assert begins(60, 43, caps=Caps(max_hourly=Money.usd("1.50"))) is None
    soonest = samples.offer("fn", Tier.SERVERLESS, "4.00", gpu_count=2, cpus=64)
    assert begins(60, 33.5, offers=SIZES[:2]) is None, "half a minute goes until it is there"
    assert begins(60, 33.5, offers=(*SIZES[:2], soonest)) == 2, "serverless is there at once"


def test_what_comes_later_than_it_would_be_waited_for_is_not_begun_with() -> None:
    slow = replace(SIZES[1], startup_ms=PATIENCE_MS)
    assert begins(60, 60, offers=(SIZES[0], slow)) == 2
    assert begins(60, 60, offers=(SIZES[0], replace(slow, startup_ms=PATIENCE_MS + 1))) is None


@given(
    st.lists(st.floats(0.1, 4.0), min_size=4, max_size=4),
    st.integers(1, 1_000),
    st.floats(0.1, 2_000.0),
    st.sets(st.sampled_from(SIZES)),
)
def test_nobody_begins_with_more_for_nothing(speeds: list[float], run_min: int, due_min: float, offers: Any) -> None:
    """Whoever begins with more than it needs is in time so, as far as is predicted, and was not surely in time
    without."""
    curve = SpeedProfile(1, predicted=dict(enumerate(speeds, 1)))
    gpus = begins(run_min, due_min, curve, tuple(sorted(offers, key=lambda one: one.offer_id)))
    if gpus is None:
        return
    assert run_min * SPARE > due_min
    assert run_min * speeds[0] / speeds[gpus - 1] + 0.5 <= due_min + 1e-6
    assert gpus in {one.gpu_count for one in offers} - {1}
