"""`allpass` with merging: what becomes one, who waits for whom, and what is undone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.core.board import Board
from app.core.codec import dumps, loads
from app.core.invariants import plan_breaches, snapshot_breaches
from app.core.merging.transfer import GainLine
from app.core.model.job import Caps, JobState
from app.core.model.merge import MergeMode
from app.core.model.money import Money
from app.core.model.node import NodeState
from app.core.model.plan import ActionKind, Assign, Demote, Merge, Migrate, Plan, Provision, Split
from app.core.model.snapshot import JobView, Snapshot
from app.core.policy import PolicyConfig, PolicyState
from tests.core.merging.mergeable import HOUR_MS, MINUTE_MS, NOW_MS, OTHER, merge_of, mergeable
from tests.core.plans import ask, why
from tests.core.samples import ALL_ACTIONS, CONFIG, OFFERS, job, node, offer, on_serverless, run, snapshot

ON = replace(CONFIG, capabilities=ALL_ACTIONS, serverless_limit=100, serverful_limit=100, merging=True)
PAIRS = (*OFFERS, offer("two", gpu_count=2))
# As after many merges of tasks as alike as these, which took half as long again alone.
LEARNED = GainLine(prior_count=1e-6, count=50, sum_score=50.0, sum_gain=25.0, sum_square=50.0, sum_product=25.0)


def seen_with(*jobs: JobView, **changes: Any) -> Snapshot:
    values: dict[str, Any] = {"gains": LEARNED, "gains_together": LEARNED, "now_ms": NOW_MS}
    return replace(snapshot(jobs=jobs, offers=PAIRS), **(values | changes))


def merged(plan: Plan) -> list[tuple[str, str, MergeMode, int]]:
    return [(one.job_id, one.companion_id, one.mode, one.gpus) for one in plan.actions if isinstance(one, Merge)]


def decided(seen: Snapshot, config: PolicyConfig = ON, state: PolicyState | None = None) -> Plan:
    """The plan, held to the rules of all plans."""
    assert snapshot_breaches(seen) == []
    plan = ask("allpass", seen, config, state)[0]
    assert plan_breaches(seen, plan, config) == []
    return plan


TWO = mergeable("job_a"), mergeable("job_b")
FIXED = mergeable("job_a", recipe={"ends_early": False})


def test_two_that_help_each_other_become_one() -> None:
    """Both wait and gain a half: they are trained together on two GPUs, placed by the next decision, and the reason
    has what it takes and costs, and what apart."""
    plan = decided(seen_with(*TWO))
    assert merged(plan) == [("job_a", "job_b", MergeMode.TOGETHER, 2)]
    assert len(plan.actions) == 1
    reason = plan.actions[0].reason
    assert reason.startswith(
        "job_a and job_b are trained together on 2 GPUs (score 1.00, 50% faster expected); done in"
    )
    assert "apart in 30 min" in reason


@pytest.mark.parametrize(
    ("config", "jobs"),
    [
        (replace(ON, merging=False), TWO),
        (replace(ON, capabilities=CONFIG.capabilities), TWO),
        (ON, (TWO[0], mergeable("job_b", recipe={"pull": OTHER}))),
        (ON, (TWO[0], mergeable("job_b", recipe={"pull": (), "profile_tries": 1}))),
        (ON, (TWO[0], mergeable("job_b", recipe={"tokenizer": "other"}))),
        (ON, (TWO[0], mergeable("job_b", recipe={"shares": False}))),
        (ON, (TWO[0], mergeable("job_b", project_id="proj_b"))),
        (ON, (TWO[0], mergeable("job_b", total_run_ms=5 * MINUTE_MS))),
        (ON, (TWO[0], job("job_b"))),
        (ON, (mergeable("job_a", turn_has_come=True), TWO[1])),
        (ON, (FIXED, mergeable("job_b", recipe={"ends_early": False}))),
    ],
    ids=[
        "off",
        "not to be enacted",
        "unlike",
        "not profiled",
        "tokenizer",
        "opted out",
        "project",
        "short",
        "script",
        "its turn has come",
        "fixed steps",
    ],
)
def test_all_others_are_placed_as_ever(config: PolicyConfig, jobs: tuple[JobView, ...]) -> None:
    """Without a merge every job gets what it would have got without merging."""
    seen = seen_with(*jobs)
    plan = decided(seen, config)
    assert merged(plan) == []
    assert [replace(one, reason="") for one in plan.actions] == [
        replace(one, reason="") for one in decided(seen, replace(config, merging=False)).actions
    ]


def test_more_than_may_be_looked_at_are_placed_apart() -> None:
    """Beyond the limit of one decision jobs are not merged, but all are placed."""
    many = [mergeable(f"job_{index}") for index in range(6)]
    config = replace(ON, rules=replace(ON.rules, merge_most_jobs=2))
    assert len(merged(decided(seen_with(*many)))) == 3
    assert len(merged(decided(seen_with(*many), config))) == 1  # and no rule is broken: nobody is forgotten


def training(name: str, left_ms: int, **changes: Any) -> dict[str, Any]:
    """A job on a rented node with so much left, its run, and the node."""
    total = 10 * HOUR_MS
    held = mergeable(name, JobState.RUNNING, total_run_ms=total, submitted_ms=0, **changes)
    place = node(f"node_{name}", state=NodeState.READY, free_gpus=())
    on = run(
        f"run_{name}", name, place.node_id, tier=place.tier, running_since_ms=NOW_MS - (total - left_ms), created_ms=0
    )
    return {"job": held, "run": on, "node": place}


def test_in_turn_behind_one_that_is_nearly_done() -> None:
    """A long job starts where one that trains ends, from what that has learned; a short one does not wait for it."""
    lead = training("job_l", MINUTE_MS)
    long = mergeable("job_a", total_run_ms=20 * HOUR_MS, deadline_ms=NOW_MS + 100 * HOUR_MS)
    seen = seen_with(lead["job"], long, runs=(lead["run"],), nodes=(lead["node"],))
    plan = decided(seen)
    assert merged(plan) == [("job_l", "job_a", MergeMode.IN_TURN, 1)]
    assert plan.actions[0].reason.startswith("job_a starts where job_l ends, on 1 GPU, from what that has learned")
    short = mergeable("job_a", deadline_ms=NOW_MS + 100 * HOUR_MS)
    assert merged(decided(replace(seen, jobs=(short, lead["job"])))) == []


def test_nobody_joins_a_job_on_gpus_that_are_lent() -> None:
    """It would have to leave with it when these are called back, a guaranteed job too."""
    lead = training("job_l", MINUTE_MS)
    long = mergeable("job_a", total_run_ms=20 * HOUR_MS, deadline_ms=NOW_MS + 100 * HOUR_MS)
    for is_lent in (False, True):
        place = replace(lead["node"], spot_only=is_lent)
        plan = decided(seen_with(lead["job"], long, runs=(lead["run"],), nodes=(place,)))
        assert bool(merged(plan)) is not is_lent


def test_a_lead_that_may_take_for_hours_is_not_waited_for() -> None:
    """Of ten hours it has seconds left by its prediction, which is believed to a quarter of the ten: a job that would
    save one hour starts by itself, one that saves more waits."""
    lead = training("job_l", 3_000)
    for hours, waits in ((3, False), (20, True)):
        job = mergeable("job_a", total_run_ms=hours * HOUR_MS, deadline_ms=NOW_MS + 100 * HOUR_MS)
        plan = decided(seen_with(lead["job"], job, runs=(lead["run"],), nodes=(lead["node"],)))
        assert bool(merged(plan)) == waits, hours


def test_a_lead_is_trusted_the_further_it_is() -> None:
    """Its losses tell when it ends: with half of them seen that may still take long, with nearly all it is soon."""
    place = node("node_l", state=NodeState.READY, free_gpus=())
    for seen_steps, waits in ((5_200, False), (9_800, True)):
        losses = tuple((step, 0.5 + 2 / (1 + 9 * step / 10_000)) for step in range(0, seen_steps + 1, 200))
        lead = mergeable(
            "job_l",
            JobState.RUNNING,
            total_run_ms=None,
            done_ms=seen_steps * 1_000,
            recipe={"target_loss": 0.7, "losses": losses},
        )
        held = run("run_l", "job_l", "node_l", tier=place.tier, running_since_ms=NOW_MS, created_ms=0)
        job = mergeable("job_a", total_run_ms=4 * HOUR_MS, deadline_ms=NOW_MS + 100 * HOUR_MS)
        plan = decided(seen_with(lead, job, runs=(held,), nodes=(place,)))
        assert bool(merged(plan)) == waits, seen_steps


def test_who_has_waited_for_one_job_is_not_kept_waiting_for_the_next() -> None:
    """Its turn has come: a place is found for it now, with the start that it has waited for. Once it trains,
    others may wait for it."""
    lead = training("job_l", MINUTE_MS)
    long = mergeable("job_a", total_run_ms=20 * HOUR_MS, deadline_ms=NOW_MS + 100 * HOUR_MS, turn_has_come=True)
    plan = decided(seen_with(lead["job"], long, runs=(lead["run"],), nodes=(lead["node"],)))
    assert merged(plan) == []
    assert [one.for_job_id for one in plan.actions if isinstance(one, Provision)] == ["job_a"]

    lead = training("job_l", MINUTE_MS, turn_has_come=True)
    seen = seen_with(lead["job"], replace(long, turn_has_come=False), runs=(lead["run"],), nodes=(lead["node"],))
    assert merged(decided(seen)) == [("job_l", "job_a", MergeMode.IN_TURN, 1)]


def test_steps_whose_number_is_fixed_are_not_saved_by_anybody() -> None:
    """Where only one of two can end early, it goes second, or, side by side, what is expected comes from it alone."""
    lead = training("job_l", MINUTE_MS, recipe={"ends_early": False})
    long = mergeable("job_a", total_run_ms=20 * HOUR_MS, deadline_ms=NOW_MS + 100 * HOUR_MS)
    seen = seen_with(lead["job"], long, runs=(lead["run"],), nodes=(lead["node"],))
    assert merged(decided(seen)) == [("job_l", "job_a", MergeMode.IN_TURN, 1)]

    lead = training("job_l", MINUTE_MS)
    fixed = mergeable(
        "job_a", total_run_ms=20 * HOUR_MS, deadline_ms=NOW_MS + 100 * HOUR_MS, recipe={"ends_early": False}
    )
    seen = seen_with(lead["job"], fixed, runs=(lead["run"],), nodes=(lead["node"],))
    assert merged(decided(seen)) == []

    sure = GainLine(prior_count=1e-6, count=50, sum_score=50.0, sum_gain=60.0, sum_square=50.0, sum_product=60.0)
    plan = decided(seen_with(FIXED, mergeable("job_b"), gains_together=sure))
    assert all(one.gain == pytest.approx(0.6) for one in plan.actions if isinstance(one, Merge))
    assert "60% faster expected" in plan.actions[0].reason


def test_names_stay_within_a_project() -> None:
    """Where both projects agree jobs are merged across, and the reason names neither job."""
    agree = {"recipe": {"shares_across": True}}
    plan = decided(seen_with(mergeable("job_a", **agree), mergeable("job_b", project_id="proj_b", **agree)))
    assert len(merged(plan)) == 1
    assert "job_" not in plan.actions[0].reason
    assert "a job of another project" in plan.actions[0].reason


def test_a_companion_is_placed_with_its_lead_only() -> None:
    """Of a merge that waits, the lead gets a place for both; the companion is told what it waits for."""
    seen = seen_with(*TWO, merges=(merge_of("job_a", "job_b", MergeMode.TOGETHER, gpus=2),))
    plan = decided(seen)
    assert {getattr(one, "job_id", getattr(one, "for_job_id", None)) for one in plan.actions} == {"job_a"}
    assert why(plan, "job_b") == "is trained together with job_a, which waits too"
    turn = seen_with(*TWO, merges=(merge_of("job_a", "job_b"),))
    assert why(decided(turn), "job_b") == "starts where job_a ends, from what that has learned"


@pytest.mark.parametrize("mode", list(MergeMode))
def test_two_epochs_in_vain_split(mode: MergeMode) -> None:
    """After two epochs without better validation a merge is undone, after one it is not."""
    lead = training("job_l", HOUR_MS)
    other = mergeable("job_a", JobState.RUNNING if mode == MergeMode.TOGETHER else JobState.QUEUED)
    on = replace(lead["run"], job_ids=("job_l", "job_a")) if mode == MergeMode.TOGETHER else lead["run"]
    for epochs, splits in ((1, []), (2, [("job_l", "job_a", "merge_a")])):
        open_ = merge_of("job_l", "job_a", mode, fruitless_epochs=epochs)
        plan = decided(seen_with(lead["job"], other, runs=(on,), nodes=(lead["node"],), merges=(open_,)))
        found = [one for one in plan.actions if isinstance(one, Split)]
        assert [(one.job_id, one.companion_id, one.merge_id) for one in found] == splits
        assert all("has not improved for 2 epochs" in one.reason for one in found)


def test_a_turn_that_comes_too_late_is_not_waited_for() -> None:
    """A companion that would be late for waiting, and is not by itself, starts by itself."""
    lead = training("job_l", 5 * HOUR_MS)
    seen = seen_with(lead["job"], runs=(lead["run"],), nodes=(lead["node"],), merges=(merge_of("job_l", "job_a"),))
    for due_ms, splits in ((HOUR_MS, 1), (10 * HOUR_MS, 0), (10 * MINUTE_MS, 0)):
        waits = mergeable("job_a", deadline_ms=NOW_MS + due_ms)
        plan = decided(replace(seen, jobs=(waits, lead["job"])))
        assert sum(isinstance(one, Split) for one in plan.actions) == splits


def test_a_turn_is_waited_for_only_as_long_as_its_owner_lets_it() -> None:
    """When its max_wait is over it starts by itself, and waits for nobody else; before, it is decided on again then."""
    lead = training("job_l", 5 * HOUR_MS)
    seen = seen_with(lead["job"], runs=(lead["run"],), nodes=(lead["node"],), merges=(merge_of("job_l", "job_a"),))
    for waited_ms, splits in ((HOUR_MS, 1), (HOUR_MS - 1_000, 0)):
        waits = mergeable(
            "job_a", submitted_ms=NOW_MS - waited_ms, deadline_ms=NOW_MS + 100 * HOUR_MS, caps=Caps(max_wait_ms=HOUR_MS)
        )
        plan = decided(replace(seen, jobs=(waits, lead["job"])))
        assert sum(isinstance(one, Split) for one in plan.actions) == splits
        assert plan.actions or plan.wake_at_ms == NOW_MS + 1_000
    overdue = replace(waits, submitted_ms=NOW_MS - HOUR_MS)
    alone = replace(seen, jobs=(overdue, lead["job"]), merges=())
    assert merged(decided(alone)) == []


def test_a_job_waits_for_others_only_where_they_come() -> None:
    """A long job waits up to 3 % of its time for one to be merged with, if such jobs come often; then it starts."""
    alone = mergeable("job_a", total_run_ms=4 * HOUR_MS, deadline_ms=NOW_MS + 20 * HOUR_MS)
    often = PolicyState().having(**{"merge_comes/base-a": 30.0, "merge_seen_ms": float(NOW_MS)})
    plan = decided(seen_with(alone), state=often)
    assert plan.actions == ()
    assert why(plan) == "waits up to 432 s for a job of the same base model that helps it, before it starts"
    assert plan.wake_at_ms == NOW_MS + 432_000
    assert decided(seen_with(alone), state=often.having(**{"merge_comes/base-a": 3.0})).actions
    late = replace(alone, submitted_ms=NOW_MS - 432_000)
    assert decided(seen_with(late), state=often).actions


def test_same_plan_byte_for_byte_and_through_the_codec() -> None:
    """Recipes, merges and learned gains come back from bytes, and the same plan is made of them."""
    lead = training("job_l", MINUTE_MS)
    jobs = (lead["job"], mergeable("job_a", total_run_ms=20 * HOUR_MS), mergeable("job_b"), mergeable("job_c"))
    seen = seen_with(*jobs, runs=(lead["run"],), nodes=(lead["node"],), merges=(merge_of("job_b", "job_c"),))
    again = loads(Snapshot, dumps(seen))
    assert again == seen
    plan = decided(seen)
    assert dumps(decided(again)) == dumps(plan)
    assert loads(Plan, dumps(plan)) == plan


def test_a_board_that_is_kept_equals_one_that_is_built() -> None:
    """Merges that come and go leave the same board as the snapshot's own."""
    seen = seen_with(*TWO, mergeable("job_c"))
    board = Board.of(seen)
    open_ = merge_of("job_a", "job_b", MergeMode.TOGETHER)
    board.put_merge(open_)
    built = Board.of(replace(seen, merges=(open_,)))
    for one in (board, built):
        assert [job.job_id for job in one.placeable()] == ["job_a", "job_c"]
        assert one.columns.demand(NOW_MS, NOW_MS + 20 * HOUR_MS)[1].sum() == 2 * 30 * MINUTE_MS
    assert board.snapshot() == built.snapshot()
    board.drop_merge("job_a")
    assert board.snapshot() == seen
    assert board.placeable() == Board.of(seen).placeable()


