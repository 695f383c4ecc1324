"""Jobs on several machines that run under more switches than they need come together, and come to rest."""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.defragmentation import (
    Deciding,
    Goal,
    ReleaseState,
    RepairState,
    SeenFleet,
    SwitchRepair,
    begun,
    next_repairs,
    not_begun,
    plan_for,
)
from app.core.defragmentation.closer import closer
from app.core.defragmentation.execution import MOST_TRIES, STALE_MS
from app.core.defragmentation.repairs import Repairs, plan_repairs
from app.core.gang_offers import GangNode
from app.core.model.job import ANY_NUMBER, JobState, MostUnderOne, Resources
from app.core.model.money import Money
from app.core.model.node import NodeState, Tier
from app.core.model.run import RunState
from app.core.model.snapshot import JobView, RunView
from app.core.topology import Domain, Seats, SwitchRule, choose, spread
from tests.core.defragmentation.test_live import HOUR_MS, NOW_MS, Fleet, job_view

LONGEST_MS = 600_000


class Lab(Fleet):
    """Pool `lab`: hosts `leaf_1="ab"` are under leaf-1; `r1__leaf_1` in rack r1, too. All of four GPUs."""

    def __init__(self, **switches: str) -> None:
        super().__init__()
        self.domains: dict[str, Domain] = {}
        self.rented: list[GangNode] = []
        for name, hosts in switches.items():
            rack, switch = ("", *name.split("__"))[-2:]
            for host in hosts:
                self.host(host)
                self.domains[host] = (rack, switch.replace("_", "-"))

    def gang(self, hosts: str, name: str = "g", *, together: bool = True, gpus: int = 4, **more: Any) -> JobView:
        """Job `job_g` trains on these hosts, the first leads."""
        need = {"resources": Resources(gpus, gpus, nodes=len(hosts)), "deadline_ms": NOW_MS + 100 * HOUR_MS}
        job = job_view(f"job_{name}", gpus, **(need | more))
        self.jobs.append(job)
        for rank, host in enumerate(hosts):
            run_id, known = f"run_{name}_{rank}", set(self.nodes)
            self._hold(job, host, run_id, RunState.RUNNING)
            (node_id,) = set(self.nodes) - known
            leads = run_id if together and rank == 0 else ""
            self.rented.append(GangNode(node_id, job.job_id, f"{host}/A100", leads=leads))
        return job

    def comes(self, host: str, job_id: str = "job_g", state: NodeState = NodeState.READY) -> None:
        """A machine that was rented for it beside its own."""
        node_id, gpus = f"node_next_{host}", self.job(job_id).resources.gpus_min
        cut = {"provider": "joined", "tier": Tier.OWN, "price_per_hour": Money(0), "region": "lab", "state": state}
        self.node(node_id, gpus, **cut)
        taken = tuple(range(gpus))
        self.hosts[host] = replace(self.hosts[host], taken=(*self.hosts[host].taken, *taken))
        self.rented.append(GangNode(node_id, job_id, f"{host}/A100"))

    def leaves(self, job_id: str = "job_g", rule: SwitchRule = SwitchRule.FEWEST) -> None:
        """It has left all of its machines, and begins where it is least spread of those that it has."""
        name = job_id.removeprefix("job_")
        here = [one for one in self.rented if one.job_id == job_id]
        self.runs = [run for run in self.runs if run.job_ids != (job_id,)]
        job, taken = self.job(job_id), list[GangNode]()
        after = closest({one.host: self.domain(one.host) for one in here}, job, rule)
        for one in here:
            if after.get(self.domain(one.host), 0) > 0:
                after[self.domain(one.host)] -= 1
                taken.append(one)
        for one in set(here) - set(taken):
            host = one.host.partition("/")[0]
            self.hosts[host] = replace(self.hosts[host], taken=self.hosts[host].taken[job.resources.gpus_min :])
            del self.nodes[one.node_id], self.facts[one.node_id]
            self.rented.remove(one)
        for rank, one in enumerate(taken):
            run_id = f"run_{name}_next_{rank}_{one.node_id}"
            since_ms = NOW_MS - HOUR_MS
            self.runs.append(RunView(run_id, (job_id,), one.node_id, Tier.OWN, RunState.RUNNING, 1, 0, since_ms))
            self.held[run_id] = self.held[f"run_{name}_0"]
            number = self.rented.index(one)
            self.rented[number] = replace(one, leads="" if rank else run_id)

    def domain(self, place: str) -> Domain:
        return self.domains[place.partition("/")[0]]

    def spread(self, job_id: str = "job_g") -> float:
        on = {run.node_id for run in self.runs if job_id in run.job_ids}
        return spread(Counter(self.domain(one.host) for one in self.rented if one.node_id in on))

    def seen(self) -> SeenFleet:
        return replace(super().seen(), domains=self.domains, rented=tuple(self.rented))

    def repairs(self, most_moves: int = 100, **more: Any) -> tuple[SwitchRepair, ...]:
        return plan_for(self.seen(), Goal.POOLS, None, most_moves, **more).repairs

    def stays(self) -> set[str]:
        """Why those that are spread are left alone."""
        planned = plan_repairs(Repairs(self.seen()), None, 100)
        assert planned.found == ()
        return {str(why) for why in planned.stays}


