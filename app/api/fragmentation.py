"""How many requests of usual shapes would fit on a team's own machines now, and what the rest would wait for."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from allpass.wire import fragmentation as wire
from allpass.wire.pools import POOL_PATTERN
from app.api.auth import Reader
from app.api.context import ApiContext, context_of
from app.api.errors import documented
from app.core.fragmentation import StrandedRoom
from app.services.pools.show_fragmentation import show_fragmentation

router = APIRouter(prefix="/v1", tags=["pools"])
ContextOf = Annotated[ApiContext, Depends(context_of)]
PoolAsked = Annotated[
    str | None, Query(description="Of this pool alone", examples=["lab"], pattern=POOL_PATTERN, max_length=40)
]


@router.get(
    "/fragmentation",
    operation_id="get_fragmentation",
    summary="Show what would fit in pools",
    responses=documented(401, 403, 404, 422, 503),
)
async def get(caller: Reader, context: ContextOf, pool: PoolAsked = None) -> wire.Fragmentation:
    """Requests of each shape that would fit beside each other on hosts of pools now, from one GPU with 8 processors to
    whole hosts and gangs within one switch; and of the GPUs that are free, how many none of them could have, by why."""
    async with context.database.transaction() as connection:
        found = await show_fragmentation(connection, pool, now_ms=context.clock.now_ms())
    return wire.Fragmentation(
        pool=pool,
        hosts=found.hosts,
        whole_hosts=found.whole,
        gpus=found.gpus,
        free_gpus=found.free_gpus,
        switches=found.switches,
        racks=found.racks,
        requests=[wire.RequestFit(gpus=one.gpus, cpus=one.cpus, **_room(one.room)) for one in found.requests],
        gangs=[
            wire.GangFit(
                gpus=one.gpus,
                host_gpus=one.host_gpus,
                host_cpus=one.host_cpus,
                blocked_by_switch=one.room.for_switch,
                fitting_in_rack=None if one.in_rack is None else one.in_rack.fitting,
                blocked_by_rack=None if one.in_rack is None else one.in_rack.for_switch,
                **_room(one.room),
            )
            for one in found.gangs
        ],
    )


def _room(room: StrandedRoom) -> dict[str, int]:
    return {"fitting": room.fitting, "blocked_by_gpus": room.for_gpus, "blocked_by_cpus": room.for_cpus}
