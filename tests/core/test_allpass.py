"""`allpass` by example: each of its six rules, at its edges."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.core.model.job import JobKind, JobState, StartRule
from app.core.model.money import Money
from app.core.model.node import NodeState, Tier
from app.core.model.plan import ActionKind, Plan
from app.core.model.snapshot import JobView, NodeView, RunView, Snapshot
from app.core.policy import MoveCost, PolicyConfig, PolicyState
from tests.core.plans import ask, brief, why
from tests.core.samples import (
    ALL_ACTIONS,
    CLOUD,
    CONFIG,
    MARKET,
    OFFERS,
    RULES,
    SERVERLESS,
    job,
    node,
    offer,
    on_serverless,
    run,
    snapshot,
)

NOW_MS = 100_000_000
HOUR_MS = 3_600_000
ALL = replace(CONFIG, capabilities=ALL_ACTIONS, serverless_limit=100, serverful_limit=100)
STOP_AND_GO = replace(ALL, capabilities=CONFIG.capabilities)
MOVE_MS = 84_000
# From $2.10 to $0.74 a move costs 42 s of both and 42 s of the target: 110.6 s of the gap, 138.2 s with the gain.
WORTH_MS = 138_198
REUSE = "reuse/proj_a"  # what free nodes of the project would have saved
CALM = PolicyState().having(seen_ms=float(NOW_MS), F_ms=300_000.0, ticked_ms=-1.0)


def batch(name: str = "job_a", state: JobState = JobState.QUEUED, **changes: Any) -> JobView:
    """A job of an hour that has just come, has ten hours, and leaves its start to us."""
    values: dict[str, Any] = {
        "submitted_ms": NOW_MS,
        "deadline_ms": NOW_MS + 10 * HOUR_MS,
        "start": StartRule.AUTO,
        "total_run_ms": HOUR_MS,
    }
    return job(name, state, **(values | changes))


def at_now(**parts: Any) -> Snapshot:
    return snapshot(now_ms=NOW_MS, **({"offers": OFFERS} | parts))


def decide(seen: Snapshot, config: PolicyConfig = ALL, state: PolicyState = CALM) -> Plan:
    """Of a world in which nothing has come lately."""
    return ask("allpass", seen, config, state)[0]


def training(ran_ms: int, *, config_nodes: tuple[NodeView, ...] = (), **changes: Any) -> Snapshot:
    """The job has run on serverless for so long."""
    held = batch(state=JobState.RUNNING, **changes)
    live, place = on_serverless(held, 0, running_since_ms=NOW_MS - ran_ms)
    return at_now(jobs=[held], runs=[live], nodes=[place, *config_nodes])


def idle(name: str = "node_x", **changes: Any) -> NodeView:
    return node(name, **({"idle_since_ms": NOW_MS, "price_per_hour": Money.usd("0.74")} | changes))


def coming(in_ms: int, name: str = "node_x") -> NodeView:
    return node(name, state=NodeState.BOOTING, expected_ready_ms=NOW_MS + in_ms)


# 1. An idle node first


@pytest.mark.parametrize(
    "changes", [{}, {"start": StartRule.NOW}, {"kind": JobKind.INTERACTIVE}, {"total_run_ms": None}]
)
def test_an_idle_node_is_taken_by_anyone(changes: dict[str, Any]) -> None:
    """Nothing is quicker or cheaper than a node that is there, whoever asks."""
    plan = decide(at_now(jobs=[batch(**changes)], nodes=[idle()]))
    assert brief(plan) == [("assign", "job_a", "node_x", "0")]
    assert "$0.74/h" in plan.actions[0].reason


# 2. Patience


def test_a_tier_whose_machines_fail_is_passed_over_with_the_reason() -> None:
    """Machines that live for two minutes cost twice their price: the dearer company's is rented."""
    brittle = replace(MARKET, mean_life_ms=120_000)
    waiting = batch(start=StartRule.WHEN_CHEAP)
    seen = replace(at_now(jobs=[waiting]), offers=(CLOUD, brittle, SERVERLESS))
    plan = decide(seen)
    rented = next(action for action in plan.actions if action.kind is ActionKind.PROVISION)
    assert "at $1.29/h" in rented.reason
    assert (
        "machines of local A100 at $0.74/h fail after 120 s on average, so that an hour of work costs $1.50 there"
        in rented.reason
    )


def test_a_long_batch_job_waits_for_a_fresh_node() -> None:
    """An hour's run gains from waiting 36 s: a node is rented and serverless is not."""
    plan = decide(at_now(jobs=[batch()]))
    assert brief(plan) == [("provision", "job_a", "ask")]
    assert "ready in about 36 s" in plan.actions[0].reason