def closest(places: dict[str, Domain], job: JobView, rule: SwitchRule) -> Counter[Domain]:
    """As they begin (`app.core.gangs`)."""
    rule = rule if job.most_under_one == ANY_NUMBER else SwitchRule.FEWEST
    free = Counter(places.values())
    taken = choose(rule, free, {}, job.resources.nodes, job.most_under_one.by_level)
    return Counter(taken)


def places(repair: SwitchRepair) -> str:
    return "".join(one.partition("/")[0] for one in repair.places)


def deciding(**more: Any) -> Deciding:
    return Deciding(**{"goal": Goal.POOLS, "planned_ms": NOW_MS, "now_ms": NOW_MS, "at_once": 2, **more})


def step(lab: Lab, *repairs: SwitchRepair, **more: Any) -> tuple[list[SwitchRepair], dict[str, Any]]:
    """The repairs after one look, and what is rented."""
    found = next_repairs(repairs, lab.seen(), deciding(**more), LONGEST_MS, "dfrg_1")
    changed = {one.job_id: one for one in found.changed}
    return [changed.get(one.job_id, one) for one in repairs], dict(found.begin)


def test_only_the_machine_that_is_elsewhere_is_replaced() -> None:
    """Not all of it goes to leaf-3, which holds it more tightly."""
    lab = Lab(leaf_1="abcxyz", leaf_2="d", leaf_3="efgh")
    lab.gang("abd")
    (repair,) = lab.repairs()
    assert (places(repair), repair.machines, repair.run_id) == ("c", 3, "run_g_0")
    assert repair.in_words == (
        "its 3 machines are 2 under leaf-1, 1 under leaf-2 (entropy 0.64), and with 1 other machine 3 under leaf-1 "
        "(entropy 0.00); what it saves is not known, for a pause of 4.2 s"
    )


def test_all_of_it_goes_where_its_own_switches_have_no_room() -> None:
    lab = Lab(leaf_1="a", leaf_2="b", leaf_3="cd")
    lab.gang("ab")
    (repair,) = lab.repairs()
    assert (places(repair), repair.there) == ("cd", "2 under leaf-3")


def test_one_rack_is_closer_than_two_and_fewer_switches_than_more() -> None:
    lab = Lab(r1__leaf_1="a", r1__leaf_2="c", r2__leaf_3="b")
    lab.gang("ab")
    (repair,) = lab.repairs()
    assert (places(repair), repair.there) == ("c", "1 under leaf-1 in rack r1, 1 under leaf-2 in rack r1")
    wide = Lab(leaf_1="ab", leaf_2="cd", leaf_3="e", leaf_4="f", leaf_5="gh")
    wide.gang("acef")
    (repair,) = wide.repairs()
    assert (places(repair), repair.there) == ("bd", "2 under leaf-1, 2 under leaf-2")


