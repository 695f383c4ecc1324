"""What jobs go through in a world that is not friendly, to the second."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.core.lifecycle import JobState
from app.core.model.node import RENTED_TIERS, Tier
from app.core.model.plan import ActionKind
from app.core.policies import policy_names
from app.simulator.scenario import Task
from app.simulator.worlds.habits import with_habits
from app.simulator.worlds.hosts import NEVER_MS, RoughCloud
from app.simulator.worlds.known import FRIENDLY, HARSH, MEASURED
from app.simulator.worlds.rough import RoughMergingSimulation, RoughSimulation, simulation_for
from app.simulator.worlds.supply import Supply
from tests.simulator import friendly
from tests.simulator.scenarios import SECOND_MS, Seen, market, simulate, task
from tests.simulator.test_engine import dying
from tests.simulator.test_every_policy import CONFIGS, recomputed_bills
from tests.simulator.workloads import markets, workload_for

# 8 s for a gigabyte
LINK = {f"{tier.value}.link_{end}_mbps": 1_000.0 for tier in RENTED_TIERS for end in ("least", "most")}


def play(policy: str, *tasks: Task, figures: dict[str, Any], **more: Any) -> Seen:
    """In a friendly world with other figures."""
    return simulate(policy, *tasks, kind=RoughSimulation, world=FRIENDLY.having({**LINK, **figures}), **more)


def booting(monkeypatch: pytest.MonkeyPatch, *seconds: float | None) -> None:
    """The next machines take so long to come up; None: for ever. Later ones ten seconds."""
    left = list(seconds)

    def startup_ms(_: RoughCloud, __: Tier) -> int:
        took_s = left.pop(0) if left else 10.0
        return NEVER_MS if took_s is None else round(took_s * 1000)

    monkeypatch.setattr(RoughCloud, "_startup_ms", startup_ms)


# The friendly world


@pytest.mark.parametrize("case", [one for one in friendly.CASES if one != "failures"])
def test_without_rough_figures_it_plays_what_a_plain_simulation_plays(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the byte of every plan. Where machines fail it differs: a plain one books then what closer saves cost."""
    monkeypatch.setattr(friendly, "Simulation", RoughSimulation)
    monkeypatch.setattr(friendly, "MergingSimulation", RoughMergingSimulation)
    recorded = json.loads(friendly.FRIENDLY.read_text())[case]
    for policy in friendly.POLICIES:
        found = friendly.played(policy, friendly.CASES[case])
        assert found | {"figures": ""} == recorded[policy] | {"figures": ""}


def test_the_friendly_world_is_played_by_the_plain_simulation() -> None:
    from app.simulator.engine import Simulation
    from app.simulator.merging import MergingSimulation
    from app.simulator.scenario import Scenario

    plain, rough = Scenario((), market()), Scenario((), market(), world=HARSH)
    assert [simulation_for(plain, merging=one) for one in (False, True)] == [Simulation, MergingSimulation]
    assert [simulation_for(rough, merging=one) for one in (False, True)] == [RoughSimulation, RoughMergingSimulation]


# Starts


def test_a_machine_that_never_comes_up_is_given_up_and_another_host_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """After ten minutes; a second later the next host is asked for, as the first has failed this job."""
    booting(monkeypatch, None)
    figures = {"marketplace.give_up_s": 600.0, "marketplace.hosts": 9, "marketplace.storage_usd": 0.36}
    seen = play("cheapest-first", task("a", 1_000), figures=figures)
    assert seen.course() == [(0, "provision"), (601, "provision"), (611, "assign"), (1611, "release")]
    assert [reason.count("vast") for reason in seen.reasons[:2]] == [1, 1]
    keys = {offer for snapshot, _, _ in seen.snapshots for job in snapshot.jobs for offer in job.avoided_offers}
    assert keys == {"vast/A100x1#0"}
    more = seen.result.beside
    assert more["failed_starts"] == 1
    assert more["storage_usd"] == pytest.approx((600 + 10) * 0.36 / 3600)


