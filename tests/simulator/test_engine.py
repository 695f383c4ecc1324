"""The simulator's clocks, bills and failures, by scenarios small enough to add up by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.core.model.money import Money
from app.core.model.node import Tier
from app.core.model.plan import ActionKind
from app.core.policies import policy_names
from app.core.policy import MoveCost
from app.simulator.cloud import Cloud
from app.simulator.engine import Stuck
from app.simulator.prices import PriceCurve, flat
from tests.simulator.scenarios import (
    DAY_MS,
    PRICES,
    SECOND_MS,
    config,
    market,
    simulate,
    task,
)

MODAL, VAST, LAMBDA = (Money.usd(str(PRICES[tier])) for tier in (Tier.SERVERLESS, Tier.MARKETPLACE, Tier.CONVENTIONAL))


def bill(price: Money, seconds: float) -> int:
    """Micro-dollars of so many seconds."""
    return round(price.micros * seconds / 3600)


# Clocks and bills


def test_serverless_only() -> None:
    """Submitted at 10 s, ready at 14 s, done 100 s later, and paid from the request to the end."""
    seen = simulate("modal-only", task("a", 100, at_s=10))
    done = seen.outcome("a")
    assert (done.started_ms, done.finished_ms, done.wait_ms) == (14_000, 114_000, 4_000)
    assert (done.tiers, done.moves, done.move_ms, done.missed) == ("s", 0, 0, False)
    assert seen.result.bills == {"modal": bill(MODAL, 104)}
    assert seen.result.most_nodes == 0


def test_rented_only() -> None:
    """A marketplace node takes 36 s, which cost nothing, and is paid by the second from ready."""
    seen = simulate("cheapest-first", task("a", 100.5, at_s=10))
    assert seen.course() == [(10, "provision"), (46, "assign"), (146.5, "release")]
    assert seen.outcome("a").finished_ms == 146_500
    assert seen.result.bills == {"vast": bill(VAST, 101)}
    assert seen.outcome("a").cost_usd == pytest.approx(0.74 * 100.5 / 3600)


def test_conventional_minutes() -> None:
    """A conventional node takes 256 s and is paid by the started minute from ready."""
    for work_s, minutes in ((120, 2), (120.001, 3)):
        seen = simulate("cheapest-first", task("a", work_s), on=market(Tier.CONVENTIONAL))
        assert seen.outcome("a").finished_ms == 256_000 + work_s * 1000
        assert seen.result.bills == {"lambda": bill(LAMBDA, 60 * minutes)}


def test_stop_and_go() -> None:
    """F after it began it saves for 42 s, waits for nothing, loads for 42 s; its node boots while it saves."""
    seen = simulate("fixed-threshold", task("a", 1000, at_s=10))
    assert seen.course() == [(10, "start"), (314, "demote"), (314, "provision"), (356, "assign"), (1098, "release")]
    done = seen.outcome("a")
    assert done.finished_ms == (14 + 300 + 42 + 42 + 700) * SECOND_MS
    assert (done.tiers, done.moves, done.move_ms) == ("sm", 1, 84_000)
    assert seen.result.bills == {"modal": bill(MODAL, 356 - 10), "vast": bill(VAST, 1098 - 350)}


def test_other_moves() -> None:
    """What a move takes is part of the scenario."""
    seen = simulate("fixed-threshold", task("a", 1000), moves=MoveCost(save_ms=2_500, load_ms=1_500))
    # It has saved at 306.5 s and its node is there at 340 s.
    assert seen.outcome("a").finished_ms == (340 + 1.5 + 700) * SECOND_MS
    assert seen.outcome("a").move_ms == 4_000


def test_make_before_break() -> None:
    """The job trains on until its node is there; then both are paid while it saves; there it loads and goes on."""
    seen = simulate("allpass", task("a", 1000, kind="interactive"))
    assert seen.course() == [(0, "start"), (0, "provision"), (36, "migrate"), (1088, "release")]
    done = seen.outcome("a")
    assert done.finished_ms == (4 + 32 + 42 + 42 + 968) * SECOND_MS
    assert (done.tiers, done.moves, done.move_ms, done.wait_ms) == ("sm", 1, 84_000, 88_000)
    assert seen.result.bills == {"modal": bill(MODAL, 78), "vast": bill(VAST, 1088 - 36)}


def test_jobs_of_one_moment_are_decided_together() -> None:
    """Two jobs of one millisecond are one decision; order of submission is kept, whatever order they are given in."""
    seen = simulate("modal-only", task("c", 5, at_s=9), task("a", 50, at_s=3), task("b", 50, at_s=3))
    assert seen.of(ActionKind.START) == [(3, "a"), (3, "b"), (9, "c")]
    assert [one.job_id for one in seen.result.outcomes] == ["a", "b", "c"]
    assert sum(snapshot.now_ms == 3_000 for snapshot, _, _ in seen.snapshots) == 1


def test_several_gpus() -> None:
    """A job of four GPUs rents machines of four, at four times the price."""
    seen = simulate("fixed-threshold", task("a", 1000, gpus=4))
    assert seen.result.bills == {"modal": bill(Money(4 * MODAL.micros), 346), "vast": bill(Money(4 * VAST.micros), 748)}


def test_prices_of_their_moment() -> None:
    """A machine costs what it cost when it was rented, and a change of price is a reason to decide."""
    curve = PriceCurve((0.0, 100.0, 5_000.0), (0.74, 0.30, 9.0))
    prices = {Tier.MARKETPLACE: curve, Tier.CONVENTIONAL: flat(1.29)}
    seen = simulate("cheapest-first", task("a", 100), task("b", 100, at_s=100), on=market(prices=prices))
    assert seen.result.bills == {"vast": bill(VAST, 100) + bill(Money.usd("0.30"), 100)}
    assert [s.now_ms for s, _, _ in seen.snapshots] == [0, 36_000, 100_000, 136_000, 236_000]


# What is known


def test_run_times_become_known() -> None:
    """A prediction given after 60 s of running is not there before, counts over runs, and stays."""
    late = task("a", 1000, predicted_ms=1_100_000, known_after_ms=60_000)
    seen = simulate("fixed-threshold", late, using=config(serverless_budget_ms=50_000))
    known = {s.now_ms / 1000: s.jobs[0].total_run_ms for s, _, _ in seen.snapshots if s.jobs}
    learned_s = 4 + 50 + 42 + 42 + 10  # 50 s on serverless, and 10 s more on the node
    assert {total for at_s, total in known.items() if at_s < learned_s} == {None}
    assert {total for at_s, total in known.items() if at_s >= learned_s} == {1_100_000}
    assert learned_s in known
    never = simulate("fixed-threshold", task("a", 1000, predicted_ms=None))
    assert {one.total_run_ms for s, _, _ in never.snapshots for one in s.jobs} == {None}


# Failures


def dying(monkeypatch: pytest.MonkeyPatch, *lives_s: float | None) -> None:
    """The machines live for so many seconds from ready, in the order in which they get ready; later ones for ever."""
    left = list(lives_s)

    def life_ms(_: Cloud, __: Tier) -> int | None:
        life_s = left.pop(0) if left else None
        return None if life_s is None else round(life_s * 1000)

    monkeypatch.setattr(Cloud, "life_ms", life_ms)


def test_a_job_goes_on_from_its_last_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that dies after 1500 s takes 300 s of work with it: checkpoints are made every ten minutes of running."""
    dying(monkeypatch, 1_500)
    seen = simulate("cheapest-first", task("a", 3000))
    assert seen.course() == [(0, "provision"), (36, "assign"), (1536, "provision"), (1572, "assign"), (3414, "release")]
    done = seen.outcome("a")
    assert done.finished_ms == (1572 + 42 + 1800) * SECOND_MS
    assert (done.faults, done.moves, done.move_ms, done.tiers) == (1, 0, 42_000, "mm")
    assert seen.result.bills == {"vast": bill(VAST, 1500) + bill(VAST, 3414 - 1572)}
    figures = seen.result.figures()
    assert (figures["faults"], figures["lost_s"], figures["boot_usd"]) == (1, 300, 0)
    assert figures["idle_usd"] == pytest.approx(0, abs=1e-6)