def test_what_is_not_said_is_no_place_to_come_together() -> None:
    """Nobody knows what a host without a label is close to."""
    lab = Lab(leaf_1="a", leaf_2="b", **{"": "cd"})
    lab.gang("ab")
    assert lab.repairs() == ()
    unsaid = Lab(**{"": "abcd"})
    unsaid.gang("ab")
    assert unsaid.repairs() == ()


def test_free_gpus_beside_others_count_and_busy_hosts_do_not() -> None:
    lab = Lab(leaf_1="ac", leaf_2="b", leaf_3="d")
    lab.gang("ab", gpus=2)
    lab.trains(job_view("job_x", 3), "c")
    assert lab.repairs() == () and "is spread over switches, and nothing closer is free" in lab.stays()
    beside = Lab(leaf_1="ac", leaf_2="b", leaf_3="d")
    beside.gang("ab", gpus=2)
    beside.trains(job_view("job_x", 2), "c")
    (repair,) = beside.repairs()
    assert places(repair) == "c"


def test_its_own_host_counts_once() -> None:
    """Half of host a is free: two machines of a job are on two hosts."""
    lab = Lab(leaf_1="a", leaf_2="b")
    lab.gang("ab", gpus=2)
    assert lab.repairs() == ()


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"locked": True}, "is locked to its machine"),
        ({"checkpoint_step": None}, "has no checkpoint yet"),
        ({"saves": False}, "does not save when it is asked to"),
        ({"unsaved": True}, "has checkpoints that are refused"),
        ({"leaving": True}, "is about to pause or to end"),
        ({"state": JobState.CHECKPOINTING}, "does not train now"),
        ({"not_moved_before_ms": NOW_MS + 1}, "rests after a move that failed"),
        ({"total_run_ms": HOUR_MS + 40_000}, "is expected to end before a move has paid"),
        (
            {"total_run_ms": 2 * HOUR_MS, "deadline_ms": NOW_MS + HOUR_MS + 1_000},
            "is spread over switches, and would miss its deadline by the pause of a move",
        ),
        (
            {"together": False},
            "is spread over switches, and does not say that all of its machines stop after one step",
        ),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else "",
)
def test_who_stays_and_why(more: dict[str, Any], why: str) -> None:
    lab = Lab(leaf_1="ac", leaf_2="b")
    lab.gang("ab", **more)
    assert lab.stays() == {why}


def test_one_that_has_just_begun_stays_and_one_that_is_on_its_way() -> None:
    lab = Lab(leaf_1="ac", leaf_2="b")
    lab.gang("ab")
    lab.runs = [replace(run, running_since_ms=NOW_MS - 10_000) for run in lab.runs]
    assert lab.stays() == {"began there, or came there, a short while ago"}
    moving = Lab(leaf_1="ac", leaf_2="b")
    moving.gang("ab")
    moving.comes("c")
    assert moving.stays() == {"is on the way to another machine already"}


def test_nothing_that_somebody_waits_for_or_is_kept_is_taken() -> None:
    lab = Lab(leaf_1="ac", leaf_2="b")
    lab.gang("ab")
    lab.jobs.append(job_view("job_w", 1, state=JobState.QUEUED))
    assert lab.stays() == {"is spread over switches, and another job waits for what it could move to"}
    lab.jobs[-1] = replace(lab.jobs[-1], resources=Resources(8, 8))
    assert len(lab.repairs()) == 1, "no host has as many"
    lab.kept = frozenset({"c/A100"})
    assert lab.repairs() == ()
    lab.kept = frozenset()
    kept = replace(lab.seen(), kept_hosts={"c/A100": "job_other"})
    assert plan_for(kept, Goal.POOLS, None, 100).repairs == ()
    lab.hosts["c"] = replace(lab.hosts["c"], kept={0: "another project"})
    assert lab.repairs() == (), "reserved"