def test_a_larger_node_is_not_kept_for_one_long_job() -> None:
    """A node of two GPUs, as larger jobs leave it, takes a short job, and a long one only beside another as long."""
    pair = node("node_two", state=NodeState.READY, gpu_count=2, free_gpus=(0, 1), price_per_hour=Money.usd("1.48"))
    kinds = {"recipe": {"pull": (), "profile_tries": 1}, "deadline_ms": NOW_MS + 100 * HOUR_MS}
    long, short = mergeable("job_a", total_run_ms=20 * HOUR_MS, **kinds), mergeable("job_a", total_run_ms=60_000)
    kept = mergeable("job_l", JobState.RUNNING, total_run_ms=30 * HOUR_MS, **kinds)
    held = run("run_l", "job_l", "node_two", tier=pair.tier, running_since_ms=NOW_MS, created_ms=0)
    beside = seen_with(kept, long, runs=(held,), nodes=(replace(pair, free_gpus=(1,)),))
    for seen, config, takes in (
        (seen_with(short, nodes=(pair,)), ON, True),
        (seen_with(long, nodes=(pair,)), ON, False),
        (seen_with(long, nodes=(pair,)), replace(ON, serverful_limit=1), True),
        (beside, ON, True),
        (seen_with(long, nodes=(pair,)), replace(ON, merging=False), False),
    ):
        assigned = [one for one in decided(seen, config).actions if isinstance(one, Assign)]
        assert [one.node_id for one in assigned] == ["node_two"] * takes


