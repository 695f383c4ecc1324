"""Whom a guaranteed job has leave: on nodes of its project, and on hosts of pools."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.board import Board
from app.core.borrowing import PoolQuotas, PoolUse
from app.core.evicting import EvictableRun, Evicting, evict
from app.core.eviction import EvictionRule, GraceSaves, Saving
from app.core.host_spaces import HostSpace, host_spaces
from app.core.model.job import Affinity, Caps, JobState, PriorityClass, Resources, StartRule
from app.core.model.money import Money
from app.core.model.node import NodeState, Tier
from app.core.model.pool import HostGpu, OwnHost, Pool
from app.core.model.snapshot import JobView, NodeView
from tests.core.samples import GIB, NOW_MS, job, node, run, snapshot

MINUTE_MS = 60_000
BEGAN_MS = NOW_MS - 10 * MINUTE_MS
POOL = Pool("lab")


def spot(name: str, gpus: int = 1, on: str = "node_a", **saving: Any) -> EvictableRun:
    """A spot job that has trained for ten minutes and saved a minute ago."""
    values = {"started_ms": BEGAN_MS, "saved_ms": NOW_MS - MINUTE_MS} | saving
    return EvictableRun(f"run_{name}", f"job_{name}", on, gpus, Saving(**values))


def waits(name: str = "job_w", gpus: int = 1, **changes: Any) -> JobView:
    return job(name, **({"resources": Resources(gpus, gpus)} | changes))


def asked(
    runs: list[EvictableRun],
    line: list[JobView],
    nodes: list[NodeView] | None = None,
    hosts: list[HostSpace] | None = None,
    **options: Any,
) -> Evicting:
    held = [run(one.run_id, one.job_id, one.node_id, tier=Tier.MARKETPLACE) for one in runs]
    tenants = [
        job(
            one.job_id,
            JobState.RUNNING,
            resources=Resources(one.gpus, one.gpus),
            priority_class=PriorityClass.SPOT if one.is_spot else PriorityClass.GUARANTEED,
        )
        for one in runs
    ]
    full = [node("node_a", gpu_count=4, free_gpus=())] if nodes is None else nodes
    board = Board.of(snapshot(jobs=[*tenants, *line], runs=held, nodes=full))
    known = {"least_run_ms": MINUTE_MS} | options
    return evict(board, runs, hosts or [], {one.job_id for one in line}, **known)


def leaving(found: Evicting) -> dict[str, list[str]]:
    return {one.job_id: sorted(run.job_id for run in one.runs) for one in found.evictions}


def test_whoever_loses_least_leaves() -> None:
    """By what a save in the grace does not rescue, times its GPUs."""
    long, short = spot("a", saved_ms=NOW_MS - 5 * MINUTE_MS), spot("b")
    assert leaving(asked([long, short], [waits()])) == {"job_w": ["job_b"]}
    saves = spot("a", saved_ms=NOW_MS - 5 * MINUTE_MS, grace=GraceSaves(20, 20))
    assert leaving(asked([saves, short], [waits()])) == {"job_w": ["job_a"]}
    often = replace(saves, saving=replace(saves.saving, suffered=20))
    assert leaving(asked([often, short], [waits()])) == {"job_w": ["job_b"]}


def test_one_that_hides_its_checkpoints_is_not_spared_for_it() -> None:
    hides, shows = spot("a", saved_ms=None), spot("b", saved_ms=NOW_MS - MINUTE_MS)
    assert leaving(asked([hides, shows], [waits()])) == {"job_w": ["job_a"]}


def test_the_cheapest_node_is_taken() -> None:
    runs = [spot("a", 2, "node_a"), spot("b", 1, "node_b"), spot("c", 1, "node_b", saved_ms=NOW_MS)]
    nodes = [node(name, gpu_count=2, free_gpus=()) for name in ("node_a", "node_b")]
    assert leaving(asked(runs, [waits(gpus=2)], nodes)) == {"job_w": ["job_b", "job_c"]}


@pytest.mark.parametrize(
    "changes",
    [
        {"priority_class": PriorityClass.SPOT},
        {"start": StartRule.WHEN_CHEAP},
        {"not_before_ms": NOW_MS + 1},
        {"leaving": True},
        {"state": JobState.RUNNING},
        {"project_id": "proj_b"},
        {"caps": Caps(max_hourly=Money.usd("0.1"))},
        {"caps": Caps(max_cost=Money.usd("1")), "spent": Money.usd("1")},
        {"resources": Resources(5, 5)},
        {"resources": Resources(gpu_type="H100")},
        {"resources": Resources(base_image="own:1")},
    ],
    ids=str,
)
def test_nobody_leaves_for_a_job_that_could_not_begin_there_or_is_not_entitled(changes: dict[str, Any]) -> None:
    assert leaving(asked([spot("a", 4)], [waits(**changes)])) == {}


@pytest.mark.parametrize("state", [NodeState.DRAINING, NodeState.UNREACHABLE, NodeState.BOOTING])
def test_nobody_leaves_a_node_that_takes_no_jobs(state: NodeState) -> None:
    machine = node("node_a", gpu_count=4, free_gpus=(), state=state)
    assert leaving(asked([spot("a", 4)], [waits()], [machine])) == {}


def test_nobody_leaves_while_a_machine_comes_for_the_job_or_one_has_room() -> None:
    full = node("node_a", gpu_count=1, free_gpus=())
    comes = node("node_b", state=NodeState.BOOTING)
    assert leaving(asked([spot("a")], [waits()], [full, comes])) == {}
    assert leaving(asked([spot("a")], [waits()], [full, node("node_b")])) == {}
    small = node("node_b", state=NodeState.BOOTING, gpu_memory_bytes=1)
    needs = waits(resources=Resources(gpu_memory_bytes_min=GIB))
    assert leaving(asked([spot("a")], [needs], [full, small])) == {"job_w": ["job_a"]}


def test_those_that_have_just_begun_are_spared_and_it_is_known_until_when() -> None:
    young = spot("a", started_ms=NOW_MS - 20_000, saved_ms=None)
    found = asked([young], [waits()])
    assert (leaving(found), found.wake_at_ms) == ({}, NOW_MS + 40_000)
    assert asked([young], []).wake_at_ms is None


def test_each_job_of_a_line_has_others_leave_and_places_that_are_kept_are_left_alone() -> None:
    runs = [spot("a", on="node_a"), spot("b", on="node_b"), spot("c", on="node_c")]
    nodes = [node(one.node_id, free_gpus=()) for one in runs]
    line = [waits("job_w", deadline_ms=2), waits("job_v", deadline_ms=1), waits("job_x", deadline_ms=3)]
    assert leaving(asked(runs, line, nodes, closed=["node_b"])) == {"job_v": ["job_a"], "job_w": ["job_c"]}


def test_a_job_that_is_to_be_beside_another_goes_to_its_node_alone() -> None:
    runs = [spot("a", on="node_a"), spot("b", on="node_b")]
    nodes = [node(one.node_id, gpu_count=2, free_gpus=()) for one in runs]
    friend = job("job_f", JobState.RUNNING, affinity=Affinity(own=frozenset({"team=x"})))
    beside = waits(affinity=Affinity(beside=frozenset({"team=x"})))
    held = [run(one.run_id, one.job_id, one.node_id, tier=Tier.MARKETPLACE) for one in runs]
    with_friend = [*held, run("run_f", "job_f", "node_b", tier=Tier.MARKETPLACE)]
    tenants = [job(one.job_id, JobState.RUNNING) for one in runs]
    board = Board.of(snapshot(jobs=[*tenants, friend, beside], runs=with_friend, nodes=nodes))
    assert leaving(evict(board, runs, [], {"job_w"}, least_run_ms=0)) == {"job_w": ["job_b"]}


# Hosts of pools: of one project's nodes there, others' jobs may have the GPUs


def host(*taken: int, gpus: int = 4, **changes: Any) -> OwnHost:
    all_ = tuple(HostGpu(index, "A100", 80 * GIB) for index in range(gpus))
    return replace(OwnHost("host_a", "lab", 32, 2**38, all_, taken), **changes)


def spaces(pool: Pool, of: OwnHost, **nodes: tuple[int, ...]) -> list[HostSpace]:
    return host_spaces([pool], [of], {name: ("host_a", indices) for name, indices in nodes.items()}, NOW_MS)


def test_a_host_is_worth_what_it_would_offer_without_its_spot_jobs() -> None:
    (found,) = spaces(POOL, host(0, 1, 2), node_a=(0,), node_b=(2,))
    assert (found.place, found.free, dict(found.nodes)) == ("host_a/A100", 1, {"node_a": 1, "node_b": 1})
    assert [one.gpu_count for one in found.offers] == [1, 2, 3]


@pytest.mark.parametrize(
    ("pool", "of"),
    [
        (Pool("lab", drains_ms=1), host(0, 1, 2, 3)),
        (Pool("other"), host(0, 1, 2, 3)),
        (POOL, host(0, 1, 2, 3, is_open=False)),
        (Pool("lab", most_gpus=2), host(0, 1, 2, 3)),
    ],
    ids=["drains", "another pool", "silent", "limit is used by others"],
)
def test_a_host_that_would_offer_nothing_is_none(pool: Pool, of: OwnHost) -> None:
    assert spaces(pool, of, node_a=(0,)) == []


def test_jobs_of_any_project_leave_a_host_and_as_few_as_will_do() -> None:
    """Two nodes of one GPU each, of another project: none of them is the job's, the host's GPUs are."""
    of = spaces(POOL, host(0, 1, 2, 3), node_a=(0,), node_b=(1,), node_c=(2, 3))
    nodes = [
        node(name, Tier.OWN, project_id="proj_b", gpu_count=count, free_gpus=())
        for name, count in (("node_a", 1), ("node_b", 1), ("node_c", 2))
    ]
    runs = [spot("a", on="node_a"), spot("b", on="node_b"), spot("c", 2, "node_c", saved_ms=NOW_MS - 5 * MINUTE_MS)]
    found = asked(runs, [waits(gpus=2)], nodes, of)
    assert leaving(found) == {"job_w": ["job_a", "job_b"]}
    (one,) = found.evictions
    assert (one.asides[0].place, one.asides[0].gpus) == ("host_a/A100", 2)
    assert one.words[0] == "0 free and 2 freed are at least the 2 GPUs that it needs there"


def test_who_may_not_use_the_pool_has_nobody_leave_it() -> None:
    of = spaces(Pool("lab", projects=("proj_b",)), host(0), node_a=(0,))
    nodes = [node("node_a", Tier.OWN, project_id="proj_b", free_gpus=())]
    assert leaving(asked([spot("a")], [waits()], nodes, of)) == {}
    assert leaving(asked([spot("a")], [waits(project_id="proj_b")], nodes, of)) == {"job_w": ["job_a"]}


def test_a_share_of_the_hosts_processors_and_memory_is_enough_or_more_gpus_are_freed() -> None:
    of = spaces(POOL, host(0, 1, 2, 3), node_a=(0,), node_b=(1,), node_c=(2,))
    nodes = [node(name, Tier.OWN, project_id="proj_b", free_gpus=()) for name in ("node_a", "node_b", "node_c")]
    runs = [spot(name, on=f"node_{name}") for name in "abc"]
    needs = waits(resources=Resources(cpus_min=12))
    assert leaving(asked(runs, [needs], nodes, of)) == {"job_w": ["job_a", "job_b"]}


def test_a_node_of_its_own_project_comes_before_its_host() -> None:
    """What is there is taken as it is: nothing has to be cut anew."""
    of = spaces(POOL, host(0), node_a=(0,))
    found = asked([spot("a")], [waits()], [node("node_a", Tier.OWN, free_gpus=())], of)
    assert [one.asides[0].place for one in found.evictions] == ["node_a"]


# Quotas of a pool

LAB = Pool("lab", quotas=(("proj_a", 2), ("proj_b", 1)))


def of_pool(name: str, project: str, *, is_spot: bool = False, gpus: int = 1) -> EvictableRun:
    """On a node of its own, cut from the host."""
    made = spot(name, gpus, f"node_{name}")
    return replace(made, project_id=project, is_spot=is_spot, pool="lab")


def with_quotas(runs: list[EvictableRun], line: list[JobView], pending: int = 0) -> dict[str, list[str]]:
    """As many GPUs on the host as there are runs, each with one."""
    full = host(*range(len(runs)), gpus=len(runs))
    nodes = [
        node(one.node_id, Tier.OWN, project_id=one.project_id, provider="joined", region="lab", free_gpus=())
        for one in runs
    ]
    uses = [
        PoolUse("lab", one.project_id, one.gpus, one.run_id, index) for index, one in enumerate(runs) if not one.is_spot
    ]
    quotas = PoolQuotas.of([LAB], [*uses, *([PoolUse("lab", "proj_a", pending)] if pending else [])])
    may_leave = [one for one in runs if one.is_spot or one.run_id in quotas.borrowed]
    cut = {one.node_id: ("host_a", (runs.index(one),)) for one in may_leave}
    return leaving(asked(runs, line, nodes, host_spaces([LAB], [full], cut, NOW_MS), quotas=quotas))


def test_what_is_borrowed_is_given_back_to_who_is_sure_of_it() -> None:
    """The newest of what is beyond the quota; never what is within it."""
    runs = [of_pool(name, "proj_b") for name in ("b1", "b2", "b3")]
    assert with_quotas(runs, [waits()]) in ({"job_w": ["job_b2"]}, {"job_w": ["job_b3"]})
    assert with_quotas(runs, [waits(gpus=2)]) == {"job_w": ["job_b2", "job_b3"]}
    assert with_quotas(runs, [waits(gpus=3)]) == {}


def test_spot_jobs_leave_before_what_is_borrowed() -> None:
    runs = [of_pool("b1", "proj_b"), of_pool("b2", "proj_b"), of_pool("s", "proj_b", is_spot=True)]
    assert with_quotas(runs, [waits()]) == {"job_w": ["job_s"]}
    assert with_quotas(runs, [waits(gpus=2)]) == {"job_w": ["job_b2", "job_s"]}


def test_beyond_its_quota_a_project_has_its_own_spot_jobs_leave_alone() -> None:
    theirs, own = of_pool("s", "proj_b", is_spot=True), of_pool("t", "proj_a", is_spot=True)
    full = [of_pool("a1", "proj_a"), of_pool("a2", "proj_a")]
    assert with_quotas([*full, theirs], [waits()]) == {}
    assert with_quotas([*full, theirs, own], [waits()]) == {"job_w": ["job_t"]}
    assert with_quotas([theirs, own], [waits(project_id="proj_c")]) == {}


def test_a_project_never_has_its_own_guaranteed_jobs_leave() -> None:
    runs = [of_pool("a1", "proj_a", gpus=1), of_pool("c", "proj_c"), of_pool("a2", "proj_a"), of_pool("a3", "proj_a")]
    assert with_quotas(runs, [waits()]) == {}  # it has its two, and a third that it has borrowed
    assert with_quotas(runs[:2], [waits()]) == {"job_w": ["job_c"]}


def test_what_is_kept_for_its_jobs_counts_against_a_quota() -> None:
    runs = [of_pool("s", "proj_b", is_spot=True)]
    assert with_quotas(runs, [waits()], pending=1) == {"job_w": ["job_s"]}
    assert with_quotas(runs, [waits()], pending=2) == {}


def test_jobs_of_one_decision_share_what_is_left_of_a_quota() -> None:
    runs = [of_pool(f"s{n}", "proj_b", is_spot=True) for n in range(3)]
    line = [waits(f"job_w{n}", deadline_ms=n) for n in range(3)]
    found = with_quotas(runs, line)
    assert list(found) == ["job_w0"]  # one eviction on a host at a time


def test_a_long_line_of_many_kinds_keeps_no_other_project_waiting() -> None:
    """Of each project twenty are looked at, and twenty evictions are enough for one decision."""
    runs = [replace(spot(f"s{n:02}", on=f"node_{n:02}"), project_id="proj_a") for n in range(40)]
    nodes = [node(one.node_id, free_gpus=()) for one in runs]
    hopeless = [
        waits(f"job_{n:04}", deadline_ms=n, project_id="proj_b", resources=Resources(gpu_memory_bytes_min=2**40 + n))
        for n in range(1_000)
    ]
    line = [waits(f"job_w{n:02}", deadline_ms=10_000 + n) for n in range(30)]
    assert len(leaving(asked(runs, [*hopeless, *line], nodes))) == 20


# The paper's rule as it is printed


def literally(runs: list[EvictableRun], line: list[JobView], **options: Any) -> Evicting:
    return asked(runs, line, rule=EvictionRule.LITERAL, **options)


def test_by_the_printed_rule_a_save_in_the_grace_rescues_nothing() -> None:
    """Ours has those leave that save whenever they are asked; the printed one goes by the last checkpoint alone."""
    saves = spot("a", saved_ms=NOW_MS - 5 * MINUTE_MS, grace=GraceSaves(20, 20))
    never, line = spot("b", grace=GraceSaves(20, 0)), [waits()]
    assert leaving(asked([saves, never], line)) == {"job_w": ["job_a"]}
    found = literally([saves, never], line)
    assert leaving(found) == {"job_w": ["job_b"]}
    assert found.evictions[0].words[1:] == (
        "whom to end is chosen by the rule literal",
        "job_b ends for 60 GPU-seconds, that is 1 GPUs x 60 s since its last checkpoint",
    )


def test_by_the_printed_rule_idle_gpus_do_not_count_and_needless_victims_leave() -> None:
    """Two of four GPUs are idle and two are needed: it ends two for a job that ours does nothing for, and for three
    it ends three where one would do."""
    runs = [spot("a", saved_ms=NOW_MS), spot("b"), spot("c", 2, saved_ms=NOW_MS - 2 * MINUTE_MS)]
    half = [node("node_a", gpu_count=6, free_gpus=(4, 5))]
    needs = [waits(gpus=3)]
    assert leaving(asked(runs, needs, half)) == {"job_w": ["job_a"]}
    assert leaving(literally(runs, needs, nodes=half)) == {"job_w": ["job_a", "job_b", "job_c"]}


def test_by_the_printed_rule_too_nobody_leaves_unless_the_job_then_fits() -> None:
    runs = [spot("a"), spot("b", started_ms=NOW_MS - 20_000, saved_ms=None)]
    full = [node("node_a", gpu_count=4, free_gpus=())]
    assert leaving(literally(runs, [waits(gpus=2)], nodes=full)) == {}, "one of them has just begun"
    assert leaving(literally(runs, [waits(gpus=3)], nodes=full)) == {}


def test_what_the_printed_rule_counts_of_a_node_that_is_left_as_a_whole_is_of_all_its_jobs() -> None:
    """Two jobs of a GPU that saved 40 s ago lose more by it than one of two GPUs that saved 30 s ago."""
    of = spaces(POOL, host(0, 1, 2, 3), node_a=(0, 1), node_b=(2, 3))
    nodes = [node(name, Tier.OWN, project_id="proj_b", gpu_count=2, free_gpus=()) for name in ("node_a", "node_b")]
    ago = {"saved_ms": NOW_MS - 40_000}
    runs = [spot("a", on="node_a", **ago), spot("b", on="node_a", **ago)]
    runs.append(spot("c", 2, "node_b", saved_ms=NOW_MS - 30_000))
    assert leaving(literally(runs, [waits(gpus=2)], nodes=nodes, hosts=of)) == {"job_w": ["job_c"]}
    runs[2] = spot("c", 2, "node_b", saved_ms=NOW_MS - 50_000)
    assert leaving(literally(runs, [waits(gpus=2)], nodes=nodes, hosts=of)) == {"job_w": ["job_a", "job_b"]}


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 600), st.integers(0, 3)), min_size=1, max_size=8),
    st.integers(1, 4),
)
def test_whatever_the_rule_what_leaves_is_enough_and_the_same_jobs_may_begin(
    drawn: list[tuple[int, int, int]], need: int
) -> None:
    """Of the printed rule: on the chosen node the jobs in the order of its cost, and none more than it needs."""
    runs = [
        spot(f"{n}", gpus, f"node_{on}", saved_ms=NOW_MS - 1000 * ago_s) for n, (gpus, ago_s, on) in enumerate(drawn)
    ]
    held = {name: [one for one in runs if one.node_id == name] for name in {one.node_id for one in runs}}
    nodes = [node(name, gpu_count=sum(one.gpus for one in there), free_gpus=()) for name, there in sorted(held.items())]
    ours, printed = asked(runs, [waits(gpus=need)], nodes), literally(runs, [waits(gpus=need)], nodes=nodes)
    assert bool(ours.evictions) is bool(printed.evictions)
    for eviction in printed.evictions:
        there = sorted(
            held[eviction.asides[0].place],
            key=lambda one: (one.gpus * (NOW_MS - (one.saving.saved_ms or 0)), one.job_id),
        )
        taken = there[: len(eviction.runs)]
        assert {one.job_id for one in taken} == {one.job_id for one in eviction.runs}
        assert sum(one.gpus for one in taken[:-1]) < need <= sum(one.gpus for one in taken)