def test_a_pools_limit_and_its_hours_hold() -> None:
    lab = Lab(leaf_1="ac", leaf_2="b")
    lab.gang("ab")
    for most, wanted in ((11, 0), (12, 1)):
        lab.pool = replace(lab.pool, most_gpus=most)
        assert len(lab.repairs()) == wanted, "it has eight, and four more meanwhile"
    lab.pool = replace(lab.pool, drains_ms=NOW_MS + HOUR_MS)
    assert lab.repairs() == ()


def test_machines_that_have_to_be_apart_never_come_together() -> None:
    lab = Lab(r1__leaf_1="ac", r2__leaf_2="b", r1__leaf_3="d")
    lab.gang("ab", most_under_one=MostUnderOne(rack=1))
    assert lab.repairs() == ()
    within = Lab(r1__leaf_1="ace", r1__leaf_2="b", r2__leaf_3="d")
    within.gang("abd", most_under_one=MostUnderOne(switch=2))
    (repair,) = within.repairs()
    assert repair.there == "2 under leaf-1 in rack r1, 1 under leaf-2 in rack r1"


def test_two_jobs_do_not_count_on_the_same_host_and_moves_are_counted() -> None:
    lab = Lab(leaf_1="ac", leaf_2="b", leaf_3="de", leaf_4="f")
    lab.gang("ab")
    lab.gang("df", "h")
    first, second = lab.repairs()
    assert {places(first), places(second)} == {"c", "e"}
    lab.pool = replace(lab.pool, most_gpus=20)
    assert len(lab.repairs()) == 1, "they have 16, and may have one more"
    lab.pool = replace(lab.pool, most_gpus=None)
    assert len(lab.repairs(1)) == 1 and lab.repairs(0) == ()
    same = Lab(leaf_1="xyc", leaf_2="ab")
    same.gang("xa")
    same.gang("yb", "h")
    (repair,) = same.repairs()
    assert places(repair) == "c"


def test_hosts_are_vacated_beside_it_and_not_onto_those_that_it_takes() -> None:
    lab = Lab(leaf_1="ac", leaf_2="b", leaf_3="de")
    lab.gang("ab", gpus=2)
    lab.trains(job_view("job_x", 1), "c")
    lab.trains(job_view("job_y", 1), "d")
    lab.trains(job_view("job_z", 1), "e")
    plan = plan_for(lab.seen(), Goal.POOLS, None, 100)
    assert len(plan.repairs) == 1 and plan.releases
    assert all("c/A100" not in one.touched for one in plan.releases)
    assert plan.moves == len(plan.repairs[0].places) + sum(len(one.steps) for one in plan.releases)


def test_a_job_on_several_machines_that_waits_comes_first() -> None:
    lab = Lab(leaf_1="a", leaf_2="b", leaf_3="cd", leaf_4="ef")
    lab.gang("ab")
    lab.trains(job_view("job_x", 1), "c")
    lab.trains(job_view("job_y", 1), "e")
    lab.jobs.append(replace(job_view("job_w", 4), resources=Resources(4, 4, nodes=2), state=JobState.QUEUED))
    plan = plan_for(lab.seen(), Goal.POOLS, None, 100)
    assert plan.repairs == ()


def test_by_schedule_only_what_is_known_to_save_twice_its_pause() -> None:
    lab = Lab(leaf_1="ac", leaf_2="b")
    lab.gang("ab", total_steps=1_000, step=500)
    assert lab.repairs(by_schedule=True) == () and len(lab.repairs()) == 1
    for saved_ms, wanted in ((16.7, 0), (16.9, 1)):
        seen = replace(lab.seen(), gains_ms={"job_g": saved_ms})
        plan = plan_for(seen, Goal.POOLS, None, 100, by_schedule=True)
        assert len(plan.repairs) == wanted, "500 steps, twice 4.2 s"
        assert plan.releases == ()
    assert plan.repairs[0].gain_ms == 8_450
    assert "it saves about 8.4 s, for a pause of 4.2 s" in plan.repairs[0].in_words


