"""What the leader tidies up: records that are old enough, and seals of earlier keys."""

from __future__ import annotations

from app.control.parts import ControlParts
from app.db.audit import forget_entries
from app.db.host_failures import forget_host_failures
from app.db.idempotency import forget_answers
from app.db.provider_checks import forget_checks
from app.db.ticks import drop_old_ticks
from app.services.reseal_secrets import reseal_secrets
from app.services.seal import Sealer

_DAY_MS = 24 * 3_600_000
_KEEP_TICKS_MS = 7 * _DAY_MS
_ENTRIES_AT_ONCE = 1000
_MOST_BATCHES = 20  # in one round; what is left is for the next one


async def tidy_up(parts: ControlParts) -> None:
    """One round. Raises Fenced when this process does not lead any more."""
    await _forget_what_is_old(parts)
    await _trim_audit_log(parts)
    await reseal_secrets(parts.database, Sealer.of(parts.settings))


async def _forget_what_is_old(parts: ControlParts) -> None:
    now_ms = parts.clock.now_ms()
    keep_answers_ms = int(parts.settings.idempotency_keep_s * 1000)
    async with parts.database.transaction() as connection:
        await parts.leader.guard(connection)
        await drop_old_ticks(connection, before_ms=now_ms - _KEEP_TICKS_MS)
        await forget_answers(connection, before_ms=now_ms - keep_answers_ms)
        await forget_checks(connection, before_ms=now_ms - _DAY_MS)
        await forget_host_failures(connection, now_ms=now_ms)


async def _trim_audit_log(parts: ControlParts) -> None:
    """In batches of their own transactions: a log of years must not hold up what else is written."""
    if not parts.settings.audit_retention_days:
        return
    before_ms = parts.clock.now_ms() - parts.settings.audit_retention_days * _DAY_MS
    for _ in range(_MOST_BATCHES):
        async with parts.database.transaction() as connection:
            await parts.leader.guard(connection)
            deleted = await forget_entries(connection, before_ms=before_ms, most=_ENTRIES_AT_ONCE)
        if deleted < _ENTRIES_AT_ONCE:
            return
