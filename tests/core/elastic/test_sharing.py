"""Whose GPU is taken, who has one more, and who comes first, where jobs share a machine and some lend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.elastic.kinds import ElasticKind, KindEvidence
from app.core.elastic.profile import MeasuredSpeed, SpeedProfile
from app.core.elastic.queues import PriorityQueue
from app.core.elastic.rules import LITERAL, MENDED, RULES, ElasticRules
from app.core.elastic.sharing import GpuSharing
from app.core.elastic.standing import JobUse, QueueStanding, first_standing
from app.core.lending import ElasticRun, Lending, lend
from app.core.model.job import PriorityClass
from app.core.model.snapshot import JobView
from app.core.resizing import GpusTold
from tests.core.samples import NOW_MS
from tests.core.test_lending import board_of, elastic, machine, sizes, waits

BATCH = first_standing(KindEvidence())
LONG = replace(BATCH, queue=PriorityQueue.LONG)
GUESSED = first_standing(KindEvidence(steps=1))
SAID = first_standing(KindEvidence(label=ElasticKind.INTERACTIVE))


def measured(**speeds: float) -> SpeedProfile:
    """E.g. `measured(g1=1.0, g2=1.9)`."""
    table = {int(name[1:]): MeasuredSpeed(speed, 0.001) for name, speed in speeds.items()}
    return SpeedProfile(max(table), measured=table)


def given_(
    standings: Mapping[str, QueueStanding] = {}, profiles: Mapping[str, SpeedProfile] = {}, **more: Any
) -> GpuSharing:  # fmt: skip
    return GpuSharing(
        more.pop("rules", MENDED),
        {f"job_{name}": one for name, one in standings.items()},
        profiles={f"run_{name}": one for name, one in profiles.items()},
        **more,
    )


def asked(gpus: int, runs: list[ElasticRun], line: list[JobView], sharing: GpuSharing) -> Lending:
    return lend(
        board_of([machine("node_a", gpus, *runs)], runs, line), runs, {one.job_id for one in line}, NOW_MS, sharing
    )


def three() -> list[ElasticRun]:
    return [elastic("a", 0, 1, 2, 3), elastic("b", 4, 5), elastic("c", 6, 7)]


def test_the_last_queue_gives_first_and_guesses_last() -> None:
    """Whatever they hold."""
    runs, line = three(), [waits("job_w")]
    assert sizes(asked(8, runs, line, given_({"a": BATCH, "b": LONG, "c": GUESSED}))) == {"run_b": 1}
    assert sizes(asked(8, runs, line, given_({"a": GUESSED, "b": BATCH, "c": GUESSED}))) == {"run_b": 1}
    assert sizes(asked(8, runs, line, given_({"a": GUESSED, "b": GUESSED, "c": GUESSED}))) == {"run_a": 3}


def test_of_one_that_its_owner_calls_interactive_no_part_is_taken() -> None:
    """Nobody waits for what cannot be had: all or nothing, of the others."""
    runs = three()
    said = given_({"a": SAID, "b": BATCH, "c": BATCH})
    assert sizes(asked(8, runs, [waits("job_w", 2)], said)) == {"run_b": 1, "run_c": 1}
    assert asked(8, runs, [waits("job_w", 3)], said).lent == ()


def test_whoever_loses_least_gives() -> None:
    """The largest holder would lose half of its speed with one GPU of four; the other one's second brings nothing."""
    runs = [elastic("a", 0, 1, 2, 3), elastic("b", 4, 5)]
    known = {"a": measured(g1=1.0, g3=2.0, g4=4.0), "b": measured(g1=1.0, g2=1.02)}
    assert sizes(asked(6, runs, [waits("job_w")], given_(profiles=known))) == {"run_b": 1}
    assert sizes(asked(6, runs, [waits("job_w")], given_())) == {"run_a": 3}