@pytest.mark.parametrize(
    ("modes", "settings", "found"),
    [
        (frozenset(MergeMode), "set-a", [MergeMode.TOGETHER]),
        (frozenset(MergeMode), "set-b", []),
        (frozenset({MergeMode.IN_TURN}), "set-a", []),
        (frozenset({MergeMode.TOGETHER}), "set-b", []),
    ],
    ids=["alike", "other settings", "in turn only", "together only, other settings"],
)
def test_only_in_ways_that_are_allowed(modes: frozenset[MergeMode], settings: str, found: list[MergeMode]) -> None:
    """Two that wait would be trained together; where that is off, or their settings differ, they are not, and in turn
    would take longer than apart."""
    seen = seen_with(TWO[0], mergeable("job_b", recipe={"settings": settings}))
    plan = decided(seen, replace(ON, merge_modes=modes))
    assert [mode for _, _, mode, _ in merged(plan)] == found


def test_in_turn_asks_for_no_equal_settings() -> None:
    """A companion begins with an optimizer of its own; only where one after the other is off, it is not merged so."""
    lead = training("job_l", MINUTE_MS)
    long = mergeable(
        "job_a", total_run_ms=20 * HOUR_MS, deadline_ms=NOW_MS + 100 * HOUR_MS, recipe={"settings": "set-b"}
    )
    seen = seen_with(lead["job"], long, runs=(lead["run"],), nodes=(lead["node"],))
    assert merged(decided(seen)) == [("job_l", "job_a", MergeMode.IN_TURN, 1)]
    assert merged(decided(seen, replace(ON, merge_modes=frozenset({MergeMode.TOGETHER})))) == []
    begun = replace(long, state=JobState.WAITING, checkpoint_step=5)  # it would lose that
    assert merged(decided(replace(seen, jobs=(begun, lead["job"])))) == []


