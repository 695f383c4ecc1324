"""Seal secrets anew that were sealed under an earlier key, so that the earlier key can be given up."""

from __future__ import annotations

import logging

from app.db.access.secrets import lock_sealed_under, replace_seal
from app.db.engine import Database
from app.services.kit.seal import Sealer, Unsealable

_AT_ONCE = 100
log = logging.getLogger(__name__)


async def reseal_secrets(database: Database, sealer: Sealer) -> int:
    """Seal all of them under the current key, a hundred in a transaction; returns how many.

    One that does not open (its row was altered) is told in the log and stays as it is. One that is written at this
    very moment is left to that write, or to the next time.
    """
    if not sealer.earlier_key_ids:
        return 0
    after, resealed = ("", ""), 0
    while True:
        async with database.transaction() as connection:
            rows = await lock_sealed_under(connection, sealer.earlier_key_ids, after=after, limit=_AT_ONCE)
            for row in rows:
                try:
                    value = sealer.open(row.project_id, row.name, row.sealed, row.seal_key_id)
                except Unsealable as error:
                    log.error("%s", error.message)  # noqa: TRY400 - the trace tells nothing more
                    continue
                sealed = sealer.seal(row.project_id, row.name, value)
                await replace_seal(connection, row.project_id, row.name, sealed, sealer.key_id)
                resealed += 1
        if len(rows) < _AT_ONCE:
            break
        after = (rows[-1].project_id, rows[-1].name)
    if resealed:
        log.info("%d secrets that earlier keys had sealed are now sealed under the current key", resealed)
    return resealed