def test_where_literal_and_mended_part() -> None:
    """Points 1 and 2 of ADR 0097. `a` gains a fifth of its first speed with its third GPU and nothing with a fourth,
    which is all that the literal rule looks at; `b` gains 5 % with each."""
    runs = [elastic("a", 0, 1, 2, own=4), elastic("b", 3, 4, 5, own=4)]
    known = {"a": measured(g1=1.0, g2=2.0, g3=2.2, g4=2.2), "b": measured(g1=1.0, g2=1.05, g3=1.1, g4=1.15)}
    line = [waits("job_w")]
    assert sizes(asked(6, runs, line, given_(profiles=known))) == {"run_b": 2}
    assert sizes(asked(6, runs, line, given_(profiles=known, rules=LITERAL))) == {"run_a": 2}


def test_among_equals_whoever_was_served_most_gives() -> None:
    runs = [elastic("a", 0, 1), elastic("b", 2, 3)]
    uses = {"job_b": JobUse(served_gpu_s=1e6)}
    both = given_({"a": BATCH, "b": BATCH}, uses=uses)
    assert sizes(asked(4, runs, [waits("job_w")], both)) == {"run_b": 1}
    literal = replace(both, rules=LITERAL)  # which has no classes of service: the first one gives
    assert sizes(asked(4, runs, [waits("job_w")], literal)) == {"run_a": 1}


def test_interactive_jobs_are_lent_to_first_and_what_they_get_is_theirs_alone() -> None:
    """Before a batch job that is due earlier; it is said so, and set aside."""
    a = elastic("a", 0, 1)
    soon, later = waits("job_v", deadline_ms=NOW_MS + 1), waits("job_w", deadline_ms=NOW_MS + 9)
    found = asked(2, [a], [soon, later], given_({"v": BATCH, "w": GUESSED}))
    assert [(one.to_job_id, one.set_aside) for one in found.lent] == [("job_w", 1)]
    assert found.lent[0].reason == "lends 1 of 1 GPU that job_w, which is interactive, waits for"
    found = asked(2, [a], [soon, later], given_({"v": BATCH, "w": LONG}))
    assert [(one.to_job_id, one.set_aside) for one in found.lent] == [("job_v", 0)]


def test_inside_a_queue_deadlines_count_or_who_came_first() -> None:
    a = elastic("a", 0, 1)
    soon = waits("job_v", deadline_ms=NOW_MS + 1, submitted_ms=9)
    later = waits("job_w", deadline_ms=NOW_MS + 9, submitted_ms=1)
    for rules, first in ((MENDED, "job_v"), (LITERAL, "job_w")):
        found = asked(2, [a], [soon, later], given_(rules=rules))
        assert [one.to_job_id for one in found.lent] == [first]


def test_a_spot_job_comes_after_guaranteed_ones_whatever_its_kind() -> None:
    a = elastic("a", 0, 1)
    spot = waits("job_v", priority_class=PriorityClass.SPOT)
    found = asked(2, [a], [spot, waits("job_w")], given_({"v": SAID, "w": LONG}))
    assert [one.to_job_id for one in found.lent] == ["job_w"]


def test_idle_gpus_go_to_whoever_gains_most() -> None:
    """And all of its own to an interactive job before that."""
    runs = [elastic("a", 0, own=3), elastic("b", 1, own=3)]
    known = {"a": measured(g1=1.0, g2=1.1, g3=1.2), "b": measured(g1=1.0, g2=1.9, g3=2.7)}
    assert sizes(asked(4, runs, [], given_(profiles=known))) == {"run_b": 3}
    assert sizes(asked(4, runs, [], given_({"a": SAID}, profiles=known))) == {"run_a": 3}
    assert sizes(asked(4, runs, [], given_())) == {"run_a": 2, "run_b": 2}


