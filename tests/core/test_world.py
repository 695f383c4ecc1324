"""Liveness: a policy whose plans are enacted again and again brings every job to its end, and every bill is paid."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.billing import Payer
from app.core.model.job import Resources
from app.core.model.money import Money, total
from app.core.model.plan import STOP_AND_GO
from app.core.policies import policy_named
from app.core.policy import PolicyConfig
from tests.core.samples import CLOUD, CONFIG, MARKET, OFFERS, SERVERLESS, job, offer
from tests.core.world import Task, World

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
BIG = offer("big", MARKET.tier, "2.50", gpu_count=4, cpus=32, startup_ms=40_000)


def world(*tasks: Task, config: PolicyConfig = CONFIG, **changes: object) -> World:
    values = {"policy": policy_named("fixed-threshold"), "config": config, "offers": OFFERS, "tasks": tasks}
    return World(**(values | changes))  # type: ignore[arg-type]  # names and kinds by the callers


def task(name: str, work_ms: int, **changes: object) -> Task:
    return Task(job(f"job_{name}", **changes), work_ms)


def test_short_job_stays_serverless() -> None:
    """A job shorter than the budget starts within the start-up time, never moves, and leaves nothing rented."""
    played = world(task("a", 120_000)).play(until_ms=HOUR_MS)
    assert played.finished_ms == {"job_a": SERVERLESS.startup_ms + 120_000}
    assert len(played.nodes) == 1
    assert played.rented == []


def test_long_job_moves_once() -> None:
    """A long job runs for F on serverless, saves, and goes on where it was on the marketplace node rented meanwhile."""
    played = world(task("a", HOUR_MS)).play(until_ms=2 * HOUR_MS)
    leaves = SERVERLESS.startup_ms + CONFIG.serverless_budget_ms
    moved = leaves + MARKET.startup_ms + played.restore_ms  # the node boots while the job saves
    left_ms = HOUR_MS - CONFIG.serverless_budget_ms - played.save_ms  # it trains on until it has saved
    assert played.finished_ms == {"job_a": moved + left_ms}
    assert [node.view.tier for node in played.nodes.values()] == [SERVERLESS.tier, MARKET.tier]
    assert played.rented == []


def test_ledger_names_boot_run_and_idle() -> None:
    """Of a moved job's bill the boot of the rented node is its own line, and all lines add up to the bill."""
    played = world(task("a", HOUR_MS)).play(until_ms=2 * HOUR_MS)
    payers = {line.payer for node in played.nodes.values() for line in node.lines}
    assert payers == {Payer.RUN, Payer.BOOT, Payer.IDLE}
    assert played.ledger == played.bill
    spent = total(line.amount for node in played.nodes.values() for line in node.lines if line.job_id == "job_a")
    assert played.jobs["job_a"].spent == spent < played.bill


def test_large_job_is_not_starved_by_small_ones() -> None:
    """With one node to be had, a job of 4 GPUs gets it although a stream of small later jobs never ends."""
    config = replace(CONFIG, serverless_limit=0, serverful_limit=1)
    small = [task(f"s{i:02d}", 100_000, submitted_ms=i * 20_000, deadline_ms=DAY_MS + i) for i in range(60)]
    large = task("large", 60_000, submitted_ms=30_000, deadline_ms=DAY_MS - 1, resources=Resources(4, 4))
    played = world(large, *small, config=config, offers=(BIG,)).play(until_ms=DAY_MS)
    assert played.unfinished == []
    assert played.finished_ms["job_large"] < 400_000


def test_next_offer_after_failed_boots() -> None:
    """Machines that never start cost the job its back-off, then it goes to another offer; the ledger still fits."""
    second = offer("second", SERVERLESS.tier, "2.20")
    played = world(task("a", 60_000), offers=(SERVERLESS, second), failing_boots=1).play(until_ms=HOUR_MS)
    assert [node.offer.key for node in played.nodes.values()] == [SERVERLESS.key, second.key]
    assert played.finished_ms == {"job_a": SERVERLESS.startup_ms + 3_000 + second.startup_ms + 60_000}
    assert played.ledger == played.bill


def test_only_offer_is_tried_again() -> None:
    """Where one offer is all there is, its failures delay a job and never strand it."""
    played = world(task("a", 60_000), offers=(SERVERLESS,), failing_boots=3).play(until_ms=HOUR_MS)
    assert played.unfinished == []


def test_capped_job_is_left_alone() -> None:
    """A job whose cap is reached while it waits is given nothing more, and its node goes back."""
    from app.core.model.job import Caps

    played = world(task("a", HOUR_MS, caps=Caps(max_cost=Money.usd("0.10")))).play(until_ms=2 * HOUR_MS)
    assert played.unfinished == ["job_a"]
    assert played.rented == []


tasks = st.builds(
    dict,
    work_ms=st.integers(0, 900_000),
    submitted_ms=st.integers(0, 600_000),
    deadline_ms=st.integers(0, 5).map(lambda hours: hours * HOUR_MS),
    project_id=st.sampled_from(["proj_a", "proj_b"]),
    resources=st.sampled_from([Resources(), Resources(), Resources(cpus_min=6), Resources(2, 2), Resources(4, 4)]),
)


# The policies that a service may run; baselines for the simulator may leave a job that their one tier cannot hold.
@pytest.mark.parametrize("name", ["allpass", "allpass-drain", "fixed-threshold"])
@settings(max_examples=30)
@given(
    drawn=st.lists(tasks, min_size=1, max_size=10),
    budget_ms=st.sampled_from([0, 30_000, 300_000]),
    limits=st.sampled_from([(0, 1), (1, 1), (2, 2), (5, 8), (3, 0)]),
    idle_release_ms=st.sampled_from([0, 60_000]),
    faults=st.tuples(st.integers(0, 4), st.integers(0, 4)),
)
def test_every_job_finishes(name, drawn, budget_ms, limits, idle_release_ms, faults) -> None:
    """Whatever the jobs, the limits and the faults: all jobs end, nothing stays rented, ledger and bill agree."""
    config = PolicyConfig(STOP_AND_GO, budget_ms, *limits, idle_release_ms)
    offers = (SERVERLESS, offer("fn4", SERVERLESS.tier, "8.40", gpu_count=4, cpus=32), MARKET, CLOUD, BIG)
    jobs = [task(f"{i}", spec.pop("work_ms"), **spec) for i, spec in enumerate(dict(spec) for spec in drawn)]

    def play() -> World:
        played = World(policy_named(name), config, offers, tuple(jobs), *faults)
        return played.play(until_ms=DAY_MS)

    played = play()
    assert played.unfinished == []
    assert played.rented == []
    assert played.ledger == played.bill
    assert play().history == played.history
