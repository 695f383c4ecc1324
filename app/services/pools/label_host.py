"""What an owner says of a host: where it stands, and which switch it is under."""

from __future__ import annotations

from dataclasses import replace

from allpass.wire.pools import MOST_HOST_LABELS, HostChange
from app.db import notify
from app.db.connection import Connection
from app.db.pools.hosts import HostRow, lock_host, set_labels
from app.db.text import storable_json
from app.errors import InvalidInput, NotFound
from app.services.pools.drain_host import find_in_pool


async def label_host(connection: Connection, pool: str, named: str, change: HostChange) -> HostRow:
    """What is named is set or taken away, the rest stays; decisions heed it from the next one on. Raises NotFound,
    Conflict for a name that several hosts have, and InvalidInput for more labels than a host may have."""
    found = await find_in_pool(connection, pool, named)
    host = await lock_host(connection, found.host_id)  # two who label it at once both have what they said
    if host is None or host.left_ms is not None:
        raise NotFound(f"there is no host {named!r:.80} in pool {pool} (allpass pool show {pool})")
    merged = {**host.labels, **storable_json(change.labels)}
    labels = {name: value for name, value in sorted(merged.items()) if value is not None}
    if len(labels) > MOST_HOST_LABELS:
        raise InvalidInput(
            f"labels: {host.name} would have {len(labels)}; at most {MOST_HOST_LABELS}, take one away with null",
            param="labels",
        )
    await set_labels(connection, host.host_id, labels)
    await notify.control(connection)
    return replace(host, labels=labels)