def test_what_its_owner_counts_on_it_has_back_though_it_brings_nothing() -> None:
    """What was lent was promised to come back; more of a range is another matter."""
    flat = measured(g1=1.0, g2=1.0, g3=1.0)
    fixed = elastic("a", 0, own=3)
    assert sizes(asked(3, [fixed], [], given_(profiles={"a": flat}))) == {"run_a": 3}
    range_ = replace(fixed, is_range=True)
    assert asked(3, [range_], [], given_(profiles={"a": flat})).lent == ()
    untried = SpeedProfile(1, measured={1: MeasuredSpeed(1.0, 0.001)})
    assert sizes(asked(3, [range_], [], given_(profiles={"a": untried}))) == {"run_a": 3}


def test_where_one_more_brings_nothing_two_may() -> None:
    """A step in four parts: three GPUs are no faster than two, four twice as fast. With one that is idle it stays."""
    stairs = measured(g1=1.0, g2=2.0, g3=2.0, g4=4.0)
    a = replace(elastic("a", 0, 1, own=4), is_range=True)
    assert asked(3, [a], [], given_(profiles={"a": stairs})).lent == ()
    assert sizes(asked(4, [a], [], given_(profiles={"a": stairs}))) == {"run_a": 4}


def test_a_range_gives_up_what_made_it_no_faster() -> None:
    """Nobody has to wait for it: GPUs cost. What its owner counts on it keeps."""
    saturated = measured(g1=1.0, g2=1.8, g3=1.81, g4=1.8)
    a = replace(elastic("a", 0, 1, 2, 3, own=8), is_range=True)
    found = asked(8, [a], [], given_(profiles={"a": replace(saturated, ceiling=None)}))
    assert sizes(found) == {"run_a": 8}  # five to eight were never tried
    known = measured(g1=1.0, g2=1.8, g3=1.81, g4=1.8, g5=1.8, g6=1.8, g7=1.8, g8=1.8)
    found = asked(8, [a], [], given_(profiles={"a": known}))
    assert [(one.gpus, one.to_job_id, one.reason) for one in found.lent] == [
        (2, None, "gives up 2 GPUs that made it no faster")
    ]
    assert asked(8, [replace(a, least=4)], [], given_(profiles={"a": known})).lent == ()
    assert asked(4, [elastic("a", 0, 1, 2, 3)], [], given_(profiles={"a": known})).lent == ()


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0, 0.5)), min_size=8, max_size=8), st.integers(1, 8))
def test_what_it_gives_up_it_does_not_grow_back_to(curve: list[tuple[float, float]], held: int) -> None:
    """However noisy the measurements of a range are, with all GPUs of its machine to itself it comes to rest."""
    table = {size: MeasuredSpeed(*one) for size, one in enumerate(curve, 1)}
    known = given_(profiles={"a": SpeedProfile(1, measured=table)})
    had = []
    for _ in range(9):
        had.append(held)
        run = replace(elastic("a", *range(held), own=8), is_range=True)
        held = sizes(asked(8, [run], [], known)).get("run_a", held)
        if held == had[-1]:
            return
    raise AssertionError(f"it goes on: {had}")


@pytest.mark.parametrize(("left_ms", "then"), [(3_900, {}), (4_100, {"run_a": 2})])
def test_a_range_grows_where_that_saves_more_than_it_costs(left_ms: int, then: dict[str, int]) -> None:
    """Twice the pause, of what is left of its job. The literal rule counts no cost."""
    a = replace(elastic("a", 0, own=2), is_range=True)
    board = board_of([machine("node_a", 2, a)], [a], [])
    board.put_job(replace(board.jobs["job_a"], total_run_ms=NOW_MS + left_ms))  # it has run from 0 on
    assert sizes(lend(board, [a], set(), NOW_MS, given_())) == then
    assert sizes(lend(board, [a], set(), NOW_MS, given_(rules=LITERAL))) == {"run_a": 2}


def test_of_whose_length_nothing_is_known_the_mean_of_its_kind_is_expected() -> None:
    """It grows; a table that shows a gain of a hundredth does not make it."""
    a = replace(elastic("a", 0, own=2), is_range=True)
    some = measured(g1=1.0, g2=1.015)
    assert asked(2, [a], [], given_({"a": GUESSED}, {"a": measured(g1=1.0, g2=1.001)})).lent == ()
    assert sizes(asked(2, [a], [], given_({"a": GUESSED}, {"a": some}))) == {"run_a": 2}


