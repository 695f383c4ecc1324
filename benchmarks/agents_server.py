"""The service as `benchmarks.agents` measures it: API and control loop in one process, over a cloud that stands."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import asyncpg
import uvicorn

from app.api.app import create_app
from app.api.context import ApiContext
from app.api.serving import serving_options
from app.collector import settle_collector
from app.control.service import ControlService
from app.core.model.money import Money
from app.core.model.node import BillingRule, BillingStart, ProviderTraits, Tier
from app.core.model.offer import Offer
from app.db.engine import Database, make_engine
from app.db.listen import Listener
from app.errors import NoCapacity
from app.ports.provider import Machine, MachineRequest, MachineStatus
from app.settings import Settings
from app.system import RandomIds, SystemClock
from benchmarks.streaming_server import SIGNING_KEY, objects_of

PROVIDER = "standing"
PRICE_MICROS = 470_000
_MACHINES = "SELECT id, provider_ref, billed_from_ms FROM nodes WHERE provider = $1"

OFFER = Offer(
    provider=PROVIDER,
    offer_id="a100",
    tier=Tier.MARKETPLACE,
    gpu_type="A100",
    gpu_count=1,
    gpu_memory_bytes=80 * 2**30,
    cpus=16,
    memory_bytes=64 * 2**30,
    price_per_hour=Money(PRICE_MICROS),
    startup_ms=30_000,
)


class StandingCloud:
    """Lists the machines that the benchmark wrote down as nodes; rents and ends none."""

    name = PROVIDER

    def __init__(self, database_url: str) -> None:
        self._url = database_url

    def traits(self) -> tuple[ProviderTraits, ...]:
        billing = BillingRule(unit_ms=1000, starts=BillingStart.READY)
        return (
            ProviderTraits(
                provider=PROVIDER,
                tier=Tier.MARKETPLACE,
                billing=billing,
                startup_mean_ms=30_000,
                startup_deadline_ms=600_000,
                create_grace_ms=60_000,
                dies_with_run=False,
                preemptible=True,
            ),
        )

    async def offers(self) -> list[Any]:
        return []

    async def list_owned(self) -> list[Machine]:
        connection = await asyncpg.connect(self._url)
        rows = await connection.fetch(
            "SELECT id, provider_ref, billed_from_ms FROM nodes WHERE provider = $1", PROVIDER
        )
        await connection.close()
        return [
            Machine(
                provider=PROVIDER,
                ref=row["provider_ref"],
                label=row["id"],
                tier=Tier.MARKETPLACE,
                status=MachineStatus.RUNNING,
                price_per_hour=Money(PRICE_MICROS),
                created_ms=row["billed_from_ms"],
                billed_from_ms=row["billed_from_ms"],
                billed_to_ms=None,
            )
            for row in rows
        ]

    async def find(self, label: str) -> list[Machine]:
        return [machine for machine in await self.list_owned() if machine.label == label]

    async def get(self, ref: str) -> Machine | None:
        return next((machine for machine in await self.list_owned() if machine.ref == ref), None)

    async def create(self, request: MachineRequest) -> NoReturn:
        raise NoCapacity("nothing is for rent here")

    async def terminate(self, ref: str) -> None:
        raise NoCapacity(f"{ref} stays: this cloud ends nothing")

    async def logs(self, ref: str, tail_lines: int) -> str:
        return ""

    async def close(self) -> None:
        return None


def build(world: dict[str, Any]) -> Any:
    """The whole application, with its control loop."""
    clock, url = SystemClock(), world["database_url"]
    settings = Settings(database_url=url, objects_signing_key=SIGNING_KEY, secret_key=SIGNING_KEY)
    database = Database(make_engine(url, pool_size=settings.database_pool_size, timeout_s=settings.database_timeout_s))
    listener, ids = Listener(url, timeout_s=30), RandomIds(clock)
    context = ApiContext(database, listener, objects_of(world["folder"]), settings, clock, ids)

    @asynccontextmanager
    async def lifespan(_app: Any) -> AsyncIterator[None]:
        await listener.start()
        control = ControlService(
            database=database,
            listener=listener,
            providers={PROVIDER: StandingCloud(url)},
            settings=settings,
            clock=clock,
            ids=ids,
        )
        await control.start()
        yield
        await control.stop()
        await listener.close()
        await database.close()

    return create_app(context, lifespan=lifespan)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    application = build(given)
    settle_collector()
    options = serving_options() | {"log_level": "error"}
    uvicorn.run(
        application, host="127.0.0.1", port=given["port"], loop="uvloop", timeout_graceful_shutdown=1, **options
    )
