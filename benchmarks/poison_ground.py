"""The stack that poison is put into: a real PostgreSQL, the whole API, the control loop with all of its chores, and a
company in memory whose machines' agents speak the real wire. Time is virtual, so the same run comes out the same."""

from __future__ import annotations

import hashlib
import logging
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import text

from app.api.app import create_app
from app.api.context import ApiContext
from app.control.service import ControlService
from app.db.engine import Database, make_engine
from app.db.listen import Listener
from app.errors import AllpassError
from app.ports.objects import content_key
from app.services.access.create_key import create_key
from app.settings import Settings
from app.storage.directory import DirectoryStore
from benchmarks.poison_agents import Agent, Program
from tests.conftest import CountingIds, ManualClock
from tests.control.fake_provider import FakeProvider
from tests.seeds import seed_app, seed_project

TICK_S = 10  # of virtual time: everybody's turn comes once in it
_KEY = "a signing key of this benchmark, long enough"
_MOST_BATCHES = 50
_ROOM = 100_000  # so much that nobody meets the limit

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tenant:
    """A project with an app, and a client with a key of its own."""

    project_id: str
    app_id: str
    http: httpx.AsyncClient

    async def submit(self, name: str, template: dict[str, Any], **more: Any) -> str:
        body = {"app_id": self.app_id, "name": name, "template": template, "soft_deadline": "12hr", **more}
        answer = await self.http.post("/v1/jobs", json=body)
        assert answer.status_code == 201, answer.text
        job_id: str = answer.json()["id"]
        return job_id


@dataclass
class Ground:
    """`programs`: what the code of each job does, by the job's id. `failures`: what reached the outermost frame of a
    chore or of the loop, where it ends the round for everybody who comes after."""

    database: Database
    settings: Settings
    clock: ManualClock
    objects: DirectoryStore
    objects_folder: Path
    cloud: FakeProvider
    odd: FakeProvider  # a second company, at which only poison happens
    control: ControlService
    api: httpx.AsyncClient  # without a key
    tenants: list[Tenant]
    mallory: Tenant
    own_app_id: str  # an app of the poisoner's, with an image of its own
    programs: dict[str, Program] = field(default_factory=dict)
    agents: dict[str, Agent] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    server_errors: list[str] = field(default_factory=list)
    round_number: int = 0

    async def round(self) -> None:
        """One tick of virtual time: each agent, each chore, one decision, and the calls that it asked for."""
        await self._agents_turn()
        await self._guarded("lead", self.control.context.leader.step)
        for turn in self.control._timetable().values():
            for chore, work in turn.chores.items():
                await self._guarded(chore, work)
        await self._guarded("decide", lambda: self.control.loop.tick("tick"))
        await self._operate()
        self.clock.advance(s=TICK_S)
        self.round_number += 1

    async def execute(self, statement: str, **values: Any) -> list[Any]:
        """A statement beside the service: what an operator, a bug or a broken disk may have done to a row."""
        async with self.database.transaction() as connection:
            result = await connection.execute(text(statement), values)
            return list(result) if result.returns_rows else []

    async def store(self, project_id: str, content: bytes) -> str:
        sha256 = hashlib.sha256(content).hexdigest()
        await self.objects.put(content_key(project_id, sha256), content, sha256=sha256)
        return sha256

    async def _agents_turn(self) -> None:
        """A machine's agent lives as long as the machine. What an agent runs into is its machine's matter alone."""
        alive = {machine.label: machine for cloud in (self.cloud, self.odd) for machine in cloud.alive()}
        self.agents = {node_id: agent for node_id, agent in self.agents.items() if node_id in alive}
        for cloud in (self.cloud, self.odd):
            for rented in list(cloud.rented.values()):
                label = rented.machine.label
                if rented.join_token and label in alive and label not in self.agents:
                    self.agents[label] = Agent(self, label, rented.join_token, rented.nonce)
        for agent in list(self.agents.values()):
            await agent.turn()

    async def _operate(self) -> None:
        workers = self.control.workers
        for _ in range(_MOST_BATCHES):
            operations = await workers.of_all.claim(self.settings.operation_workers)
            if not operations:
                return
            for operation in operations:
                await workers.of_all.guarded(operation)

    async def _guarded(self, name: str, work: Callable[[], Awaitable[object]]) -> None:
        """As the service's outermost frames do it: what is raised there is logged, and the next turn comes."""
        try:
            await work()
        except AllpassError as error:
            self.failures.append(f"round {self.round_number}: {name}: {type(error).__name__}: {error}")
        except Exception as error:
            self.failures.append(f"round {self.round_number}: {name}: {type(error).__name__}: {error}")
            log.debug("%s", name, exc_info=True)