@pytest.mark.parametrize(
    "changes",
    [
        {"start": StartRule.NOW},
        {"kind": JobKind.INTERACTIVE},
        {"total_run_ms": None},
        {"total_run_ms": WORTH_MS},  # a move would not pay either
        {"deadline_ms": NOW_MS + 359_999},  # 36 s are more than a tenth of its time
        {"submitted_ms": NOW_MS - 120_001},  # has waited enough
    ],
)
def test_everybody_else_starts_at_once(changes: dict[str, Any]) -> None:
    """Now, interactive, unknown, short, urgent, or out of patience: serverless."""
    plan = decide(at_now(jobs=[batch(**changes)]))
    assert ("start", "job_a", "fn") in brief(plan)


@pytest.mark.parametrize(
    "changes",
    [
        {"total_run_ms": WORTH_MS + 1},
        {"deadline_ms": NOW_MS + 360_000},
        {"submitted_ms": NOW_MS - 120_000, "deadline_ms": NOW_MS + 10 * HOUR_MS},
    ],
)
def test_the_edges_of_patience(changes: dict[str, Any]) -> None:
    """Just long enough, just not urgent, just still patient: it waits."""
    assert brief(decide(at_now(jobs=[batch(**changes)]))) == [("provision", "job_a", "ask")]


def lost(slack_ms: int = HOUR_MS, **changes: Any) -> JobView:
    """A job that was submitted long ago, and has just lost its machine; so much more than its work and two moves fits
    before its deadline."""
    left_ms = HOUR_MS
    values: dict[str, Any] = {
        "state": JobState.WAITING,
        "submitted_ms": 0,
        "total_run_ms": left_ms,
        "deadline_ms": NOW_MS + left_ms * 5 // 4 + 2 * MOVE_MS + slack_ms,
    }
    return batch(**(values | changes))


def test_a_job_that_lost_its_place_is_patient_again() -> None:
    """However long ago it was submitted, it waits for a fresh node as it did at first; and again after each loss."""
    assert brief(decide(at_now(jobs=[lost()]))) == [("provision", "job_a", "ask")]
    assert brief(decide(at_now(jobs=[lost()], nodes=[coming(20_000)]))) == []


@pytest.mark.parametrize(
    "job",
    [
        lost(-1),
        lost(start=StartRule.NOW),
        lost(kind=JobKind.INTERACTIVE),
        lost(total_run_ms=None),
        lost(state=JobState.QUEUED),
    ],
    ids=["no time to spare", "now", "interactive", "unknown, and nothing is kept", "never had a place"],
)
def test_who_goes_back_to_serverless_at_once(job: JobView) -> None:
    assert ("start", "job_a", "fn") in brief(decide(at_now(jobs=[job])))