kinds = st.sampled_from([None, BATCH, LONG, GUESSED, SAID])
speeds = st.lists(st.floats(0.01, 100), min_size=8, max_size=8)


@given(
    st.lists(st.tuples(st.integers(1, 8), st.integers(1, 8), kinds, speeds, st.booleans()), min_size=1, max_size=4),
    st.integers(0, 4),
    st.lists(st.tuples(st.integers(1, 9), kinds), max_size=4),
    st.sampled_from(list(RULES.values())),
)
def test_whatever_is_known_nobody_is_ended_and_nothing_given_twice(
    tenants: list[tuple[int, int, QueueStanding | None, list[float], bool]],
    free: int,
    line: list[tuple[int, QueueStanding | None]],
    rules: ElasticRules,
) -> None:
    """Any measured speeds, also ones that fall, any queues and either rules: sizes stay between one and what is its
    own, fit the machine, and whoever is called interactive lends nothing."""
    runs, index = [], 0
    standings: dict[str, QueueStanding] = {}
    profiles = {}
    for number, (held, own, standing, curve, is_range) in enumerate(tenants):
        count = min(held, own)
        run = replace(elastic(str(number), *range(index, index + count), own=own), is_range=is_range)
        runs.append(run)
        index += count
        table = {size: MeasuredSpeed(speed, 0.0) for size, speed in enumerate(curve[:own], 1)}
        profiles[str(number)] = SpeedProfile(run.asked, measured=table)
        if standing is not None:
            standings[str(number)] = standing
    total = index + free
    jobs = [waits(f"job_w{number}", gpus) for number, (gpus, _) in enumerate(line)]
    standings |= {f"w{number}": one for number, (_, one) in enumerate(line) if one is not None}
    found = asked(total, runs, jobs, given_(standings, profiles, rules=rules))
    after = {one.run_id: one.held.wanted for one in runs} | sizes(found)
    assert all(1 <= after[one.run_id] <= max(one.own, one.held.wanted) for one in runs)
    assert sum(after.values()) <= total
    for one in found.lent:
        if one.gpus < one.run.held.wanted and standings.get(one.run.job_id.removeprefix("job_")) is SAID:
            assert one.to_job_id is None and one.run.is_range  # by itself, for they made it no faster
    for one in found.lent:
        if one.to_job_id is not None:
            wanted = line[int(one.to_job_id.removeprefix("job_w"))][0]
            assert total - sum(after.values()) >= wanted
            assert one.set_aside in (0, wanted)


def test_of_equals_one_that_need_not_begin_again_lends() -> None:
    """Though it holds less. A smaller loss counts more than a pause."""
    a = elastic("a", 0, 1, 2, 3, restarts=True, changed_ms=0)
    b = elastic("b", 4, 5)
    assert sizes(asked(6, [a, b], [waits("job_w")], given_())) == {"run_b": 1}
    known = {"b": measured(g1=1.0, g2=3.0)}
    assert sizes(asked(6, [a, b], [waits("job_w")], given_(profiles=known))) == {"run_a": 3}


@pytest.mark.parametrize(
    ("pause_ms", "left_s", "grows"),
    [(None, 300, False), (None, 400, True), (10_000, 30, False), (10_000, 60, True), (10, 60, True)],
    ids=["as counted", "long enough", "as measured", "as measured and long enough", "hardly any"],
)
def test_a_range_is_begun_again_where_that_saves_more_than_its_pause(
    pause_ms: int | None, left_s: int, grows: bool
) -> None:
    """As counted by the settings, until it has had one."""
    told = GpusTold((0,), pause_ms=pause_ms)
    a = elastic("a", 0, own=2, is_range=True, restarts=True, restart_s=84.0, told=told, changed_ms=0)
    board = board_of([machine("node_a", 2, a)], [a], [])
    board.put_job(replace(board.jobs["job_a"], total_run_ms=NOW_MS + left_s * 1000))
    assert (sizes(lend(board, [a], set(), NOW_MS, given_())) == {"run_a": 2}) is grows


