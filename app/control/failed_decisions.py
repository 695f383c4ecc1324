"""Jobs, nodes and offers with which no decision can be made, and rows that cannot be read: told, counted, tried again.

Each is told once when it begins, and forgotten when it is over. What concerns a job is told to the job as the reason
why it waits. A job without a run that makes three decisions in a row fail is held, as one whose actions fail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from app.control.context import ControlContext
from app.control.each import each
from app.control.failed_actions import RESTS_MS, note_failure, too_many
from app.control.observe import Observation
from app.core.board import Board
from app.core.deciding import Decided, Noun, beside_hidden, decide_apart
from app.core.following import KeptBoard
from app.core.leaving_out import leave_out
from app.core.model.health import Chore, PartKind
from app.core.model.node import Tier
from app.core.model.plan import Plan, Waiting
from app.core.policy import Policy, PolicyConfig, PolicyState
from app.db.connection import Connection
from app.db.decisions.item_failures import delete_failures
from app.db.transitions import Event

DECISION = "decision"
ROW = "row "  # and the table
_UNREAD = Event("row_unreadable", "its row cannot be read and is left out of decisions: an error of the service")
_BLAMED = Event("decision_failed", "decisions fail on it and are made without it: an error of the service")
_WHY_BLAMED = "decisions fail on this job: an error of the service, not of the job; it is tried again by itself"
_WHY_UNREAD = "it, or what belongs to it, cannot be read: an error of the service; what runs of it runs on"
_WHY_UNSEEN = "was not looked at in this decision, which fails on other jobs; comes into the next one"


def choose(
    policy: Policy, seen: Observation, state: PolicyState, config: PolicyConfig, kept: KeptBoard | None = None
) -> Decided:
    """A decision without what makes it fail, and with why those wait that it says nothing about. `kept`: the board that
    decisions before were made on, which goes on to this one."""
    resting = seen.resting(DECISION)
    suspects = {row_id for row_id, what in seen.failures if what == DECISION}
    known, rested = leave_out(seen.snapshot, job_ids=resting, node_ids=resting, offers=resting)
    hidden = [str(node.tier) for node in seen.snapshot.nodes if node.node_id in resting] + seen.reading.hidden_tiers
    serverless = hidden.count(Tier.SERVERLESS)
    limits = beside_hidden(config, serverless=serverless, serverful=len(hidden) - serverless)
    decided = decide_apart(
        policy, known, state, limits, suspects=suspects, board_of=Board.of if kept is None else kept.of
    )
    unseen = {member.key for member in decided.unseen if member.noun is Noun.JOB}
    waits = dict.fromkeys(sorted(decided.left_out | rested), _WHY_BLAMED)
    waits |= dict.fromkeys(sorted(unseen & decided.left_out), _WHY_UNSEEN)
    waits |= dict.fromkeys(sorted(seen.reading.job_ids), _WHY_UNREAD)
    return replace(decided, plan=_also_waiting(decided.plan, waits), left_out=frozenset(waits))


async def note_failures(context: ControlContext, seen: Observation, decided: Decided) -> None:
    """After a decision: what it was made without is told once, and what it could be made with again is forgotten."""
    await _note_unread(context, seen)
    if decided.blamed:
        assert decided.error is not None
        context.health.tell("decide", ", ".join(member.key for member in decided.blamed), decided.error)
        await context.health.count(PartKind.DECISION, Counter({"": 1}))
        many = too_many(seen.failures, {(member.key, DECISION) for member in decided.blamed}, seen.snapshot.now_ms)
        for member in decided.blamed:
            may_hold = member.noun is Noun.JOB and not many
            await note_failure(context, (member.key, DECISION), _first(_BLAMED), rests_ms=RESTS_MS, may_hold=may_hold)
    out = {member.key for member in (*decided.blamed, *decided.unseen)} | seen.resting(DECISION)
    healed = {key for key in seen.failures if key[1] == DECISION and key[0] not in out}
    await _forget(context, healed)


async def _note_unread(context: ControlContext, seen: Observation) -> None:
    now = {(row_id or table, ROW + table): (table, row_id) for table, row_id in seen.reading.unread}
    before = {key for key in seen.failures if key[1].startswith(ROW)}
    fresh = {key: row for key, row in now.items() if key not in before}
    for (table, row_id), error in seen.reading.unread.items():
        if (row_id or table, ROW + table) in fresh:
            context.health.tell("read", f"{table} {row_id}", error)
    if fresh:
        await context.health.count(PartKind.ROW, Counter(table for table, _ in fresh.values()))
    for key in sorted(fresh):
        await note_failure(context, key, _first(_UNREAD))
    await _forget(context, before - now.keys())


def _first(event: Event) -> Callable[[int], Event | None]:
    return lambda in_a_row: event if in_a_row == 1 else None


async def _forget(context: ControlContext, keys: Iterable[tuple[str, str]]) -> None:
    gone = sorted(keys)

    async def forget(connection: Connection, _what: str) -> None:
        await delete_failures(connection, gone)

    if gone:
        await each(context, Chore.TELL, ["what is over"], forget)


def _also_waiting(plan: Plan, waits: dict[str, str]) -> Plan:
    if not waits:
        return plan
    kept = tuple(wait for wait in plan.waiting if wait.job_id not in waits)
    return replace(plan, waiting=kept + tuple(Waiting(job_id, why) for job_id, why in waits.items()))