def test_a_pair_leaves_for_a_cheaper_node_by_saving() -> None:
    """One job moves there while it trains; two of one process save and go back to the queue, together."""
    lead = mergeable("job_a", JobState.RUNNING, total_run_ms=20 * HOUR_MS, deadline_ms=NOW_MS + 99 * HOUR_MS)
    other = mergeable("job_b", JobState.RUNNING)
    held, place = on_serverless(lead, 0)
    held = replace(held, running_since_ms=NOW_MS - HOUR_MS, created_ms=NOW_MS - HOUR_MS)
    ready = node("node_z", state=NodeState.READY, price_per_hour=Money.usd("0.10"))
    open_ = (merge_of("job_a", "job_b", MergeMode.TOGETHER),)
    alone = seen_with(lead, runs=(held,), nodes=(place, ready))
    assert [type(one) for one in decided(alone).actions] == [Migrate]
    pair = replace(held, job_ids=("job_a", "job_b"))
    both = seen_with(lead, other, runs=(pair,), nodes=(place, ready), merges=open_)
    (demote,) = decided(both).actions
    assert isinstance(demote, Demote)
    assert "leaves for node_z" in demote.reason
    assert decided(both, replace(ON, capabilities=ALL_ACTIONS - {ActionKind.DEMOTE})).actions == ()


def test_a_solver_without_an_answer_merges_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are placed as ever."""

    def none(*_: object) -> Any:
        raise ValueError("no choice fits")

    monkeypatch.setattr("app.core.policies.merging.solve", none)
    plan = decided(seen_with(*TWO))
    assert merged(plan) == []
    assert {getattr(one, "job_id", getattr(one, "for_job_id", None)) for one in plan.actions} == {"job_a", "job_b"}