def test_of_equals_the_largest_holder_lends_whatever_its_last_change_took() -> None:
    """Pauses of trainings that go on are a matter of moments, and noise would decide."""
    a = elastic("a", 0, 1, 2, 3, told=GpusTold((0, 1, 2, 3), pause_ms=3_100))
    b = elastic("b", 4, 5, told=GpusTold((4, 5), pause_ms=3_000))
    assert sizes(asked(6, [a, b], [waits("job_w")], given_())) == {"run_a": 3}


@pytest.mark.parametrize(
    ("pause_ms", "left_s", "grows"),
    [(None, 3, False), (None, 5, True), (200, 5, True), (9_000, 30, False), (9_000, 40, True)],
    ids=["as counted", "long enough", "never less", "as measured", "as measured and long enough"],
)
def test_a_range_has_more_where_that_saves_more_than_its_last_change_took(
    pause_ms: int | None, left_s: int, grows: bool
) -> None:
    """Of a training whose processes come and go while it runs: a large one hands over more. Others rest as ever."""
    a = elastic("a", 0, own=2, is_range=True, told=GpusTold((0,), pause_ms=pause_ms), changed_ms=0)
    board = board_of([machine("node_a", 2, a)], [a], [])
    board.put_job(replace(board.jobs["job_a"], total_run_ms=NOW_MS + left_s * 1000))
    assert (sizes(lend(board, [a], set(), NOW_MS, given_())) == {"run_a": 2}) is grows
    assert (a.rest_ms, a.leaves_after_ms) == (5_000, 0)


def test_one_that_is_begun_again_rests_for_longer() -> None:
    """So that it trains for most of its time."""
    a = elastic("a", 0, 1, restarts=True, told=GpusTold((0, 1), pause_ms=20_000))
    assert (a.rest_ms, a.leaves_after_ms) == (40_000, 20_000)
    for since_ms, then in ((39_999, {}), (40_000, {"run_a": 1})):
        run = replace(a, changed_ms=NOW_MS - since_ms)
        assert sizes(asked(2, [run], [waits("job_w")], given_())) == then


@given(st.lists(st.floats(0.1, 2.0), min_size=8, max_size=8), st.integers(1, 8))
def test_steps_a_second_are_no_speed_of_code_that_is_restarted(speeds: list[float], size: int) -> None:
    """Its batch follows its GPUs: as many steps a second with eight are eight times the rows. It is given what is idle,
    and gives nothing up for what it was measured at."""
    run = elastic("a", *range(size), own=8, is_range=True, restarts=True, restart_s=84.0, changed_ms=0)
    known = SpeedProfile(1, measured={count + 1: MeasuredSpeed(one, 0.002) for count, one in enumerate(speeds)})
    slow, unknown = given_(profiles={"a": known}), given_()
    board = board_of([machine("node_a", 8, run)], [run], [])
    assert lend(board, [run], set(), NOW_MS, slow) == lend(board, [run], set(), NOW_MS, unknown)
    assert slow.useful(run) == size
    assert slow.lender_key(run, size) == unknown.lender_key(run, size)
    assert all(slow.grows(run, size, idle) for idle in range(1, 9 - size))


def test_who_begins_on_more_after_a_save_alone_has_back_what_it_lent_and_no_more() -> None:
    """When that save comes nobody knows, and what is idle until then is paid for."""
    told = GpusTold((0, 1), after_save=True)
    run = elastic("a", 0, 1, own=4, restarts=True, told=told, changed_ms=0)
    grows = given_().grows
    assert grows(run, 2, 2)
    assert not grows(replace(run, is_range=True), 2, 2)
    assert grows(replace(run, is_range=True, told=GpusTold((0, 1))), 2, 2)