def test_what_boots_and_idle_machines_cost() -> None:
    """Serverless is paid from the request on, 4 s before it is ready; a node is kept for 100 s after its job."""
    assert simulate("modal-only", task("a", 100)).result.figures()["boot_usd"] == pytest.approx(
        MODAL.micros * 4 / 3.6e9
    )
    kept = simulate("hpa-conventional", task("a", 100), using=config(idle_release_ms=100_000)).result.figures()
    assert kept["boot_usd"] == 0
    assert 0 < kept["idle_usd"] == pytest.approx(kept["cost_usd"] - LAMBDA.micros * 100 / 3.6e9)


def test_what_cannot_save_loses_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    dying(monkeypatch, 1_500)
    seen = simulate("cheapest-first", task("a", 3000, saves=False))
    assert seen.result.figures()["lost_s"] == 1_500


def test_checkpoints_may_be_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one every 100 s less is lost; before the first, the job begins anew, and loads nothing."""
    dying(monkeypatch, 1_500)
    seen = simulate("cheapest-first", task("a", 3000), checkpoint_every_ms=100_000)
    assert seen.outcome("a").finished_ms == (1572 + 42 + 1500) * SECOND_MS
    dying(monkeypatch, 99)
    seen = simulate("cheapest-first", task("a", 3000), checkpoint_every_ms=100_000)
    assert seen.outcome("a").finished_ms == (36 + 99 + 36 + 3000) * SECOND_MS


@pytest.mark.parametrize("name", policy_names())
def test_a_job_that_never_saves_is_moved_by_no_policy(name: str) -> None:
    """Hours on the dearest machine, cheaper ones to be had, and others that wait for a node: it stays, and is done."""
    others = [task(f"b{at}", 500, at_s=50 * at) for at in range(4)]
    seen = simulate(name, task("a", 8_000, saves=False), *others)
    done = seen.outcome("a")
    assert (done.moves, len(done.tiers), done.faults) == (0, 1, 0)
    assert done.finished_ms is not None


def test_a_job_that_never_saves_begins_again_when_its_machine_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 700 s, of which a job that saves keeps 600."""
    dying(monkeypatch, 700)
    seen = simulate("cheapest-first", task("a", 1_000, saves=False))
    assert seen.outcome("a").faults == 1
    assert seen.outcome("a").finished_ms == 36_000 + 700_000 + 36_000 + 1_000_000


