"""Two jobs that train side by side are two runs of one process: what befalls one leaves the other as it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from app.core.model.plan import Migrate
from app.db import tables as t
from tests.control.moving import Moving
from tests.control.pairing import Pair
from tests.control.world import World


@pytest.fixture
def pair(world: World, tmp_path: Path) -> Pair:
    return Pair(world, tmp_path)


async def test_a_place_for_the_lead_is_one_for_both(pair: Pair) -> None:
    """One decision makes two runs: on the same GPUs, each with an epoch of its own; their agent is told of both."""
    await pair.begin("assigned")
    assert await pair.states() == ("starting", "starting")
    lead, companion = await pair.lead.run(pair.lead.source), await pair.companion.run(pair.companion.source)
    assert (lead.companion_of, companion.companion_of) == (None, lead.id)
    held = {row.run_id: (row.node_id, row.gpu_indices) for row in await pair.world.rows(t.allocations)}
    assert held[lead.id] == held[companion.id]
    told = await pair.orders()
    assert told[pair.lead.job_id].companion == companion.id
    assert told[pair.companion.job_id].companion_of == lead.id
    await pair.world.check_invariants()


async def test_decisions_see_one_job_and_one_run(pair: Pair) -> None:
    """The lead stands for both: the policy neither places the companion nor counts its run."""
    await pair.begin()
    seen = await pair.snapshot()
    (run,) = seen.runs
    assert (run.run_id, run.job_ids) == (pair.lead.source, (pair.lead.job_id, pair.companion.job_id))
    (node,) = seen.nodes
    assert node.free_gpus == ()
    assert (await pair.world.decide()) is not None
    assert len(await pair.world.rows(t.runs)) == 2


End = Callable[[Pair, Moving], Awaitable[object]]


def _exits(**how: Any) -> End:
    async def end(pair: Pair, side: Moving) -> None:
        await pair.says(side, "exited", 9, **how)

    return end


async def _is_cancelled(_pair: Pair, side: Moving) -> None:
    await side.cancel()


async def _is_paused(pair: Pair, side: Moving) -> None:
    """At once where no code runs; else it is asked to, and its agent does it."""
    await side.pause()
    if (await side.run(side.source)).state == "stopping":
        await pair.says(side, "exited", 9, exit_code=75, saved_after_stop=True)


# How one side ends, what its job becomes, and the merge. The other side is as it was.
ENDS: dict[str, tuple[End, str, str]] = {
    "finishes": (_exits(exit_code=0), "succeeded", "ended"),
    "fails": (_exits(exit_code=1), "waiting", "split"),
    "cannot be prepared": (_exits(environment_error="no such package"), "failed", "void"),
    "is cancelled": (_is_cancelled, "cancelled", "void"),
    "is paused": (_is_paused, "paused", "void"),
}


@pytest.mark.parametrize(
    ("of", "how", "state"),
    [
        *((of, how, "running") for of in ("lead", "companion") for how in ENDS if how != "cannot be prepared"),
        ("lead", "cannot be prepared", "starting"),
        ("companion", "cannot be prepared", "starting"),
        ("lead", "is cancelled", "assigned"),
        ("companion", "is paused", "assigned"),
        ("lead", "finishes", "stopping"),
        ("companion", "fails", "stopping"),
        ("lead", "is paused", "stopping"),
        ("companion", "is cancelled", "stopping"),
    ],
)
async def test_what_ends_one_side_leaves_the_other(pair: Pair, of: str, how: str, state: str) -> None:
    """However and whenever a side ends: the other one keeps its run, its GPUs and its machine, is an ordinary run from
    then on, and the machine goes with it."""
    end, becomes, merge = ENDS[how]
    if state == "stopping" and how == "fails":
        merge = "open"  # it was to leave, and has left
    await pair.begin(state)
    side: Moving = getattr(pair, of)
    other = pair.other(side)
    before = await pair.world.job(other.job_id)
    await end(pair, side)
    await pair.world.check_invariants()
    assert ((await pair.world.job(side.job_id)).state, await pair.merge_state()) == (becomes, merge)
    after = await pair.world.job(other.job_id)
    assert (after.state, after.epoch) == (before.state, before.epoch)
    assert (await side.run(side.source)).state == "ended"
    assert (await other.run(other.source)).state == state
    told = (await pair.orders())[other.job_id]
    assert (told.companion, told.companion_of) == (None, None)
    assert (await pair.world.node(pair.node_id)).state == "ready"
    await other.cancel()
    await pair.world.check_invariants()
    await pair.world.work()
    assert pair.world.cloud.alive() == []
    assert await pair.world.ledger_sum() == pair.world.cloud.bill().micros


async def test_a_process_that_dies_ends_both_sides_and_they_are_placed_together_again(pair: Pair) -> None:
    """Each side's own report says so; until the second has come, the pair is not placed."""
    await pair.begin()
    await pair.says(pair.lead, "exited", signal=9)
    assert (await pair.states(), await pair.merge_state()) == (("waiting", "running"), "open")
    (run,) = (await pair.snapshot()).runs
    assert run.job_ids == (pair.lead.job_id, pair.companion.job_id)
    await pair.world.decide()
    assert await pair.states() == ("waiting", "running")
    await pair.says(pair.companion, "exited", signal=9)
    assert (await pair.states(), await pair.merge_state()) == (("waiting", "waiting"), "open")
    faults = [(await pair.world.job(side.job_id)).faults for side in pair.sides]
    assert faults == [1, 1]
    await _goes_on_together(pair)


