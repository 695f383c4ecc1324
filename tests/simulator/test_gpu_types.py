"""Several types of GPU in one market: jobs take longer on some, and policies that see it pay less and are late less."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.core.gpu_speeds import GpuSpeeds
from app.core.model.node import Tier
from app.core.policies import policy_names
from app.core.policy import MoveCost
from app.errors import InvalidInput
from app.simulator.gpu_types import GIB, ONE, SEVERAL, SimulatedGpu, TaskSpeeds, gpus_on_offer, with_speeds
from app.simulator.options import Options
from app.simulator.running import simulate as simulate_trace
from app.simulator.scenario import Task
from app.simulator.traces.generating import generate
from app.simulator.worlds.known import FRIENDLY
from app.simulator.worlds.rough import RoughSimulation
from tests.simulator.scenarios import HOUR_MS, market, simulate, task

SLOW = SimulatedGpu("L4", 80 * GIB, {Tier.MARKETPLACE: 0.1, Tier.CONVENTIONAL: 0.1})
FAST = SimulatedGpu("H100", 80 * GIB, {Tier.MARKETPLACE: 1.2})
QUICK_MOVES = MoveCost(1_000, 1_000)


def speeds(**true: int) -> TaskSpeeds:
    """A job of which all is known, with these true times."""
    times = tuple(sorted({"h100": 500, "l4": 3_000, **true}.items()))
    found = TaskSpeeds(0.0, 0.0, 0, GpuSpeeds("a100", times))
    for name, time in times:
        found._known[name.upper()] = time
    return found


def with_times(one: Task, **true: int) -> Task:
    return replace(one, speeds=speeds(**true))


def test_an_hour_of_work_takes_three_on_gpus_that_are_three_times_as_slow() -> None:
    """And nothing of that is waiting."""
    seen = simulate("cheapest-first", with_times(task("a", 3_600, due_s=90_000)), on=market(gpus=(*ONE, SLOW)))
    outcome = seen.outcome("a")
    assert (outcome.tiers, outcome.slowed_ms) == ("m", 2 * HOUR_MS)
    assert outcome.jct_ms == 36_000 + 3 * HOUR_MS
    assert outcome.wait_ms == 36_000


def test_with_a_deadline_in_two_hours_it_takes_what_is_in_time() -> None:
    seen = simulate("cheapest-first", with_times(task("a", 3_600, due_s=7_200)), on=market(gpus=(*ONE, SLOW)))
    assert (seen.outcome("a").missed, seen.outcome("a").slowed_ms) == (False, 0)


def test_half_of_the_work_here_and_half_there_is_all_of_it() -> None:
    """It begins on serverless A100s, and moves to an H100 as soon as one is there."""
    one = with_times(task("a", 36_000, due_s=360_000, kind="interactive"))
    seen = simulate("allpass", one, on=market(gpus=(*ONE, FAST)), moves=QUICK_MOVES)
    outcome = seen.outcome("a")
    assert outcome.tiers == "sm"
    on_serverless_ms = 36_000  # it is asked for as the job begins, and up so much later
    trained_ms = on_serverless_ms + (36_000_000 - on_serverless_ms) // 2
    assert outcome.jct_ms == 4_000 + trained_ms + outcome.move_ms
    assert outcome.slowed_ms == trained_ms - 36_000_000


def test_what_is_seen_is_told_by_the_gpus_that_a_job_has() -> None:
    """Once it trains on the L4 it has three times as long to go, of which an A100 would take a third."""
    tasks = [with_times(task(name, 3_600, at_s=at_s, due_s=90_000)) for name, at_s in (("a", 0), ("b", 600))]
    seen = simulate("cheapest-first", *tasks, on=market(gpus=(*ONE, SLOW)))
    views = [(job.total_run_ms, job.speeds) for sees, _, _ in seen.snapshots for job in sees.jobs if job.job_id == "a"]
    assert views[0] == (HOUR_MS, GpuSpeeds("a100", (("h100", 500), ("l4", 3_000))))
    assert views[-1] == (3 * HOUR_MS, GpuSpeeds("l4", (("a100", 333), ("h100", 167)), trains_there=True))


def test_memory_keeps_large_jobs_off_small_gpus() -> None:
    """A T4 has 16 GiB."""
    large = replace(task("a", 600), speeds=replace(speeds(), needs_bytes=40 * GIB))
    seen = simulate("cheapest-first", large, on=market(gpus=SEVERAL))
    offers = {
        offer.gpu_type for _, _, plan in seen.snapshots for a in plan.actions if (offer := getattr(a, "offer", 0))
    }
    assert offers
    assert not offers & {"T4", "V100", "L4", "A10", "RTX 4090"}


@pytest.mark.parametrize("name", policy_names())
@pytest.mark.parametrize("rough", [False, True])
def test_every_policy_ends_every_job(name: str, rough: bool) -> None:
    """Machines fail, saves take time, and work that is done is done: with any policy."""
    tasks = with_speeds(
        [task(f"j{i}", 600 + 400 * i, at_s=50 * i, due_s=4_000 + 900 * i) for i in range(8)], "several", 1
    )
    world = replace(FRIENDLY, name="rough", save_s=2.0)
    kind: dict[str, Any] = {"kind": RoughSimulation, "world": world} if rough else {}
    lives = {Tier.MARKETPLACE: 3_000.0}
    on = market(gpus=SEVERAL, mean_life_s=lives)
    seen = simulate(name, *tasks, on=on, moves=QUICK_MOVES, **kind)
    for one in tasks:
        outcome = seen.outcome(one.job_id)
        assert outcome.finished_ms > one.submit_ms
        fastest = min(one.speeds.permille(gpu.name) for gpu in SEVERAL) if one.speeds else 1_000
        assert outcome.jct_ms >= one.work_ms * fastest // 1_000
        assert outcome.wait_ms >= -1


def test_the_option_is_read_and_told() -> None:
    """And refused where it cannot be played."""
    asked = Options().having("gpu-types", "several")
    assert asked.told()["gpu-types"] == "several"
    assert "gpu-types" not in Options().told()
    assert gpus_on_offer("one") == ONE
    trace = generate("philly", 5, seed=1)
    with pytest.raises(InvalidInput, match="gpu-types: 'many' is none of one, several, unseen"):
        Options().having("gpu-types", "many")
    with pytest.raises(InvalidInput, match="not played with jobs that may be merged"):
        asked.having("merge-able", "1").tasks(trace, 0)
    with pytest.raises(InvalidInput, match="is a bound for one type of GPU"):
        simulate_trace(trace, ["clairvoyant"], asked)


def test_what_is_drawn_is_the_same_whether_it_is_seen_or_not() -> None:
    """So that only what policies know differs."""
    trace = generate("philly", 30, seed=1)
    seen = Options().having("gpu-types", "several").tasks(trace, 3)
    unseen = Options().having("gpu-types", "unseen").tasks(trace, 3)
    for one, other in zip(seen, unseen, strict=True):
        assert one.speeds is not None
        assert other.speeds is not None
        assert (one.speeds.seen is None, other.speeds.seen) == (False, None)
        assert [one.speeds.permille(gpu.name) for gpu in SEVERAL] == [other.speeds.permille(g.name) for g in SEVERAL]
        assert replace(one, speeds=None) == replace(other, speeds=None)
    assert [task.speeds for task in Options().tasks(trace, 3)] == [None] * 30


@pytest.mark.parametrize("like", ["philly", "seren"])
def test_who_sees_speeds_is_late_less_and_pays_no_more(like: str) -> None:
    """The reason for all this: of jobs with deadlines, those that are late fall by more than half."""
    trace = generate(like, 120, seed=5)
    asked = Options().having("move-seconds", "5")
    found = {
        kinds: simulate_trace(trace, ["allpass"], asked.having("gpu-types", kinds), range(2))["policies"]["allpass"]
        for kinds in ("several", "unseen")
    }
    assert found["several"]["deadline_miss_share"] < found["unseen"]["deadline_miss_share"] / 2
    assert found["several"]["cost_usd"] < 1.02 * found["unseen"]["cost_usd"]
