"""What the leader tidies up: records that are old enough, counts of what has settled, and seals of earlier keys."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from app.control.context import ControlContext
from app.control.each import each, each_by_itself
from app.core.model.health import Chore
from app.db.access.audit import delete_entries
from app.db.access.idempotency import delete_answers
from app.db.access.sessions import delete_expired
from app.db.connection import Connection
from app.db.counting.counts import settle_counts
from app.db.decisions.changed_rows import delete_seen
from app.db.decisions.item_failures import delete_old_failures
from app.db.decisions.ticks import delete_old_ticks, delete_unseen_offers
from app.db.defragmentation.defragmentations import delete_old_defragmentations
from app.db.nodes.host_failures import delete_host_failures
from app.db.offers.image_builds import delete_builds
from app.db.offers.provider_checks import delete_checks
from app.db.pools.hosts import delete_left_hosts
from app.db.pools.machines import delete_machines
from app.db.pools.pools import delete_tokens
from app.services.access.reseal_secrets import reseal_secrets
from app.services.kit.seal import Sealer

_DAY_MS = 24 * 3_600_000
_BUILDS_KEPT_MS = 30 * _DAY_MS  # an image in use is asked for again, and found to be there
_DEFRAGMENTATIONS_KEPT_MS = 30 * _DAY_MS
_ENTRIES_AT_ONCE = 1000
_MOST_BATCHES = 20  # in one round; what is left is for the next one
# Moments are told by the clocks of several processes and committed a little later: what is older has all been seen.
SETTLED_AFTER_MS = 120_000
_CHANGES_AT_ONCE = 10_000
_MOST_BATCHES_OF_CHANGES = 200

Forget = Callable[[Connection], Awaitable[object]]


async def tidy_up(context: ControlContext) -> None:
    """One round, of parts that do not need each other. Raises Fenced when this process does not lead any more."""
    records = _what_is_old(context)

    async def forget(connection: Connection, what: str) -> None:
        await records[what](connection)

    await each(context, Chore.HOUSEKEEPING, records, forget)

    async def trim(_what: str) -> None:
        await _trim_audit_log(context)

    async def forget_changes(_what: str) -> None:
        await _forget_changes(context)

    async def reseal(_what: str) -> None:
        await reseal_secrets(context.database, Sealer.of(context.settings))

    await each_by_itself(context, Chore.HOUSEKEEPING, ["the audit log"], trim)
    await each_by_itself(context, Chore.HOUSEKEEPING, ["which rows changed"], forget_changes)
    await each_by_itself(context, Chore.HOUSEKEEPING, ["seals of earlier keys"], reseal)


def _what_is_old(context: ControlContext) -> dict[str, Forget]:
    now_ms, ticks_bytes = context.clock.now_ms(), context.settings.ticks_keep_bytes
    keep_answers_ms = int(context.settings.idempotency_keep_s * 1000)
    return {
        # Before decisions are forgotten, which are counted.
        "what has happened": lambda connection: settle_counts(connection, before_ms=now_ms - SETTLED_AFTER_MS),
        "decisions": lambda connection: delete_old_ticks(
            connection, before_ms=now_ms - context.settings.ticks_keep_days * _DAY_MS, most_bytes=ticks_bytes
        ),
        "what was on offer": lambda connection: delete_unseen_offers(connection, before_ms=now_ms - _DAY_MS),
        "answers": lambda connection: delete_answers(connection, before_ms=now_ms - keep_answers_ms),
        "sessions": lambda connection: delete_expired(connection, now_ms=now_ms),
        "checks": lambda connection: delete_checks(connection, before_ms=now_ms - _DAY_MS),
        "builds of images": lambda connection: delete_builds(connection, before_ms=now_ms - _BUILDS_KEPT_MS),
        "host failures": lambda connection: delete_host_failures(connection, now_ms=now_ms),
        "tokens of pools": lambda connection: delete_tokens(connection, now_ms=now_ms),
        "machines of hosts": lambda connection: delete_machines(connection, before_ms=now_ms - _DAY_MS),
        "hosts that have left": lambda connection: delete_left_hosts(connection, before_ms=now_ms - 2 * _DAY_MS),
        "defragmentations": lambda connection: delete_old_defragmentations(
            connection, before_ms=now_ms - _DEFRAGMENTATIONS_KEPT_MS
        ),
        "failures": lambda connection: delete_old_failures(connection, before_ms=now_ms - _DAY_MS),
    }


async def _trim_audit_log(context: ControlContext) -> None:
    """In batches of their own transactions: a log of years must not hold up what else is written."""
    if not context.settings.audit_retention_days:
        return
    before_ms = context.clock.now_ms() - context.settings.audit_retention_days * _DAY_MS
    for _ in range(_MOST_BATCHES):
        async with context.led() as connection:
            deleted = await delete_entries(connection, before_ms=before_ms, most=_ENTRIES_AT_ONCE)
        if deleted < _ENTRIES_AT_ONCE:
            return


async def _forget_changes(context: ControlContext) -> None:
    """As the audit log: thousands of running jobs write a row each few seconds."""
    for _ in range(_MOST_BATCHES_OF_CHANGES):
        async with context.led() as connection:
            deleted = await delete_seen(connection, most=_CHANGES_AT_ONCE)
        if deleted < _CHANGES_AT_ONCE:
            return