async def test_a_demotion_stops_both_and_they_are_placed_together_again(pair: Pair) -> None:
    """The policy names the one run that it sees; both save, leave, and get new epochs in one place."""
    await pair.begin("stopping")
    assert await pair.states() == ("checkpointing", "checkpointing")
    for side in pair.sides:
        await pair.says(side, "exited", 9, exit_code=75, saved_after_stop=True)
        await pair.world.check_invariants()
    assert (await pair.states(), await pair.merge_state()) == (("waiting", "waiting"), "open")
    await _goes_on_together(pair)


async def test_a_demotion_calls_off_a_companion_that_is_not_there_yet(pair: Pair) -> None:
    """Its code has nothing to save: it waits again at once, for the place of both."""
    await pair.begin("starting")
    await pair.says(pair.lead, "running")
    assert await pair.demote() == ()
    assert (await pair.states(), await pair.merge_state()) == (("checkpointing", "queued"), "open")
    await pair.says(pair.lead, "exited", 3, exit_code=75, saved_after_stop=True)
    await _goes_on_together(pair)


async def test_a_lost_machine_ends_both_and_they_are_placed_together_again(pair: Pair) -> None:
    """One machine, one loss: both wait, each with a fault, and the merge stays."""
    await pair.begin()
    await pair.lead.loses(pair.node_id)
    assert (await pair.states(), await pair.merge_state()) == (("waiting", "waiting"), "open")
    assert {row.end_reason for row in await pair.world.rows(t.runs)} == {"node_lost"}
    await _goes_on_together(pair)


async def test_a_machine_that_never_comes_gives_both_back(pair: Pair) -> None:
    """Both are queued again, merged as they were."""
    await pair.merge()
    await pair.world.decide()
    await pair.world.work()
    for _ in range(14):  # it has 120 s
        await pair.world.check_heartbeats()
        pair.world.clock.advance(s=10)
    assert (await pair.states(), await pair.merge_state()) == (("queued", "queued"), "open")
    await pair.world.check_invariants()


async def _goes_on_together(pair: Pair) -> None:
    """On another machine, under higher epochs, as the same merge."""
    before = [(await pair.world.job(side.job_id)).epoch for side in pair.sides]
    pair.world.clock.advance(s=60)
    await pair.place()
    for side, epoch in zip(pair.sides, before, strict=True):
        await pair.says(side, "running", 9)
        assert (await pair.world.job(side.job_id)).epoch > epoch
    assert (await pair.states(), await pair.merge_state()) == (("running", "running"), "open")
    assert (await pair.companion.run(pair.companion.source)).companion_of == pair.lead.source
    await pair.world.check_invariants()


async def test_a_pair_that_its_own_code_parts_is_split(pair: Pair) -> None:
    """Both have saved what they go on from: each waits for a place of its own, and they are not merged again."""
    await pair.begin()
    await pair.says(pair.lead, "exited", 9, exit_code=75, parted="no better in two epochs")
    assert (await pair.states(), await pair.merge_state()) == (("waiting", "running"), "split")
    await pair.says(pair.companion, "exited", 9, exit_code=75, parted="no better in two epochs")
    assert await pair.states() == ("waiting", "waiting")
    assert [(await pair.world.job(side.job_id)).faults for side in pair.sides] == [0, 0]
    pair.world.clock.advance(s=60)
    await pair.place()
    for side in pair.sides:
        assert (await side.run(side.source)).companion_of is None
    assert await pair.lead.place(pair.lead.source) != await pair.companion.place(pair.companion.source)
    await pair.world.check_invariants()


@pytest.mark.parametrize("last_lines", ["ValueError: no such label", "torch.OutOfMemoryError: CUDA out of memory."])
async def test_nobody_fails_for_the_other_ones_failure(pair: Pair, last_lines: str) -> None:
    """A process that fails ends both sides: each goes on by itself, and whose failure it was shows then."""
    await pair.begin()
    asked = [(await pair.world.job(side.job_id)).resources for side in pair.sides]
    for side in pair.sides:
        await pair.says(side, "exited", 9, exit_code=1, last_lines=last_lines)
        await pair.world.check_invariants()
    assert (await pair.states(), await pair.merge_state()) == (("waiting", "waiting"), "split")
    assert [(await pair.world.job(side.job_id)).faults for side in pair.sides] == [0, 0]
    assert [(await pair.world.job(side.job_id)).resources for side in pair.sides] == asked
    pair.world.clock.advance(s=60)
    await pair.place()
    await pair.says(pair.lead, "exited", 9, exit_code=1, last_lines="ValueError: no such label")
    assert await pair.states() == ("failed", "starting")
    await pair.world.check_invariants()