def test_a_serverless_start_in_vain_leaves_the_job_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has run nowhere yet; where it has, it waits. The machine is billed from the request on."""
    booting(monkeypatch, None, 4)
    seen = play("modal-only", task("a", 100), figures={"serverless.give_up_s": 180.0}, on=market(Tier.SERVERLESS))
    assert seen.of(ActionKind.START) == [(0, "a"), (181, "a")]
    states = {snapshot.now_ms // 1000: job.state for snapshot, _, _ in seen.snapshots for job in snapshot.jobs}
    assert (states[180], states[185]) == (JobState.QUEUED, JobState.RUNNING)
    assert seen.outcome("a").finished_ms == (181 + 4 + 100) * SECOND_MS
    assert seen.outcome("a").faults == 0


def test_an_offer_that_fails_again_is_left_for_half_a_minute_and_forgiven_after_ten_minutes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    booting(monkeypatch, None, None, None, 4)
    seen = play("modal-only", task("a", 2_000), figures={"serverless.give_up_s": 180.0}, on=market(Tier.SERVERLESS))
    assert [at_s for at_s, _ in seen.of(ActionKind.START)] == [0, 181, 391, 601]
    told = [(snapshot.now_ms, bool(job.avoided_offers)) for snapshot, _, _ in seen.snapshots for job in snapshot.jobs]
    assert max(at_ms for at_ms, avoids in told if avoids) <= (601 + 600) * SECOND_MS
    assert any(not avoids for at_ms, avoids in told if at_ms >= (601 + 600) * SECOND_MS)


# Fetching


def test_a_job_begins_when_all_is_there() -> None:
    """36 s of boot, 24 for the image meanwhile, 16 for the model, 8 for the environment, 5 to begin."""
    figures = {"marketplace.image_gb": 3.0, "marketplace.environment_gb": 1.0, "model_gb": 2.0, "begin_s": 5.0}
    seen = play("cheapest-first", task("a", 100), figures=figures)
    assert seen.outcome("a").started_ms == (36 + 24 + 16 + 8 + 5) * SECOND_MS
    assert seen.outcome("a").fetch_ms == (16 + 8 + 5) * SECOND_MS
    assert seen.result.beside["mean_fetch_s"] == 29


def test_the_target_of_a_move_fetches_while_the_source_trains() -> None:
    """Only saving and loading stop the job: 84 s, however much there is to fetch."""
    plain, seen = (moving({"marketplace.environment_gb": gb}) for gb in (0.0, 20.0))
    assert seen.of(ActionKind.MIGRATE) == plain.of(ActionKind.MIGRATE) == [(36, "a")]
    assert seen.outcome("a").finished_ms == plain.outcome("a").finished_ms == (4 + 5_000 + 84) * SECOND_MS
    assert seen.outcome("a").move_ms == 84_000
    assert seen.result.bills["vast"] == plain.result.bills["vast"]
    assert seen.result.bills["modal"] - plain.result.bills["modal"] == round(160 * 2.1e6 / 3600)


def moving(figures: dict[str, Any], work_s: float = 5_000) -> Seen:
    """A job that starts at once, and from 36 s on moves to a machine that fetches 100 GB for 800 s."""
    job = task("a", work_s, kind="interactive")
    return play("allpass", job, figures={"marketplace.environment_gb": 100.0, **figures})


def test_a_job_that_ends_while_its_target_prepares_never_ran_there() -> None:
    seen = moving({}, work_s=600)
    assert seen.course() == [(0, "start"), (0, "provision"), (36, "migrate"), (604, "release")]
    assert seen.outcome("a").finished_ms == 604 * SECOND_MS
    assert (seen.outcome("a").tiers, seen.outcome("a").moves) == ("s", 0)


def test_a_source_that_dies_is_followed_by_its_target_once_that_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The serverless machine lives for 500 s; the target goes on with nothing, as nothing was saved yet."""
    dying(monkeypatch, 500)
    seen = moving({})
    done = seen.outcome("a")
    assert done.faults == 1
    assert done.lost_ms == 500 * SECOND_MS
    assert done.finished_ms == (36 + 800 + 5_000) * SECOND_MS
    assert done.tiers == "sm"


def test_a_target_that_dies_while_it_prepares_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job trains on, and moves to another one."""
    dying(monkeypatch, None, 100)
    seen = moving({})
    assert len(seen.of(ActionKind.MIGRATE)) == 2
    assert seen.outcome("a").lost_ms == 0
    assert seen.outcome("a").finished_ms == (4 + 5_000 + 84) * SECOND_MS


# Saves


def test_saves_take_time() -> None:
    """Every ten minutes, ten seconds each: four before the last step of 3,000 s."""
    seen = play("cheapest-first", task("a", 3_000), figures={"save_s": 10.0})
    assert seen.outcome("a").finished_ms == (36 + 3_000 + 40) * SECOND_MS
    assert seen.outcome("a").saving_ms == 40 * SECOND_MS
    assert seen.outcome("a").lost_ms == 0


def test_what_was_done_since_the_last_save_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dead after 1,500 s: two saves are over at 1,220, and 280 s of work since."""
    dying(monkeypatch, 1_500)
    seen = play("cheapest-first", task("a", 3_000), figures={"save_s": 10.0})
    assert (seen.outcome("a").lost_ms, seen.outcome("a").saving_ms) == (280_000, 20_000 + 20_000)


