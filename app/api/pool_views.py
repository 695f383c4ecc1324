"""How pools and hosts are written in answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from allpass.wire.pools import Pool, PoolHost, PoolHostGpu, PoolHostQuota
from app.api.views import instant, instant_or_none, labels_view
from app.core.model.pool import HostQuota, OwnHost
from app.core.spot_share import FULL
from app.db.pools.hosts import HostRow
from app.services.pools.show_pools import ShownPool


def pool_view(shown: ShownPool) -> Pool:
    pool = shown.row.pool
    return Pool(
        name=pool.name,
        launcher=pool.launcher,
        state=shown.state,
        price_per_gpu_hour=pool.price.micros,
        spot_share=pool.spot_parts / FULL,
        rebate=pool.rebate_parts / FULL,
        grace_s=None if pool.grace_ms is None else pool.grace_ms // 1000,
        preference=pool.preference,
        projects=list(pool.projects),
        hours=shown.row.hours,
        most_gpus=pool.most_gpus,
        quotas=dict(pool.quotas),
        host_quotas=_host_quotas(pool.host_quotas),
        labels=labels_view(shown.row.labels),
        hosts=[host_view(one.row, one.seen, one.state) for one in shown.hosts],
        drains_at=instant_or_none(pool.drains_ms),
        created_at=instant(shown.row.created_ms),
    )


def _host_quotas(quotas: Iterable[HostQuota]) -> dict[str, list[PoolHostQuota]]:
    found: dict[str, list[PoolHostQuota]] = {}
    for one in quotas:
        view = PoolHostQuota(
            hosts=one.hosts,
            gpus=one.gpus,
            gpu_type=one.gpu_type,
            short_gpus=one.short_gpus,
            blocked_gpus=one.blocked_gpus,
        )
        found.setdefault(one.project_id, []).append(view)
    return found


def host_view(row: HostRow, seen: OwnHost | None, state: str) -> PoolHost:
    """A host whose facts cannot be read is shown with what can be."""
    facts = row.facts
    gpus = () if seen is None else seen.gpus
    return PoolHost(
        id=row.host_id,
        name=row.name,
        pool=row.pool,
        state=state,
        gpus=[
            PoolHostGpu(index=one.index, type=one.name, memory_bytes=one.memory_bytes, busy=one.is_busy) for one in gpus
        ],
        used=[] if seen is None else sorted(seen.taken),
        cpus=0 if seen is None else seen.cpus,
        memory_bytes=0 if seen is None else seen.memory_bytes,
        driver=_text(facts.get("driver")),
        why=_text(facts.get("unusable")),
        labels=labels_view(row.labels),
        joined_at=instant(row.joined_ms),
        heard_at=instant(row.heard_ms),
        leaves_at=instant_or_none(row.ends_ms),
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