def test_of_a_job_without_a_prediction_as_much_is_left_as_it_has_done() -> None:
    """An hour is worth the wait, a minute is not; the same where it has outlived its prediction."""
    for total_ms in (None, 60_000):
        for done_ms, first in ((HOUR_MS, "provision"), (60_000 * 5 // 4 + 1, "start")):
            job = lost(total_run_ms=total_ms, done_ms=done_ms)
            assert brief(decide(at_now(jobs=[job])))[0][0] == first, (total_ms, done_ms)


def test_it_asks_again_when_its_time_to_spare_is_over() -> None:
    plan = decide(at_now(jobs=[lost(5_000)], nodes=[coming(20_000)]))
    assert (brief(plan), plan.wake_at_ms) == ([], NOW_MS + 5_001)


@pytest.mark.parametrize(("late_ms", "first"), [(60_000, []), (60_001, ["start"])])
def test_a_node_that_does_not_come_is_not_waited_for_without_end(late_ms: int, first: list[str]) -> None:
    """A minute beyond when it was expected, whoever lost a place starts on serverless."""
    plan = decide(at_now(jobs=[lost()], nodes=[coming(-late_ms)]))
    assert [kind for kind, *_ in brief(plan)][:1] == first
    if not first:
        assert plan.wake_at_ms == NOW_MS + 1


def test_nobody_waits_for_more_than_a_minute() -> None:
    """A node that takes 60 s is waited for, one of 61 s is not."""
    for startup_ms, first in ((60_000, "provision"), (60_001, "start")):
        offers = [SERVERLESS, replace(MARKET, startup_ms=startup_ms)]
        assert brief(decide(at_now(jobs=[batch()], offers=offers)))[0][0] == first
    assert brief(decide(at_now(jobs=[batch()], offers=[SERVERLESS, CLOUD])))[0][0] == "start"


def test_waiting_may_hardly_take_longer_than_moving() -> None:
    """Where a move takes 5 s, 36 s of waiting cost 28 s more: a fiftieth of 1400 s, and too much of less."""
    quick = replace(ALL, moves=MoveCost(2_500, 2_500))
    for total_ms, first in ((1_400_000, "provision"), (1_399_999, "start")):
        assert brief(decide(at_now(jobs=[batch(total_run_ms=total_ms)]), quick))[0][0] == first


def test_what_several_gpus_save_by_waiting_counts_for_each() -> None:
    """Eight of them save as much in an eighth of the time, and may wait for eight times the share of it."""
    eight = {"resources": replace(batch().resources, gpus_min=8, gpus_max=8)}
    offers = [replace(offer, gpu_count=8) for offer in (SERVERLESS, MARKET)]
    for changes, first in (
        ({"total_run_ms": WORTH_MS // 8 + 1}, "provision"),
        ({"total_run_ms": WORTH_MS // 8}, "start"),
        ({"deadline_ms": NOW_MS + 359_999, "total_run_ms": 200_000}, "provision"),
    ):
        asked = at_now(jobs=[batch(**{**eight, **changes})], offers=offers)
        assert brief(decide(asked))[0][0] == first, changes


def test_a_node_that_comes_for_nobody_is_waited_for() -> None:
    """By an unknown job as long as serverless takes to start, by a known one for half of its run time."""
    unknown = {"total_run_ms": None}
    assert brief(decide(at_now(jobs=[batch(**unknown)], nodes=[coming(3_000)]))) == []
    assert brief(decide(at_now(jobs=[batch(**unknown)], nodes=[coming(3_001)])))[0][0] == "start"
    known = {"total_run_ms": 40_000}
    assert brief(decide(at_now(jobs=[batch(**known)], nodes=[coming(20_000)]))) == []
    assert brief(decide(at_now(jobs=[batch(**known)], nodes=[coming(20_001)])))[0][0] == "start"
    plan = decide(at_now(jobs=[batch(**known)], nodes=[coming(20_000)]))
    assert "it boots, expected in 20 s" in why(plan)


def test_one_who_waits_gives_up_on_a_node_that_is_late() -> None:
    """The loop is woken for it: two minutes after it came, a job starts on serverless, whatever it counted on."""
    waiting = batch(submitted_ms=NOW_MS - 60_000)
    plan = decide(at_now(jobs=[waiting], nodes=[coming(-1_000)]))
    assert (brief(plan), plan.wake_at_ms is not None) == ([], True)
    seen = at_now(jobs=[waiting], nodes=[coming(-1_000)])
    later = replace(seen, now_ms=waiting.submitted_ms + 120_001)
    assert ("start", "job_a", "fn") in brief(decide(later))


def test_when_cheap_never_starts_on_serverless() -> None:
    """Its user said so."""
    assert brief(decide(at_now(jobs=[batch(start=StartRule.WHEN_CHEAP)]))) == [("provision", "job_a", "ask")]


# 3. Break-even


def test_an_unknown_job_proves_itself_first() -> None:
    """A job that nobody knows moves when it has run for as long as would pay for the move, and is woken for it."""
    young = decide(training(WORTH_MS, total_run_ms=None))
    assert (brief(young), young.wake_at_ms) == ([], NOW_MS + 1)
    plan = decide(training(WORTH_MS + 1, total_run_ms=None))
    assert brief(plan) == [("provision", "job_a", "ask")]
    assert plan.actions[0].reason.endswith("the job moves there when it is ready")


def test_and_never_before_a_minute() -> None:
    """Where moving costs next to nothing, a minute of running is asked for all the same."""
    quick = replace(ALL, moves=MoveCost(10, 10))
    assert brief(decide(training(59_999, total_run_ms=None), quick)) == []
    assert brief(decide(training(60_000, total_run_ms=None), quick)) != []


def test_a_known_job_moves_at_once_unless_nearly_done() -> None:
    """What is left decides: more than break-even moves, break-even or less stays, until it outlives its prediction."""
    assert brief(decide(training(0, total_run_ms=WORTH_MS + 1))) == [("provision", "job_a", "ask")]
    plan = decide(training(0, total_run_ms=WORTH_MS))
    assert (brief(plan), plan.wake_at_ms) == ([], NOW_MS + WORTH_MS * 5 // 4 + 1)
    assert brief(decide(training(HOUR_MS - WORTH_MS))) == []


def test_a_job_that_outlives_its_prediction_moves_like_one_without() -> None:
    """An app's usual run is a minute of debugging, and this one is the night's: until a quarter more than predicted has
    run it may end at any moment, then as much is known of it as of any other."""
    unknown_moves_ms = WORTH_MS + 1
    assert brief(decide(training(unknown_moves_ms, total_run_ms=None))) == [("provision", "job_a", "ask")]
    assert brief(decide(training(unknown_moves_ms, total_run_ms=100_000))) == [("provision", "job_a", "ask")]
    assert brief(decide(training(unknown_moves_ms, total_run_ms=unknown_moves_ms))) == []
    assert brief(decide(training(125_000, total_run_ms=100_000))) == []


def test_the_pause_is_a_small_part_of_what_is_left() -> None:
    """Where a move may be a tenth of the remaining time, 84 s of it need more than 840 s."""
    rare = replace(ALL, rules=replace(RULES, move_pause_share=0.1))
    assert brief(decide(training(0, total_run_ms=840_000), rare)) == []
    assert brief(decide(training(0, total_run_ms=840_001), rare)) == [("provision", "job_a", "ask")]


@pytest.mark.parametrize(
    ("spare_ms", "moves"), [(MOVE_MS, True), (MOVE_MS - 1, False), (0, False), (-1, True), (-HOUR_MS, True)]
)
def test_a_job_on_time_is_never_made_late(spare_ms: int, moves: bool) -> None:
    """It stays where the move would cost it its deadline; one that is late anyway, or has time, moves."""
    plan = decide(training(0, deadline_ms=NOW_MS + HOUR_MS + spare_ms))
    assert bool(plan.actions) is moves


@pytest.mark.parametrize("spare_ms", [-1, 0, MOVE_MS - 1, MOVE_MS])
def test_nobody_asks_to_be_woken_without_end(spare_ms: int) -> None:
    """What is left of an unknown job grows as it runs: between the two answers the loop sleeps until they change."""
    ran_ms = 200_000
    plan = decide(training(ran_ms, total_run_ms=None, deadline_ms=NOW_MS + ran_ms + spare_ms))
    if not plan.actions:
        assert plan.wake_at_ms == NOW_MS + spare_ms // 2 + 1


def test_it_moves_when_the_node_is_ready() -> None:
    """Make before break: it trains on while the node boots, and goes there when it is there."""
    assert brief(decide(training(0, config_nodes=(coming(9_000),)))) == []
    plan = decide(training(0, config_nodes=(idle(),)))
    assert brief(plan) == [("migrate", "job_a", "node_x", "0")]
    assert plan.actions[0].reason == (
        "moves to node_x (local A100, $0.74/h): about 60 min are left, and it costs less there"
    )


def test_where_the_world_cannot_do_that_it_stops_and_goes() -> None:
    """Without `migrate` it is asked to save and leave for the node that is ready, which is kept for it."""
    plan = decide(training(0, config_nodes=(idle(),)), STOP_AND_GO)
    assert brief(plan) == [("demote", "job_a", "run_a")]
    assert "leaves for node_x: about 60 min are left" in plan.actions[0].reason


def test_one_node_is_for_one_job() -> None:
    """Of two that would move, the earlier deadline takes the node that is there, and another is rented."""
    seen = training(0, config_nodes=(idle(),))
    other = batch("job_b", JobState.RUNNING, deadline_ms=NOW_MS + 9 * HOUR_MS)
    live, place = on_serverless(other, 0, running_since_ms=NOW_MS)
    seen = replace(seen, jobs=(*seen.jobs, other), runs=(*seen.runs, live), nodes=(*seen.nodes, place))
    assert brief(decide(seen)) == [("migrate", "job_b", "node_x", "0"), ("provision", "job_a", "ask")]


def test_no_move_to_what_is_not_cheaper() -> None:
    """At equal prices nothing is ever gained."""
    equal = [SERVERLESS, replace(MARKET, price_per_hour=SERVERLESS.price_per_hour)]
    assert brief(decide(replace(training(0), offers=tuple(equal)))) == []


@pytest.mark.parametrize("changes", [{"leaving": True}, {"state": JobState.STARTING}])
def test_who_leaves_or_has_not_begun_is_let_be(changes: dict[str, Any]) -> None:
    """A job that pauses or ends, or whose code does not run yet, is not moved."""
    seen = training(0)
    assert brief(decide(replace(seen, jobs=(replace(seen.jobs[0], **changes),)))) == []


# 4. Chase


def renting(price: str, since_ms: int, **changes: Any) -> tuple[JobView, RunView, NodeView]:
    held = batch(state=JobState.RUNNING, **({"total_run_ms": 20 * HOUR_MS, "deadline_ms": 10**9} | changes))
    place = node("node_r", free_gpus=(), price_per_hour=Money.usd(price))
    return held, run("run_a", "job_a", "node_r", tier=Tier.MARKETPLACE, running_since_ms=since_ms), place


REST_MS = MOVE_MS * 200  # such moves may cost half a percent of a job's time


def chasing(price: str, ran_ms: int = REST_MS, nodes: tuple[NodeView, ...] = (), **changes: Any) -> Plan:
    held, live, place = renting(price, NOW_MS - ran_ms, **changes)
    return decide(at_now(jobs=[held], runs=[live], nodes=[place, *nodes]))


def test_a_price_a_tenth_lower_is_chased() -> None:
    """A node is rented for it, and the run moves when that is ready; a smaller difference is let be."""
    assert brief(chasing("0.83")) == [("provision", "job_a", "ask")]
    assert brief(chasing("0.83", nodes=(idle(),))) == [("migrate", "job_a", "node_x", "0")]
    assert brief(chasing("0.82")) == []


def test_machines_that_fail_are_left_for_those_that_do_not() -> None:
    """At the same price: an hour of work costs a quarter more where machines live for ten minutes."""
    held, live, place = renting("0.74", NOW_MS - REST_MS)
    brittle = replace(place, mean_life_ms=600_000)
    assert brief(decide(at_now(jobs=[held], runs=[live], nodes=[place, idle()]))) == [("release", "node_x")]
    left = decide(at_now(jobs=[held], runs=[live], nodes=[brittle, idle()]))
    assert brief(left) == [("migrate", "job_a", "node_x", "0")]


def test_a_chase_never_leads_back_or_to_a_dearer_node() -> None:
    """Room on its own node, or on one that is not a tenth cheaper, is no target, whatever the market asks."""
    held, live, place = renting("4.00", NOW_MS - REST_MS)
    half = replace(place, gpu_count=4, free_gpus=(2, 3), cpus=32)  # $1.00 for its GPU, two more are free
    assert brief(decide(at_now(jobs=[held], runs=[live], nodes=[half]))) == [("provision", "job_a", "ask")]
    assert brief(chasing("1.00", nodes=(node("node_x", price_per_hour=Money.usd("0.95")),)))[0] == (
        "provision",
        "job_a",
        "ask",
    )
    assert brief(chasing("1.00", nodes=(idle(price_per_hour=Money.usd("0.90")),))) == [
        ("migrate", "job_a", "node_x", "0")
    ]


def test_nobody_leaves_serverless_for_a_dearer_node() -> None:
    """A free node that costs more than the place it has does not tempt a job, though the market is cheap."""
    dear = node("node_x", price_per_hour=Money.usd("2.10"))
    assert brief(decide(training(0, config_nodes=(dear,)))) == [("provision", "job_a", "ask")]


def test_what_was_rented_stays_the_target() -> None:
    """A node that comes is counted on although its offer is gone, as an offer is once it is taken."""
    booting = replace(coming(20_000), price_per_hour=Money.usd("0.74"))
    held, live, place = renting("1.29", NOW_MS - REST_MS)
    gone = at_now(jobs=[held], runs=[live], nodes=[place, booting], offers=[SERVERLESS, CLOUD])
    assert brief(decide(gone)) == []
    there = replace(gone, nodes=(place, idle()))
    assert brief(decide(there)) == [("migrate", "job_a", "node_x", "0")]
    riding = replace(training(0, config_nodes=(booting,)), offers=(SERVERLESS,))
    assert brief(decide(riding)) == []
    assert brief(decide(replace(riding, nodes=(riding.nodes[0], idle())))) == [("migrate", "job_a", "node_x", "0")]


def test_it_rests_between_chases() -> None:
    """A run that has just moved stays for 200 times what a move takes, and is woken then."""
    plan = chasing("1.50", REST_MS - 1)
    assert (brief(plan), plan.wake_at_ms) == ([], NOW_MS + 1)
    assert brief(chasing("1.50", REST_MS)) != []


def test_a_chase_has_to_pay() -> None:
    """Near its end, and where it would make the job late, it stays where it is."""
    nearly = REST_MS + 300_000
    assert brief(chasing("1.00", total_run_ms=nearly)) == []
    assert brief(chasing("1.00", total_run_ms=REST_MS + HOUR_MS)) != []
    assert brief(chasing("1.00", total_run_ms=REST_MS + HOUR_MS, deadline_ms=NOW_MS + HOUR_MS)) == []


def test_no_chase_without_make_before_break() -> None:
    """Where a run would have to stop first, it stays."""
    held, live, place = renting("1.50", NOW_MS - REST_MS)
    assert brief(decide(at_now(jobs=[held], runs=[live], nodes=[place]), STOP_AND_GO)) == []


# 5. At the limit


FULL = replace(ALL, serverful_limit=1)
BUSY = node("node_r", free_gpus=())
F_MS = 300_000


TICKED = CALM.having(ticked_ms=float(NOW_MS))


def at_the_limit(ran_ms: int, **changes: Any) -> Plan:
    return decide(training(ran_ms, config_nodes=(BUSY,), **changes), FULL, TICKED)


def test_after_f_a_job_with_time_left_makes_room() -> None:
    """All nodes are taken: it has had F of serverless, and saves to wait for a node; not a millisecond before."""
    early = at_the_limit(F_MS - 1_000, total_run_ms=2 * HOUR_MS)
    assert (brief(early), early.wake_at_ms) == ([], NOW_MS + 1_000)
    plan = at_the_limit(F_MS, total_run_ms=2 * HOUR_MS)
    assert brief(plan) == [("demote", "job_a", "run_a")]
    assert "has run on serverless for 300 s, budget F is 300 s, and all nodes are taken" in plan.actions[0].reason


@pytest.mark.parametrize(("more_ms", "parks"), [(0, True), (-1, False)])
def test_only_with_time_to_spare(more_ms: int, parks: bool) -> None:
    """Two moves, work that takes a quarter longer than predicted, and a wait of half of it fit before the deadline."""
    left_ms = 2 * HOUR_MS
    deadline_ms = NOW_MS + left_ms * 5 // 4 + 2 * MOVE_MS + left_ms // 2 + more_ms
    plan = at_the_limit(F_MS, total_run_ms=left_ms + F_MS, deadline_ms=deadline_ms)
    assert bool(plan.actions) is parks


@pytest.mark.parametrize(("more_ms", "parks"), [(0, True), (-1, False)])
def test_a_short_rest_is_not_worth_a_wait_of_less_than_ten_minutes(more_ms: int, parks: bool) -> None:
    """What a wait has to be able to last does not shrink with the work below `park_slack_ms`."""
    left_ms = 600_000
    deadline_ms = NOW_MS + left_ms * 5 // 4 + 2 * MOVE_MS + 600_000 + more_ms
    plan = at_the_limit(F_MS, total_run_ms=left_ms + F_MS, deadline_ms=deadline_ms)
    assert bool(plan.actions) is parks


@pytest.mark.parametrize("asked", [{"start": StartRule.NOW}, {"kind": JobKind.INTERACTIVE}])
def test_who_asked_not_to_wait_is_never_taken_off_serverless_for_money(asked: dict[str, Any]) -> None:
    """At the limit, too: neither is it taken off, nor kept off once it has lost its place."""
    assert brief(at_the_limit(F_MS, total_run_ms=2 * HOUR_MS, **asked)) == []
    assert brief(decide(parked(HOUR_MS, **asked), FULL)) == [("start", "job_a", "fn")]


def parked(slack_ms: int, used_ms: int = F_MS, **changes: Any) -> Snapshot:
    left_ms = HOUR_MS
    waiting = batch(
        state=JobState.WAITING,
        serverless_used_ms=used_ms,
        done_ms=used_ms,
        total_run_ms=left_ms + used_ms,
        deadline_ms=NOW_MS + left_ms * 5 // 4 + 2 * MOVE_MS + slack_ms,
        submitted_ms=0,
        **changes,
    )
    return at_now(jobs=[waiting], nodes=[BUSY])


def test_a_parked_job_goes_back_when_its_deadline_is_near() -> None:
    """It waits while two moves, its work and a quarter of that still fit; then it starts on serverless again."""
    plan = decide(parked(5_000), FULL)
    assert (brief(plan), plan.wake_at_ms) == ([], NOW_MS + 5_001)
    assert "1 of 1 serverful nodes are rented" in why(plan)
    assert brief(decide(parked(-1), FULL)) == [("start", "job_a", "fn")]


def test_a_parked_job_waits_for_the_node_that_comes() -> None:
    """However long ago it was submitted: the node that was rented for it is not given up for serverless."""
    waits = parked(5_000)
    plan = decide(replace(waits, nodes=(coming(20_000),)), FULL)
    assert brief(plan) == []
    assert "it boots, expected in 20 s" in why(plan)
    late = replace(parked(-1), nodes=(coming(20_000),))
    assert ("start", "job_a", "fn") in brief(decide(late, FULL))


def test_who_has_budget_left_is_not_parked() -> None:
    """At the limit a job that lost its place before F starts on serverless again."""
    assert brief(decide(parked(HOUR_MS, used_ms=F_MS - 1), FULL, TICKED)) == [("start", "job_a", "fn")]


def test_a_rise_of_f_sends_nobody_back() -> None:
    """Whoever was taken off when F was lower waits on: else it would be taken off again at the next fall, and again."""
    _, state = ask("allpass", parked(HOUR_MS), FULL, TICKED.having(F_ms=float(F_MS)))
    risen = state.having(F_ms=4.0 * F_MS)
    assert brief(decide(parked(HOUR_MS), FULL, risen)) == []
    assert brief(decide(parked(HOUR_MS, used_ms=F_MS - 1), FULL, risen)) == [("start", "job_a", "fn")]


def test_with_room_among_the_nodes_f_counts_anew() -> None:
    """The least F is remembered only for as long as the nodes are short."""
    _, state = ask("allpass", parked(HOUR_MS), FULL, TICKED.having(F_ms=float(F_MS)))
    _, later = ask("allpass", parked(HOUR_MS), replace(FULL, serverful_limit=2), state.having(F_ms=4.0 * F_MS))
    assert later.get("parked_ms", 0) == 4 * F_MS


def test_one_who_finds_serverless_full_does_not_spin() -> None:
    """Late and with every place taken, a job waits for what happens, not for the next millisecond."""
    full = replace(FULL, serverless_limit=1)
    seen = parked(-1)
    other = node("node_s", Tier.SERVERLESS, free_gpus=())
    plan = decide(replace(seen, nodes=(*seen.nodes, other)), full)
    assert brief(plan) == []
    assert plan.wake_at_ms == NOW_MS + FULL.tick_ms
    assert why(plan) == "waits for a serverless place: 1 of 1 are taken"


def test_f_follows_the_pressure() -> None:
    """F rises each tick while too much is due for the nodes there are; at the limit no tick is missed."""
    seen = training(0, config_nodes=(BUSY,), total_run_ms=2 * HOUR_MS, deadline_ms=NOW_MS + 600_000)
    _, state = ask("allpass", seen, FULL, CALM)
    assert state.get("F_ms", 0) == 400_000.0
    _, same = ask("allpass", replace(seen, now_ms=NOW_MS + FULL.tick_ms - 1), FULL, state)
    assert same.get("F_ms", 0) == state.get("F_ms", 0)
    _, more = ask("allpass", replace(seen, now_ms=NOW_MS + FULL.tick_ms), FULL, state)
    assert more.get("F_ms", 0) > state.get("F_ms", 0)
    later = replace(seen, now_ms=NOW_MS + 2 * FULL.tick_ms - 1)
    assert ask("allpass", later, FULL, more)[0].wake_at_ms == NOW_MS + 2 * FULL.tick_ms
    rested = replace(later, jobs=(replace(seen.jobs[0], state=JobState.PAUSED),), runs=(), nodes=(BUSY,))
    assert ask("allpass", rested, ALL, more)[0].wake_at_ms is None  # where nodes are not short F decides nothing


# 6. The pool of free nodes


def test_an_idle_node_goes_back_at_once() -> None:
    """Nobody has come lately, so nobody is waited for."""
    plan = decide(at_now(nodes=[idle()]))
    assert brief(plan) == [("release", "node_x")]
    assert "$0.74/h" in plan.actions[0].reason


def test_a_node_that_boots_for_nobody_is_given_up() -> None:
    """So is one that has not come yet."""
    assert brief(decide(at_now(nodes=[coming(9_000)]))) == [("release", "node_x")]


def flow(dollars_per_hour: float) -> PolicyState:
    """Free nodes would have saved so much, lately."""
    return CALM.having(**{REUSE: 1_000_000 * dollars_per_hour})


def test_a_warm_node_is_kept_while_the_flow_lasts() -> None:
    """Twice its price: for one half-life of a minute, and the loop is woken then; less than its price: not at all."""
    plan = decide(at_now(nodes=[idle()]), state=flow(1.48))
    assert (brief(plan), plan.wake_at_ms) == ([], NOW_MS + 60_000)
    assert brief(decide(at_now(nodes=[idle()]), state=flow(0.74))) == [("release", "node_x")]
    later = replace(at_now(nodes=[idle()]), now_ms=NOW_MS + 60_000)
    assert brief(decide(later, state=flow(1.48))) == [("release", "node_x")]


def test_each_further_node_needs_as_much_again() -> None:
    """Of three free nodes, a flow of 2.5 times the price keeps two, the cheapest."""
    nodes = [idle("node_x"), idle("node_y"), idle("node_z", price_per_hour=Money.usd("0.75"))]
    assert brief(decide(at_now(nodes=nodes), state=flow(1.85))) == [("release", "node_z")]


def test_a_free_node_with_an_image_of_its_own_takes_no_other_s_place() -> None:
    """It helps only jobs that name its image, which no flow foretells: it goes back, and the usual one is kept."""
    nodes = [idle("node_o", image="own:1"), idle("node_x")]
    assert brief(decide(at_now(nodes=nodes), state=flow(1.48))) == [("release", "node_o")]
    assert brief(decide(at_now(nodes=nodes[::-1]), state=flow(1.48))) == [("release", "node_o")]


def test_no_node_is_kept_for_ever() -> None:
    """However much comes, a node that has been idle for ten minutes goes back."""
    nearly, over = (idle(idle_since_ms=NOW_MS - ms) for ms in (599_999, 600_000))
    plan = decide(at_now(nodes=[nearly]), state=flow(1_000))
    assert (brief(plan), plan.wake_at_ms) == ([], NOW_MS + 1)
    assert brief(decide(at_now(nodes=[over]), state=flow(1_000))) == [("release", "node_x")]


def test_what_comes_makes_the_flow() -> None:
    """A new job that would have used a free node adds to it; it counts once, and halves in a minute."""
    seen = at_now(jobs=[batch(start=StartRule.NOW, total_run_ms=100_000)])
    before = CALM.having(seen_ms=float(NOW_MS - 1))
    _, after = ask("allpass", seen, ALL, before)
    saved = after.get(REUSE, 0)
    # 100 s are saved at a difference of $1.36, or a move at most (78 s of it and 42 s of $0.74), and 3 s of $2.10.
    dollars = (min(100 * 1.36, 78 * 1.36 + 42 * 0.74) + 3 * 2.10) / 3600
    assert saved == pytest.approx(1_000_000 * dollars * 3600 / (60 / 0.6931471805599453), rel=1e-6)
    _, again = ask("allpass", replace(seen, now_ms=NOW_MS + 60_000), ALL, after)
    assert again.get(REUSE, 0) == pytest.approx(saved / 2)
    _, patient = ask("allpass", at_now(jobs=[batch()]), ALL, before)
    assert patient.get(REUSE, 0) == 0.0  # would have waited for a node of its own


def test_nodes_are_rented_ahead() -> None:
    """Where jobs come often, one is rented in the name of the newest; not where the next finds one free."""
    young = batch(total_run_ms=None)
    plan = decide(at_now(jobs=[young]), state=flow(5.0))
    assert brief(plan) == [("start", "job_a", "fn"), ("provision", "job_a", "ask")]
    assert plan.actions[1].reason.endswith("jobs come so often that the next ones will use it")
    assert brief(decide(at_now(jobs=[young]), state=flow(0.5))) == [("start", "job_a", "fn")]
    with_one = at_now(jobs=[young], nodes=[idle("node_x"), idle("node_y")])
    assert brief(decide(with_one, state=flow(1.0))) == [("assign", "job_a", "node_x", "0")]


# Words


def test_every_reason_names_numbers() -> None:
    """Whatever is done, its reason says at which price, for how long, or how many."""
    held, live, place = renting("1.50", NOW_MS - REST_MS)
    riding = batch("job_b", JobState.RUNNING, total_run_ms=2 * HOUR_MS)
    ride, seat = on_serverless(riding, 0, running_since_ms=NOW_MS - F_MS)
    jobs = [held, riding, batch("job_c"), batch("job_d", start=StartRule.NOW)]
    nodes = [place, seat, idle("node_x"), idle("node_y", gpu_type="T4", cpus=0)]
    seen = at_now(jobs=jobs, runs=[live, ride], nodes=nodes)
    plans = [decide(seen, config) for config in (ALL, FULL, STOP_AND_GO, replace(ALL, serverful_limit=3))]
    kinds = {action.kind for plan in plans for action in plan.actions}
    assert kinds >= {ActionKind.START, ActionKind.ASSIGN, ActionKind.PROVISION, ActionKind.RELEASE, ActionKind.DEMOTE}
    for plan in plans:
        for text in [action.reason for action in plan.actions] + [one.reason for one in plan.waiting]:
            assert any(letter.isdigit() for letter in text), text
            assert "$" in text or " min" in text or " s" in text, text


def test_offers_too_small_are_no_target() -> None:
    """A run stays where nothing rented could hold it, and a job that nothing holds is told what there is."""
    small = [offer("t4", Tier.MARKETPLACE, "0.10", gpu_type="T4", cpus=0)]
    assert brief(decide(replace(training(HOUR_MS), offers=tuple(small)))) == []
    assert "no offer has GPU of any type" in why(decide(at_now(jobs=[batch()], offers=small)))