def test_it_begins_is_seen_to_arrive_and_rests() -> None:
    lab = Lab(leaf_1="ac", leaf_2="b")
    lab.gang("ab")
    (repair,) = lab.repairs()
    (repair,), begin = step(lab, repair)
    assert [one.offer_id for one in begin["job_g"].offers] == ["c-4xA100"]
    assert begin["job_g"].versions == (("job_g", 1), ("run_g_0", 1))
    repair = begun(repair, NOW_MS)
    lab.comes("c", state=NodeState.BOOTING)
    assert step(lab, repair) == ([repair], {})
    lab.leaves()
    (after,), begin = step(lab, repair)
    assert (after.state, after.there, begin) == (RepairState.DONE, "2 under leaf-1", {})
    assert lab.repairs() == () and lab.spread() == 0


def test_what_is_not_so_any_more_drops_it_before_it_begins() -> None:
    lab = Lab(leaf_1="ac", leaf_2="b")
    lab.gang("ab")
    (repair,) = lab.repairs()

    def why(lab: Lab, **more: Any) -> str:
        (after,), begin = step(lab, repair, **more)
        assert (after.state, begin) == (RepairState.DROPPED, {})
        return after.why

    assert why(lab, cancelled=True) == "it was called off"
    assert why(lab, planned_ms=NOW_MS - STALE_MS - 1) == "its plan is 30 min old"
    jobs, runs, hosts = lab.jobs, lab.runs, dict(lab.hosts)
    lab.jobs = [replace(jobs[0], locked=True)]
    assert why(lab) == "it has to stay: it is locked to its machine"
    lab.jobs = []
    assert why(lab) == "the job is over"
    lab.jobs = jobs
    lab.runs = runs[:1]
    assert why(lab) == "it is not where it was any more"
    lab.runs = runs
    lab.trains(job_view("job_new", 1), "c")
    assert why(lab) == "what it was to move to is not free any more"
    lab.jobs, lab.runs, lab.hosts = jobs[:1], runs[:2], hosts
    lab.domains["c"] = ("", "leaf-9")
    assert why(lab) == "it would be no closer there: labels, or its machines, have changed"
    lab.domains["c"] = ("", "leaf-1")
    lab.pool = replace(lab.pool, most_gpus=9)
    assert step(lab, repair) == ([repair], {}), "its pool's limit: it waits, until its plan is too old"


def test_what_goes_wrong_on_its_way_drops_it() -> None:
    lab = Lab(leaf_1="acd", leaf_2="b", leaf_3="e")
    lab.gang("abe")
    (repair,) = lab.repairs()
    repair = begun(repair, NOW_MS)
    lab.comes("c")
    (after,), _ = step(lab, repair)
    assert after.why == "not all of its next machines came"
    lab.comes("d", state=NodeState.DRAINING)
    assert step(lab, repair)[0][0].why == "not all of its next machines came"
    lab.nodes["node_next_d"] = replace(lab.nodes["node_next_d"], state=NodeState.READY)
    assert step(lab, repair)[0] == [repair]
    late = step(lab, repair, now_ms=NOW_MS + LONGEST_MS + 1)[0][0]
    assert late.why == "it took longer than 10 min"
    lab.jobs = [replace(lab.jobs[0], leaving=True)]
    assert step(lab, repair)[0][0].why == "the job was paused, or ended"
    lab.jobs = [replace(lab.jobs[0], leaving=False, state=JobState.PAUSED)]
    assert step(lab, repair)[0][0].why == "the job was paused, or ended"
    lab.jobs = [replace(lab.jobs[0], state=JobState.CHECKPOINTING)]
    assert step(lab, repair)[0] == [repair]


def test_one_that_begins_again_where_it_was_has_not_come_together() -> None:
    """One of its next machines is lost when it has left."""
    lab = Lab(leaf_1="ac", leaf_2="b")
    lab.gang("ab")
    (repair,) = lab.repairs()
    lab.leaves()
    (after,), _ = step(lab, begun(repair, NOW_MS))
    assert after.why == "the job began again otherwise: its machines are 1 under leaf-1, 1 under leaf-2"