@asynccontextmanager
async def ground(database_url: str, folder: Path, *, tenants: int = 3) -> AsyncIterator[Ground]:
    """A stack over an empty migrated database."""
    clock = ManualClock()
    ids = CountingIds(clock)
    settings = Settings(
        database_url=database_url,  # type: ignore[arg-type]  # pydantic makes the secret of the text
        objects_signing_key=_KEY,  # type: ignore[arg-type]  # the same
        secret_key="s" * 40,  # type: ignore[arg-type]  # the same
        operation_timeout_s=30,
        leader_lease_s=600,
        rate_limit_per_s=0,
        serverless_limit=_ROOM,  # what is bad is put in here; that good work takes its share of a limit is no harm
        serverful_limit=_ROOM,
        policy_rules={"ahead_gain": _ROOM},  # what is rented ahead follows from how often a project's jobs come
        agent_poll_s=0.01,
        unreachable_after_s=3 * TICK_S,
        lost_after_s=3 * TICK_S,
        move_prepare_s=TICK_S,
    )
    async with AsyncExitStack() as stack:
        database = Database(make_engine(database_url, pool_size=8, timeout_s=30))
        stack.push_async_callback(database.close)
        listener = Listener(database_url, timeout_s=30)
        await listener.start()
        stack.push_async_callback(listener.close)
        objects = DirectoryStore(folder, "http://127.0.0.1:1", _KEY, max_object_bytes=2**30, clock=clock)
        application = create_app(ApiContext(database, listener, objects, settings, clock, ids))
        stack.push_async_callback(application.state.authenticator.settled)
        cloud, odd = FakeProvider(clock), FakeProvider(clock, name="odd")
        odd.on_offer = []
        control = ControlService(
            database=database,
            listener=listener,
            providers={provider.name: provider for provider in (cloud, odd)},
            settings=settings,
            clock=clock,
            ids=ids,
            objects=objects,
        )

        async def client(key: str | None = None) -> httpx.AsyncClient:
            headers = {} if key is None else {"Authorization": f"Bearer {key}"}
            transport = httpx.ASGITransport(app=application, raise_app_exceptions=False)
            return await stack.enter_async_context(
                httpx.AsyncClient(transport=transport, base_url="http://allpass", headers=headers, timeout=60)
            )

        async def tenant() -> Tenant:
            async with database.transaction() as connection:
                project_id = await seed_project(connection)
                app_id, _version_id = await seed_app(connection, project_id)
                key = await create_key(connection, project_id, "poison", ("admin",), clock=clock, ids=ids)
            return Tenant(project_id, app_id, await client(key))

        *made, mallory = [await tenant() for _ in range(tenants + 1)]
        async with database.transaction() as connection:
            own_app_id, _version_id = await seed_app(connection, mallory.project_id, base_image="poison:1")
        place = Ground(
            database, settings, clock, objects, folder, cloud, odd, control, await client(), made, mallory, own_app_id
        )
        await place.execute(
            "INSERT INTO budgets (id, project_id, provider, period, amount_micros, set_by, set_ms)"
            " VALUES ('bud_of_hers', :project_id, 'odd', 'day', :amount, '', 0)",
            project_id=place.mallory.project_id,
            amount=_ROOM * 1_000_000,
        )
        assert await control.context.leader.step()
        stack.push_async_callback(control.stop)
        yield place


@contextmanager
def quiet() -> Any:
    """The service logs what is wrong with poisoned rows, as it should: not here."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with tempfile.TemporaryDirectory(prefix="allpass-poison-") as folder:
            yield Path(folder)
    finally:
        logging.disable(before)