async def test_who_is_left_of_a_pair_is_judged_as_any_run(pair: Pair) -> None:
    """Once the other one has finished, a failure is one's own."""
    await pair.begin()
    await pair.says(pair.lead, "exited", 9, exit_code=0)
    await pair.says(pair.companion, "exited", 12, exit_code=1)
    assert (await pair.states(), await pair.merge_state()) == (("succeeded", "failed"), "ended")


async def test_a_run_that_is_alone_cannot_say_that_it_was_parted(pair: Pair) -> None:
    """What an agent tells of a process without a companion is judged by its exit code."""
    world = pair.world
    job_id, node_id = await world.run_on_serverless()
    await world.report(node_id, "exited", exit_code=75, parted="from nobody")
    assert (await world.job(job_id)).state == "failed"


async def test_a_side_that_was_to_pause_and_is_resumed_goes_its_own_way(pair: Pair) -> None:
    """It has left a process in which the other one trains on: they are not placed together again."""
    await pair.begin()
    await pair.lead.pause()
    world = pair.world
    await world.set_job(pair.lead.job_id, pause_reason=None)  # as when its owner resumes it before it has left
    await pair.says(pair.lead, "exited", 9, exit_code=75, saved_after_stop=True)
    assert (await pair.states(), await pair.merge_state()) == (("waiting", "running"), "void")
    await world.check_invariants()
    await world.decide()
    assert (await pair.states()) == ("starting", "running")


async def test_a_side_that_has_cost_its_limit_leaves_alone(pair: Pair) -> None:
    """Limits are each job's own, and so is what it has cost: the other one trains on."""
    await pair.begin()
    await pair.world.set_job(pair.companion.job_id, max_cost_micros=1)
    pair.world.clock.advance(s=30)
    await pair.says(pair.companion, "running", 3, tokens=10)
    await pair.world.meter()
    assert await pair.states() == ("running", "checkpointing")
    await pair.says(pair.companion, "exited", 4, exit_code=75, saved_after_stop=True)
    assert (await pair.states(), await pair.merge_state()) == (("running", "paused"), "void")
    await pair.world.check_invariants()


async def test_a_pair_is_not_moved_ahead(pair: Pair) -> None:
    """Make-before-break is for runs that have their process to themselves."""
    await pair.begin()
    run_id, job_id = pair.lead.source, pair.lead.job_id
    versions = await pair.lead.versions(job_id, run_id, pair.node_id)
    (dropped,) = await pair.enact(Migrate(job_id, run_id, pair.node_id, (0,), "cheaper", versions))
    assert "shares its process" in dropped.why


async def test_both_pay_for_the_same_gpus_by_tokens(pair: Pair) -> None:
    """The node's bill is shared by what each has processed since the last reading; who is left pays all of it."""
    await pair.begin()
    await pair.world.meter()
    start = await _spent(pair)
    for tokens, shares in (((300, 100), (7_500, 2_500)), ((300, 100), (5_000, 5_000)), ((300, 200), (0, 10_000))):
        pair.world.clock.advance(s=10)
        per_s = (await pair.world.node(pair.node_id)).price_micros_per_hour / 3600
        for side, count in zip(pair.sides, tokens, strict=True):
            await pair.says(side, "running", 1, tokens=count)
        before = await _spent(pair)
        await pair.world.meter()
        paid = [after - was for after, was in zip(await _spent(pair), before, strict=True)]
        assert paid == pytest.approx([share / 1000 * per_s for share in shares], abs=1)
    await pair.says(pair.lead, "exited", 9, exit_code=0, tokens=400)
    pair.world.clock.advance(s=10)
    await pair.says(pair.companion, "exited", 9, exit_code=0, tokens=900)
    await pair.world.work()
    paid_in_all = sum(await _spent(pair))
    assert paid_in_all == await pair.world.ledger_sum() == pair.world.cloud.bill().micros
    assert min(start) >= 0
    assert Counter(row.payer for row in await pair.world.rows(t.ledger)).keys() <= {"boot", "run"}


async def _spent(pair: Pair) -> list[int]:
    return [(await pair.world.job(side.job_id)).spent_micros for side in pair.sides]


async def test_tokens_never_go_back_and_a_fenced_run_counts_none(pair: Pair) -> None:
    """They decide who pays: what an agent says late or again changes nothing."""
    await pair.begin()
    await pair.says(pair.lead, "running", 5, tokens=70)
    await pair.says(pair.lead, "running", 6, tokens=60)
    await pair.lead.cancel()
    await pair.says(pair.lead, "running", 7, tokens=900)
    counted = {row.run_id: row.tokens for row in await pair.world.rows(t.run_jobs)}
    assert counted == {pair.lead.source: 70, pair.companion.source: 0}