def test_notice_is_time_for_a_save(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty seconds are enough for a save of ten: only what was done since the notice is lost. Five are not."""
    for notice_s, lost_s in ((30.0, 30), (5.0, 280)):
        dying(monkeypatch, 1_500)
        figures = {"save_s": 10.0, "marketplace.notice_s": notice_s}
        assert play("cheapest-first", task("a", 3_000), figures=figures).outcome("a").lost_ms == lost_s * SECOND_MS


def test_a_job_that_saves_by_itself_loses_what_it_did_since() -> None:
    """It is asked to leave at 304 s of its run's time, saves every 200 s, and so goes on from 200."""
    own = task("a", 3_000, saves=False, own_saves_ms=200_000)
    seen = play("fixed-threshold", own, figures={})
    done = seen.outcome("a")
    assert done.moves == 1
    assert 0 < done.lost_ms < 200_000
    assert done.finished_ms == (4 + 3_000 + 84) * SECOND_MS + done.lost_ms
    views = [job for snapshot, _, _ in seen.snapshots for job in snapshot.jobs]
    assert {job.saves for job in views} == {False}
    assert {job.never_saves for job in views} == {False}
    assert all(0 <= job.step - (job.checkpoint_step or 0) <= 200 for job in views)
    assert max(job.step for job in views) > 200


def test_before_its_first_own_save_no_plan_moves_it() -> None:
    seen = play("fixed-threshold", task("a", 3_000, saves=False, own_saves_ms=2_000_000), figures={})
    assert all(at_s >= 2_000 for at_s, _ in seen.of(ActionKind.MIGRATE))


def test_a_job_that_saves_by_itself_waits_for_a_node_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """256 s; on serverless it would train in vain, as its next save is half an hour away. One that saves when it is
    asked to does not wait."""
    for own_ms, tiers in ((1_800_000, "scc"), (None, "scsc")):
        dying(monkeypatch, None, 4_000)
        job = task("a", 20_000, saves=own_ms is None, own_saves_ms=own_ms)
        seen = play("allpass", job, figures={}, on=market(Tier.SERVERLESS, Tier.CONVENTIONAL))
        assert (seen.outcome("a").faults, seen.outcome("a").tiers) == (1, tiers)


@pytest.mark.parametrize("known", [True, False])
def test_a_job_that_never_saves_begins_again(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not its app is known for it; it is not moved."""
    dying(monkeypatch, 1_000)
    seen = play("fixed-threshold", task("a", 1_500, saves=False, known=known), figures={"save_s": 10.0})
    assert {job.never_saves for snapshot, _, _ in seen.snapshots for job in snapshot.jobs} == {known}
    assert (seen.outcome("a").moves, seen.outcome("a").lost_ms, seen.outcome("a").saving_ms) == (0, 1_000_000, 0)


# Supply


def test_each_node_at_once_costs_more() -> None:
    """Three jobs at one moment take three hosts, and pay for each what it costs."""
    figures = {"marketplace.hosts": 5, "marketplace.dearer_share": 0.5, "marketplace.dearer_most": 9.0}
    seen = play("cheapest-first", *(task(name, 600) for name in "abc"), figures=figures)
    nodes = {node.node_id: node.price_per_hour.micros for snapshot, _, _ in seen.snapshots for node in snapshot.nodes}
    assert sorted(nodes.values()) == [740_000, 1_110_000, 1_480_000]
    assert [at_s for at_s, _ in seen.of(ActionKind.PROVISION)].count(0.0) >= 3


def test_a_drought_is_waited_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is to be had anywhere for two days, long after the deadline: the job runs then, and nobody calls it
    stuck."""
    end_ms = 2 * 86_400_000
    monkeypatch.setattr(Supply, "next_turn_ms", lambda _self, now_ms: end_ms if now_ms < end_ms else None)
    monkeypatch.setattr(Supply, "is_dry", lambda _self, now_ms: now_ms < end_ms)
    monkeypatch.setattr("app.simulator.worlds.supply.Droughts.is_dry", lambda _self, now_ms: now_ms < end_ms)
    seen = play("allpass", task("a", 600, due_s=700), figures={})
    assert seen.outcome("a").started_ms == end_ms + 4_000
    assert seen.outcome("a").missed


# Everything together


@pytest.mark.parametrize("name", policy_names())
@pytest.mark.parametrize("world", [MEASURED, HARSH], ids=["measured", "harsh"])
def test_every_plan_is_possible_and_bills_are_right(name: str, world: Any) -> None:
    """On drawn workloads: no board and no plan breaks a rule, every job gets its work, and the bills are those of the
    machines that were seen, with what disks and traffic cost beside."""
    for seed in (0, 4):
        tasks = with_habits(workload_for(name, seed), world, seed)
        settings = CONFIGS[seed // 3]
        seen = simulate(name, *tasks, on=markets(seed), using=settings, seed=seed, kind=RoughSimulation, world=world)
        assert [one.job_id for one in seen.result.outcomes] == [one.job_id for one in tasks]
        for done, given in zip(seen.result.outcomes, tasks, strict=True):
            assert done.jct_ms >= given.work_ms + done.saving_ms
        more = seen.result.beside
        beside = round((more["storage_usd"] + more["traffic_usd"]) * 1e6)
        assert sum(seen.result.bills.values()) == sum(recomputed_bills(seen).values()) + beside
        assert seen.result.figures()["idle_usd"] > -0.01


def test_the_same_seed_gives_the_same_bytes() -> None:
    """And another one does not."""
    words = {"world": "harsh"}
    one, again = friendly.played("allpass", words), friendly.played("allpass", words)
    assert one == again
    assert friendly.played("allpass", words, seed=4)["plans"] != one["plans"]