def test_a_node_that_dies_while_the_job_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not saved is lost; the time on serverless counts all the same, so that the job leaves it."""
    dying(monkeypatch, 320)
    seen = simulate("fixed-threshold", task("a", 1000))
    assert seen.course() == [(0, "start"), (304, "demote"), (304, "provision"), (340, "assign"), (1340, "release")]
    assert seen.outcome("a").tiers == "sm"


def test_time_on_a_serverless_node_that_died_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that lost its place after 200 s of serverless has 100 s of F left."""
    dying(monkeypatch, 200)
    seen = simulate("fixed-threshold", task("a", 1000))
    assert seen.course()[:3] == [(0, "start"), (204, "start"), (308, "demote")]


@pytest.mark.parametrize(
    ("lives_s", "course", "finished_s"),
    [
        # The source dies while it saves: the target goes on at once, from the beginning, with nothing to load.
        ((50,), [(36, "migrate"), (1054, "release")], 54 + 1000),
        # The target dies while the source saves: what was saved goes on on serverless, and moves again.
        ((None, 20), [(36, "migrate"), (124, "provision"), (160, "migrate"), (1176, "release")], 160 + 84 + 932),
        # The target dies while it loads: so does this.
        ((None, 60), [(36, "migrate"), (142, "provision"), (178, "migrate"), (1194, "release")], 178 + 84 + 932),
    ],
)
def test_a_machine_that_dies_in_a_move(monkeypatch, lives_s, course, finished_s) -> None:
    """Whichever end of a move dies, and whenever: the job goes on from what is safe."""
    dying(monkeypatch, *lives_s)
    seen = simulate("allpass", task("a", 1000, kind="interactive"))
    assert [step for step in seen.course() if step[1] != "start"][1:] == course
    assert seen.outcome("a").finished_ms == finished_s * SECOND_MS
    assert seen.outcome("a").faults == 1


def test_failures_are_drawn_from_the_seed() -> None:
    """Machines of a short mean life fail, differently from seed to seed, and the jobs end all the same."""
    lives = market(mean_life_s={Tier.MARKETPLACE: 2_000.0, Tier.SERVERLESS: 500.0})
    tasks = [task(f"j{index}", 1500, at_s=200 * index) for index in range(6)]
    results = [simulate("allpass", *tasks, on=lives, seed=seed).result for seed in (1, 1, 2)]
    assert results[0] == results[1] != results[2]
    assert all(sum(one.faults for one in result.outcomes) > 0 for result in results)