def test_so_many_at_once_and_so_many_tries() -> None:
    lab = Lab(leaf_1="ac", leaf_2="b", leaf_3="de", leaf_4="f")
    lab.gang("ab")
    lab.gang("df", "h")
    repairs = lab.repairs()
    assert len(repairs) == 2 and len(step(lab, *repairs)[1]) == 1, "the next one sees what this one has left"
    assert step(lab, *repairs, at_once=0)[1] == {}
    repair = repairs[0]
    for _ in range(MOST_TRIES - 1):
        repair = not_begun(repair, "a limit")
        assert repair.state is RepairState.WAITING
    assert not_begun(repair, "a limit").state is RepairState.DROPPED


def blocked() -> Lab:
    """Host c, under leaf-1, would do, and a small job is there."""
    lab = Lab(leaf_1="ac", leaf_2="b", leaf_3="d")
    lab.gang("ab")
    lab.trains(job_view("job_x", 1), "c")
    lab.trains(job_view("job_y", 2), "d")
    return lab


def test_hosts_are_vacated_for_it_where_nothing_closer_is_free() -> None:
    plan = plan_for(blocked().seen(), Goal.POOLS, None, 100)
    (repair,), (release,) = plan.repairs, plan.releases
    assert (places(repair), repair.there, repair.moved_gpus) == ("c", "2 under leaf-1", 1)
    assert "with 1 other machine, once jobs on 1 GPUs have moved, 2 under leaf-1" in repair.in_words
    assert (release.for_job_id, [(one.job_id, one.target) for one in release.steps]) == ("job_g", [("job_x", "d/A100")])
    assert release.reason == (
        "all 4 GPUs of c are free after 1 move of 1 GPUs in all, and job_g can have all of its machines under leaf-1"
    )
    assert plan.held == (("job_g", ()),) and plan.moves == 2
    assert plan_for(blocked().seen(), Goal.POOLS, None, 1).repairs == (), "two moves"


def test_what_has_room_there_is_held_for_it_and_most_are_already_there() -> None:
    lab = Lab(leaf_1="acde", leaf_2="bx", leaf_3="fg", leaf_4="y")
    lab.gang("abx")
    for number, host in enumerate("dfy"):
        lab.trains(job_view(f"job_{number}", 1), host)
    lab.trains(job_view("job_pinned", 1, locked=True), "e")
    plan = plan_for(lab.seen(), Goal.POOLS, None, 100)
    (repair,) = plan.repairs
    assert (places(repair), plan.held) == ("cd", (("job_g", ("c/A100",)),))
    assert "c/A100" not in {step.target for one in plan.releases for step in one.steps}


def test_nobody_is_moved_for_a_job_that_has_to_be_apart_or_by_schedule_for_a_gain_that_is_less() -> None:
    lab = blocked()
    lab.jobs[0] = replace(lab.jobs[0], most_under_one=MostUnderOne(switch=1))
    assert plan_for(lab.seen(), Goal.POOLS, None, 100).repairs == ()
    lab = blocked()
    lab.jobs[0] = replace(lab.jobs[0], total_steps=1_000, step=0)
    for saved_ms, wanted in ((9.0, 0), (9.6, 1)):
        seen = replace(lab.seen(), gains_ms={"job_g": saved_ms})
        plan = plan_for(seen, Goal.POOLS, None, 100, by_schedule=True)
        assert len(plan.repairs) == len(plan.releases) == wanted, "twice the pauses of nine GPUs, for eight"


def test_its_own_move_is_the_last_of_the_chain() -> None:
    lab = blocked()
    plan = plan_for(lab.seen(), Goal.POOLS, None, 100)
    (repair,), (release,) = plan.repairs, plan.releases

    def after(state: ReleaseState, **more: Any) -> tuple[SwitchRepair, dict[str, Any]]:
        releases = [replace(release, state=state)]
        found = next_repairs([repair], lab.seen(), deciding(**more), LONGEST_MS, "dfrg_1", releases)
        return next(iter(found.changed), repair), dict(found.begin)

    assert after(ReleaseState.MOVING) == (repair, {})
    assert after(ReleaseState.DROPPED)[0].why == "not all of the hosts that it needs could be vacated"
    lab.begins_to_move("job_x", "d")
    lab.ends_to_move("job_x", done=True)
    assert list(after(ReleaseState.FREED)[1]) == ["job_g"]
    lab.jobs.append(job_view("job_w", 1, state=JobState.QUEUED, submitted_ms=NOW_MS - 1_000))
    assert after(ReleaseState.FREED) == (repair, {}), "who has just come has a place by the next decision"
    lab.jobs[-1] = replace(lab.jobs[-1], submitted_ms=NOW_MS - 60_000)
    assert after(ReleaseState.FREED)[0].why.endswith("another job waits for what it could move to")


FLEETS = st.integers(min_value=0, max_value=2**32)


@given(seed=FLEETS, rule=st.sampled_from(SwitchRule))
def test_any_fleet_comes_to_rest_and_no_job_is_ever_spread_more(seed: int, rule: SwitchRule) -> None:
    """Plans are carried out until there are none: each makes the jobs that it is about strictly closer, no GPU is given
    out twice, and bounds hold."""
    draw = random.Random(seed)
    names = iter("abcdefghijklmnopqrstuvwxyz")
    switches = {
        f"{draw.choice(['r1__', 'r2__', ''])}leaf_{number}": "".join(next(names) for _ in range(draw.randint(1, 5)))
        for number in range(draw.randint(2, 5))
    }
    lab = Lab(**switches)
    for number in range(draw.randint(1, 3)):
        free = [host for host in lab.hosts if not lab.hosts[host].taken]
        most = draw.choice([MostUnderOne(), MostUnderOne(), MostUnderOne(switch=draw.randint(1, 2))])
        size = draw.randint(2, 5)
        if len(free) >= size:
            lab.gang("".join(draw.sample(free, size)), f"g{number}", most_under_one=most)
    for number in range(draw.randint(0, 8)):
        free = [host for host in lab.hosts if lab.room(host)]
        if free:
            lab.trains(job_view(f"job_{number}", 1), draw.choice(free))
    for _ in range(40):
        plan = plan_for(replace(lab.seen(), rule=rule), Goal.POOLS, None, 100)
        repairs = plan.repairs
        if not repairs:
            break
        for one in (step for release in plan.releases if release.for_job_id for step in release.steps):
            lab.begins_to_move(one.job_id, one.target.partition("/")[0])  # it has room, or this raises
            lab.ends_to_move(one.job_id, done=True)
        assert len({place for one in repairs for place in one.places}) == sum(len(one.places) for one in repairs)
        for repair in repairs:
            before, job = lab.spread(repair.job_id), lab.job(repair.job_id)
            within = is_within(lab, job)
            for place in repair.places:
                assert lab.room(place.partition("/")[0]) >= job.resources.gpus_min
                lab.comes(place.partition("/")[0], repair.job_id)
            lab.leaves(repair.job_id, rule)
            after = lab.spread(repair.job_id)
            assert after < before
            assert is_within(lab, job) or not within
    else:
        raise AssertionError("it does not come to rest")


def is_within(lab: Lab, job: JobView) -> bool:
    seats = Seats(job.most_under_one.by_level)
    on = {run.node_id for run in lab.runs if job.job_id in run.job_ids}
    return all(seats.take(lab.domain(one.host)) for one in lab.rented if one.node_id in on)


def test_a_large_pool_is_looked_at_in_time() -> None:
    """64 machines under 64 switches, of 400 with 25 hosts each."""
    here = {f"own_{number}": ("r", f"leaf-{number}") for number in range(64)}
    free = {f"h_{number}": ("r", f"leaf-{number % 400}") for number in range(10_000)}
    begun_s = time.monotonic()
    found = closer(SwitchRule.FEWEST, here, free)
    assert found is not None and len(found.after) < 4
    assert time.monotonic() - begun_s < 5