# Supply


def test_a_sold_out_offer_is_gone() -> None:
    """Of two jobs that want the one marketplace machine, the second takes the next best, at the same moment."""
    one = market(limits={Tier.MARKETPLACE: 1})
    seen = simulate("cheapest-first", task("a", 1000), task("b", 100, due_s=20_000), on=one)
    assert seen.of(ActionKind.PROVISION) == [(0, "a"), (0, "b"), (0, "b")]
    assert seen.result.bills == {"vast": bill(VAST, 1000), "lambda": bill(LAMBDA, 120)}


def test_who_finds_nothing_waits_until_a_machine_is_given_back() -> None:
    """With one machine in the whole market, jobs run one after the other."""
    seen = simulate(
        "cheapest-first", task("a", 100), task("b", 100), on=market(Tier.MARKETPLACE, limits={Tier.MARKETPLACE: 1})
    )
    assert seen.result.most_nodes == 1
    assert [one.finished_ms for one in seen.result.outcomes] == [136_000, 236_000]


def test_serverless_supply() -> None:
    """The limit of a tier holds for serverless too: the second job is started when the first has ended."""
    only = market(Tier.SERVERLESS, limits={Tier.SERVERLESS: 1})
    seen = simulate("modal-only", task("a", 100), task("b", 100), on=only)
    assert [one.finished_ms for one in seen.result.outcomes] == [104_000, 208_000]


# The end


def test_stuck_is_said() -> None:
    """Jobs for which nothing can ever happen end the simulation with a sentence, whether the policy sleeps or ticks."""
    for policy in ("modal-only", "allpass-paper", "hpa"):
        with pytest.raises(Stuck, match="1 jobs wait for something that never comes"):
            simulate(policy, task("a", 10), on=market(prices={}))


@pytest.mark.parametrize("policy", ["cheapest-first", "fixed-threshold", "sjf", "allpass"])
def test_a_node_given_back_makes_room(policy: str) -> None:
    """At the limit, the small node of one job goes back, and a large one is rented for the next at the same moment."""
    jobs = task("small", 9_000, due_s=50), task("large", 9_500, due_s=60, gpus=2)  # long after all deadlines, too
    seen = simulate(policy, *jobs, on=market(Tier.MARKETPLACE), using=config(serverful_limit=1))
    assert seen.outcome("small").finished_ms == 9_036 * SECOND_MS
    assert seen.outcome("large").finished_ms == (9_036 + 36 + 9_500) * SECOND_MS
    assert seen.result.most_nodes == 1


def test_a_wait_for_a_far_deadline_is_not_stuck() -> None:
    """A policy that lets a job wait until its deadline comes near is let go on, however far that is."""
    seen = simulate("allpass-paper", task("a", 3600, due_s=2 * DAY_MS / 1000))
    assert seen.outcome("a").finished_ms > DAY_MS


def test_nothing_to_do() -> None:
    """Without jobs nothing is decided and nothing is paid."""
    seen = simulate("allpass")
    assert (seen.result.outcomes, seen.result.bills, seen.result.decisions) == ((), {}, 0)


def test_the_scenario_ends_with_its_last_job() -> None:
    """A node that still runs then is paid until then, and no longer."""
    seen = simulate("fixed-threshold", task("a", 1000), using=replace(config(), idle_release_ms=DAY_MS))
    assert seen.of(ActionKind.RELEASE) == []
    assert seen.result.bills["vast"] == bill(VAST, 1088 - 340)


def test_a_job_on_more_gpus_than_a_host_has_takes_several() -> None:
    """Sixteen GPUs are one node of two hosts, rented together: where one host is left, that is not enough."""
    seen = simulate("cheapest-first", task("a", 100, gpus=16), on=market(Tier.MARKETPLACE))
    assert (seen.result.most_nodes, seen.result.most_gpus) == (1, 16)
    assert seen.result.bills == {"vast": bill(Money(16 * VAST.micros), 100)}
    tight = market(Tier.MARKETPLACE, Tier.CONVENTIONAL, limits={Tier.MARKETPLACE: 1})
    wide, narrow = task("a", 100, gpus=16), task("b", 100, gpus=8)
    assert set(simulate("cheapest-first", wide, on=tight).result.bills) == {"lambda"}
    assert set(simulate("cheapest-first", narrow, on=tight).result.bills) == {"vast"}
