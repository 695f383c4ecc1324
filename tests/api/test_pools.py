"""Pools of own machines: defined by owners, joined by hosts, which say what is and hear what should be."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import update

from app.api.context import ApiContext
from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.db.offers.listed import recent_offers
from app.db.tables import host_machines, hosts, pools
from app.db.unreadable import RowReading
from app.errors import NoCapacity, OfferGone, PriceMoved
from app.ports.provider import Machine, MachineRequest, MachineStatus
from app.services.kit.seal import Sealer
from app.services.pools.own_hosts import DatabaseHosts
from tests.api.conftest import Tenant, client, error_of, make_tenant

GIB = 1024**3
NONCE = "a" * 64
BOOTSTRAP = (("ALLPASS_URL", "http://127.0.0.1:1"), ("ALLPASS_JOIN_TOKEN", "a secret of the node"))
MINUTE_MS = 60_000


@pytest.fixture
async def owner(api: FastAPI, context: ApiContext) -> AsyncIterator[Tenant]:
    async with make_tenant(api, context, ("owner",)) as made:
        yield made


@pytest.fixture
def own(context: ApiContext) -> DatabaseHosts:
    return DatabaseHosts(context.database, Sealer.of(context.settings), context.clock, context.ids)


def facts(*names: str, busy: tuple[int, ...] = (), **more: Any) -> dict[str, Any]:
    gpus = [
        {"index": index, "name": name, "memory_bytes": 80 * GIB, "busy": index in busy}
        for index, name in enumerate(names)
    ]
    return {"cpus": 16, "memory_bytes": 64 * GIB, "disk_free_bytes": GIB, "gpus": gpus, "driver": "550.90.07", **more}


A100 = "NVIDIA A100-SXM4-80GB"


class HostCaller:
    """A host of a pool, as far as its service can tell."""

    def __init__(self, api: FastAPI) -> None:
        self._api = api
        self.http = client(api)
        self.host_id = ""
        self.facts: dict[str, Any] = facts(A100, A100)
        self.boot_id = "boot 1"
        self.running: list[dict[str, Any]] = []
        self.version = 0

    async def join(self, token: str, nonce: str = NONCE, name: str = "box", **more: Any) -> httpx.Response:
        body = {"nonce": nonce, "name": name, "boot_id": self.boot_id, "facts": self.facts, **more}
        bearer = {"Authorization": f"Bearer {token}"}
        answer = await self.http.post("/v1/agent/hosts/join", json=body, headers=bearer)
        if answer.status_code == 200:
            self.host_id = answer.json()["host_id"]
            self.http.headers["Authorization"] = f"Bearer {answer.json()['host_token']}"
        return answer

    async def sync(self, **more: Any) -> httpx.Response:
        body = {"boot_id": self.boot_id, "facts": self.facts, "machines": self.running, "version": self.version}
        return await self.http.post("/v1/agent/hosts/sync", json={**body, "wait_s": 0, **more})

    async def told(self, **more: Any) -> dict[str, Any]:
        answer = await self.sync(**more)
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        self.version = told["version"]
        return told


async def token_of(owner: Tenant, pool: str = "lab", **settings: Any) -> str:
    answer = await owner.http.post(f"/v1/pools/{pool}/tokens", json=settings)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["token"])


@pytest.fixture
async def host(api: FastAPI, owner: Tenant) -> HostCaller:
    """One that has joined pool `lab`, with two GPUs."""
    assert (await owner.http.post("/v1/pools", json={"name": "lab"})).status_code == 201
    caller = HostCaller(api)
    assert (await caller.join(await token_of(owner))).status_code == 200
    return caller


def request_of(offer: Offer, label: str = "node_1") -> MachineRequest:
    return MachineRequest(label, offer, offer.price_per_hour, "image", BOOTSTRAP)


async def offer_of(own: DatabaseHosts, count: int = 1) -> Offer:
    return next(offer for offer in await own.offers() if offer.gpu_count == count)


async def test_a_pool_is_defined_changed_and_removed(owner: Tenant, tenant: Tenant) -> None:
    """Its owner says what it costs and who may use it; everybody reads it; the audit log tells of each step."""
    project = (await owner.http.post("/v1/projects", json={"name": "research"})).json()["id"]
    body = {"name": "lab", "price_usd": 0.4, "projects": ["research"], "hours": "mon-fri 20:00-08:00", "most_gpus": 4}
    made = await owner.http.post("/v1/pools", json=body)
    assert made.status_code == 201, made.text
    assert made.json()["price_per_gpu_hour"] == 400_000
    assert made.json()["projects"] == [project]
    error_of(await owner.http.post("/v1/pools", json=body), 409, "conflict")
    changed = (await owner.http.patch("/v1/pools/lab", json={"projects": [], "hours": "", "most_gpus": None})).json()
    assert (changed["projects"], changed["hours"], changed["most_gpus"]) == ([], "", None)
    assert changed["price_per_gpu_hour"] == 400_000, "what was not named stays"
    assert (await tenant.http.get("/v1/pools/lab")).json() == changed
    assert (await owner.http.delete("/v1/pools/lab")).json()["name"] == "lab"
    error_of(await owner.http.get("/v1/pools/lab"), 404, "not_found")
    noted = [one["action"] for one in (await owner.http.get("/v1/audit")).json()["data"]]
    assert noted[:3] == ["DELETE /v1/pools/{pool}", "PATCH /v1/pools/{pool}", "POST /v1/pools"]


async def test_quotas_are_of_projects_by_name_or_id_and_are_taken_back(
    owner: Tenant, tenant: Tenant, context: ApiContext
) -> None:
    """Both together where a project is named twice; what somebody wrote by hand that makes no sense is none."""
    project = (await owner.http.post("/v1/projects", json={"name": "research"})).json()["id"]
    made = await owner.http.post("/v1/pools", json={"name": "lab", "quotas": {"research": 4, project: 2}})
    assert (made.status_code, made.json()["quotas"]) == (201, {project: 6})
    kept = (await owner.http.patch("/v1/pools/lab", json={"preference": 3})).json()
    assert kept["quotas"] == {project: 6}, "what was not named stays"
    async with context.database.transaction() as connection:
        await connection.execute(update(pools).values(quotas={project: -1, "x": "y", tenant.project_id: 3, "z": True}))
    assert (await owner.http.get("/v1/pools/lab")).json()["quotas"] == {tenant.project_id: 3}
    async with context.database.transaction() as connection:
        await connection.execute(update(pools).values(quotas=[1]))
    assert (await owner.http.get("/v1/pools/lab")).json()["quotas"] == {}
    error_of(await tenant.http.patch("/v1/pools/lab", json={"quotas": {"research": 9}}), 403, "forbidden")
    await owner.http.patch("/v1/pools/lab", json={"quotas": {"research": 4}})
    assert (await owner.http.patch("/v1/pools/lab", json={"quotas": None})).json()["quotas"] == {}
    await owner.http.delete("/v1/pools/lab")


async def test_quotas_of_hosts_are_of_projects_and_are_shown_with_what_they_lack(
    owner: Tenant, tenant: Tenant, host: HostCaller
) -> None:
    """Its one host of two A100 is promised once; a project that is named twice has both together."""
    project = (await owner.http.post("/v1/projects", json={"name": "research"})).json()["id"]
    one = {"hosts": 1, "gpus": 1, "gpu_type": "A100"}
    made = await owner.http.patch("/v1/pools/lab", json={"host_quotas": {"research": [one], project: [one]}})
    shown = {"hosts": 2, "gpus": 1, "gpu_type": "A100", "short_gpus": 0, "blocked_gpus": 0}
    assert (made.status_code, made.json()["host_quotas"]) == (200, {project: [shown]})
    kept = (await owner.http.patch("/v1/pools/lab", json={"preference": 3})).json()
    assert kept["host_quotas"] == {project: [shown]}, "what was not named stays"
    whole = {"hosts": 1, "gpus": 2, "gpu_type": "A100"}
    refused = await owner.http.patch("/v1/pools/lab", json={"host_quotas": {"research": [one], project: [whole]}})
    assert error_of(refused, 409, "not_reservable")["param"] == "host_quotas"
    error_of(await tenant.http.patch("/v1/pools/lab", json={"host_quotas": {"research": [one]}}), 403, "forbidden")
    gone = (await owner.http.patch("/v1/pools/lab", json={"host_quotas": {}})).json()
    assert gone["host_quotas"] == {}
    slurm = {"name": "cluster", "host_quotas": {"research": [one]}}
    error_of(await owner.http.post("/v1/pools", json=slurm), 409, "not_reservable")


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"name": "Lab"}, "name"),
        ({"name": "lab", "price_usd": -1}, "price_usd"),
        ({"name": "lab", "hours": "mon 25:00-26:00"}, "hours"),
        ({"name": "lab", "hours": "always"}, "hours"),
        ({"name": "lab", "projects": ["nobody's"]}, "projects"),
        ({"name": "lab", "launcher": "slurmm"}, "launcher"),
        ({"name": "lab", "most_gpus": 0}, "most_gpus"),
        ({"name": "lab", "quotas": {"nobody": 1}}, "quotas"),
        ({"name": "lab", "quotas": {"research": 0}}, "quotas.research"),
        ({"name": "lab", "quotas": {"research": True}}, "quotas.research"),
        ({"name": "lab", "host_quotas": {"nobody": [{"hosts": 1, "gpus": 1, "gpu_type": "A100"}]}}, "host_quotas"),
        ({"name": "lab", "host_quotas": {"research": []}}, "host_quotas.research"),
        ({"name": "lab", "host_quotas": {"research": [{"hosts": 0, "gpus": 1, "gpu_type": "A100"}]}}, "host_quotas"),
        ({"name": "lab", "host_quotas": {"research": [{"hosts": 1, "gpus": 65, "gpu_type": "A100"}]}}, "host_quotas"),
        ({"name": "lab", "price": 1}, "price"),
    ],
)
async def test_what_is_no_pool_is_refused_naming_the_field(owner: Tenant, body: dict[str, Any], named: str) -> None:
    error = error_of(await owner.http.post("/v1/pools", json=body), 422, "invalid_input")
    assert named in (error["param"] or "") + error["message"]
    assert (await owner.http.get("/v1/pools")).json()["data"] == []


async def test_a_host_that_joins_is_on_offer_at_once(
    context: ApiContext, owner: Tenant, host: HostCaller, own: DatabaseHosts
) -> None:
    """In the pool's list, and in the list of offers that waiting jobs are decided by."""
    shown = (await owner.http.get("/v1/pools/lab")).json()["hosts"]
    assert [(one["id"], one["state"], len(one["gpus"]), one["used"]) for one in shown] == [
        (host.host_id, "ready", 2, [])
    ]
    assert {one["type"] for one in shown[0]["gpus"]} == {"A100"}
    async with context.database.transaction() as connection:
        listed = await recent_offers(
            connection, now_ms=context.clock.now_ms(), max_age_ms=MINUTE_MS, reading=RowReading()
        )
    assert sorted((offer.tier, offer.gpu_count, offer.shared_gpus) for offer in listed) == [
        (Tier.OWN, 1, 2),
        (Tier.OWN, 2, 2),
    ]


async def test_a_token_is_for_so_many_hosts_and_so_long(
    api: FastAPI, context: ApiContext, owner: Tenant, clock: Any
) -> None:
    """The same host may come again; another one too many, or too late, may not, and hears why."""
    await owner.http.post("/v1/pools", json={"name": "lab"})
    token = await token_of(owner, joins=1, valid_s=600)
    first, second = HostCaller(api), HostCaller(api)
    told = (await first.join(token)).json()
    assert (await first.join(token)).json() == told, "the same host, the same answer"
    error = error_of(await second.join(token, nonce="b" * 64), 401, "unauthenticated")
    assert "is used up" in error["message"]
    error = error_of(await second.join("apj_" + 48 * "0", nonce="b" * 64), 401, "unauthenticated")
    assert "opens no pool" in error["message"]
    other = await token_of(owner, joins=5, valid_s=600)
    clock.advance(ms=601_000)
    assert "is over" in error_of(await second.join(other, nonce="b" * 64), 401, "unauthenticated")["message"]
    assert (await first.join(other)).status_code == 200, "who is in stays in"


async def test_two_hosts_that_show_one_token_at_once_take_turns(api: FastAPI, owner: Tenant) -> None:
    await owner.http.post("/v1/pools", json={"name": "lab"})
    token = await token_of(owner, joins=1)
    answers = await asyncio.gather(*(HostCaller(api).join(token, nonce=letter * 64) for letter in "abcdef"))
    assert sorted(one.status_code for one in answers) == [200, 401, 401, 401, 401, 401]


async def test_a_machine_is_ordered_started_and_ended(host: HostCaller, own: DatabaseHosts) -> None:
    """The host hears of it once with what it is started with, and the same label never gets two."""
    offer = await offer_of(own)
    machine = await own.launch(request_of(offer))
    again = await own.launch(request_of(offer))
    assert (machine.status, again.ref) == (MachineStatus.BOOTING, machine.ref)
    (order,) = (await host.told())["machines"]
    assert (order["id"], order["gpu_indices"], order["ends"]) == (machine.ref, [0], False)
    assert order["environment"]["ALLPASS_JOIN_TOKEN"] == "a secret of the node"
    host.running = [{"id": machine.ref, "state": "running", "log": "hello\n"}]
    (order,) = (await host.told())["machines"]
    assert order["environment"] is None, "it is told once"
    assert (await looked(own, machine)).status is MachineStatus.RUNNING
    assert await own.log(machine.ref) == "hello\n"
    assert {one.gpu_count for one in await own.offers()} == {1}, "one GPU is left"

    await own.end(machine.ref)
    await own.end(machine.ref)
    assert (await looked(own, machine)).status is MachineStatus.ENDED
    assert {one.gpu_count for one in await own.offers()} == {1}, "its GPU is given out again when the host says so"
    (order,) = (await host.told())["machines"]
    assert order["ends"] is True
    host.running = [{"id": machine.ref, "state": "ended", "detail": "it was asked to end"}]
    assert (await host.told())["machines"] == []
    assert {one.gpu_count for one in await own.offers()} == {1, 2}


async def looked(own: DatabaseHosts, machine: Machine) -> Machine:
    found = await own.machine(machine.ref)
    assert found is not None
    return found


async def test_what_was_started_lies_sealed_and_is_forgotten(
    context: ApiContext, host: HostCaller, own: DatabaseHosts
) -> None:
    machine = await own.launch(request_of(await offer_of(own)))
    async with context.database.transaction() as connection:
        (row,) = list(await connection.execute(host_machines.select()))
    assert b"a secret of the node" not in row.sealed_order
    host.running = [{"id": machine.ref, "state": "ended"}]
    await host.told()
    async with context.database.transaction() as connection:
        (row,) = list(await connection.execute(host_machines.select()))
    assert (row.sealed_order, row.ended_ms is not None) == (None, True)


async def test_gpus_are_given_out_once_however_many_ask_at_once(host: HostCaller, own: DatabaseHosts) -> None:
    offer = await offer_of(own)
    answers = await asyncio.gather(
        *(own.launch(request_of(offer, f"node_{number}")) for number in range(8)), return_exceptions=True
    )
    assert [type(one) for one in answers].count(Machine) == 2
    assert all(isinstance(one, Machine | NoCapacity) for one in answers)
    orders = (await host.told())["machines"]
    assert sorted(index for order in orders for index in order["gpu_indices"]) == [0, 1]


async def test_gpus_of_others_are_not_given_out(host: HostCaller, own: DatabaseHosts) -> None:
    """A workstation that people share: what they use is theirs."""
    host.facts = facts(A100, A100, busy=(0,))
    await host.told()
    offer = await offer_of(own)
    assert {one.gpu_count for one in await own.offers()} == {1}
    await own.launch(request_of(offer))
    assert [order["gpu_indices"] for order in (await host.told())["machines"]] == [[1]]
    with pytest.raises(NoCapacity):
        await own.launch(request_of(offer, "node_2"))


@pytest.mark.parametrize("change", ["price", "drained pool", "drained host", "unusable", "silent", "limit"])
async def test_what_is_not_to_be_had_any_more_is_refused(
    context: ApiContext, owner: Tenant, host: HostCaller, own: DatabaseHosts, clock: Any, change: str
) -> None:
    offer = await offer_of(own, 2 if change == "limit" else 1)
    expected: type[Exception] = OfferGone
    if change == "price":
        await owner.http.patch("/v1/pools/lab", json={"price_usd": 1})
        expected = PriceMoved
    elif change == "drained pool":
        await owner.http.post("/v1/pools/lab/drain", json={})
    elif change == "drained host":
        await owner.http.post("/v1/pools/lab/drain", json={"host": "box"})
    elif change == "unusable":
        host.facts = facts(A100, A100, unusable="the disk is full")
        await host.told()
        assert (await owner.http.get("/v1/pools/lab")).json()["hosts"][0]["why"] == "the disk is full"
    elif change == "silent":
        clock.advance(ms=MINUTE_MS + 1)
    else:
        await owner.http.patch("/v1/pools/lab", json={"most_gpus": 1})
        assert {one.gpu_count for one in await own.offers()} == {1}
        await own.launch(request_of(await offer_of(own)))
        assert await own.offers() == []
        return
    with pytest.raises(expected):
        await own.launch(request_of(offer))
    assert change == "price" or await own.offers() == []


async def test_a_host_that_was_started_anew_has_lost_what_ran_there(host: HostCaller, own: DatabaseHosts) -> None:
    machine = await own.launch(request_of(await offer_of(own)))
    host.running = [{"id": machine.ref, "state": "running"}]
    await host.told()
    host.running, host.boot_id = [], "boot 2"
    await host.told()
    found = await looked(own, machine)
    assert (found.status, found.detail) == (MachineStatus.ENDED, "the host was started anew")


async def test_a_call_that_was_overtaken_ends_nothing(host: HostCaller, own: DatabaseHosts, clock: Any) -> None:
    """It was written before the machine began. What a host still does not know of after a while is over."""
    machine = await own.launch(request_of(await offer_of(own)))
    host.running = [{"id": machine.ref, "state": "running"}]
    await host.told()
    host.running = []
    await host.told()
    assert (await looked(own, machine)).status is MachineStatus.RUNNING
    clock.advance(s=121)
    await host.told()
    assert (await looked(own, machine)).detail == "the host knows of it no more"


async def test_a_host_leaves_when_nothing_runs_there(owner: Tenant, host: HostCaller, own: DatabaseHosts) -> None:
    """Until then its machines are told to be gone by an instant; after that its token opens nothing."""
    machine = await own.launch(request_of(await offer_of(own)))
    host.running = [{"id": machine.ref, "state": "running"}]
    told = await host.told(leaving=True)
    assert (told["leaving"], told["gone"]) == (True, False)
    assert (await looked(own, machine)).ends_ms is not None
    assert await own.offers() == []
    await own.end(machine.ref)
    host.running = [{"id": machine.ref, "state": "ended"}]
    assert (await host.told(leaving=True))["gone"] is True
    error_of(await host.sync(), 401, "unauthenticated")
    assert (await owner.http.get("/v1/pools/lab")).json()["hosts"] == []


async def test_a_pool_with_hosts_is_not_removed_and_a_host_that_answers_is_not_forgotten(
    context: ApiContext, owner: Tenant, host: HostCaller, clock: Any
) -> None:
    assert "allpass node leave" in error_of(await owner.http.delete("/v1/pools/lab"), 409, "conflict")["message"]
    error_of(await owner.http.delete("/v1/pools/lab/hosts/box"), 409, "conflict")
    error_of(await owner.http.delete("/v1/pools/lab/hosts/other"), 404, "not_found")
    clock.advance(ms=MINUTE_MS)
    assert (await owner.http.delete(f"/v1/pools/lab/hosts/{host.host_id}")).json()["state"] == "gone"
    error_of(await host.sync(), 401, "unauthenticated")
    assert (await owner.http.delete("/v1/pools/lab")).status_code == 200


async def test_a_report_that_is_sent_twice_has_the_effect_of_one(
    context: ApiContext, host: HostCaller, own: DatabaseHosts
) -> None:
    """An answer may be lost: the host says the same again, and hears the same."""

    async def rows() -> list[Any]:
        async with context.database.transaction() as connection:
            return [tuple(row) for table in (hosts, host_machines) for row in await connection.execute(table.select())]

    first = await own.launch(request_of(await offer_of(own)))
    second = await own.launch(request_of(await offer_of(own), "node_2"))
    host.running = [{"id": first.ref, "state": "running"}, {"id": second.ref, "state": "ended", "detail": "it fell"}]
    told, left = await host.told(), await rows()
    assert await host.told() == told
    assert await rows() == left
    assert [order["id"] for order in told["machines"]] == [first.ref]


async def test_an_order_is_heard_at_once(listening: None, host: HostCaller, own: DatabaseHosts) -> None:
    """The call waits for it, and not for its time to be over."""
    await host.told()
    waiting = asyncio.create_task(host.told(wait_s=30))
    await asyncio.sleep(0)
    machine = await own.launch(request_of(await offer_of(own)))
    async with asyncio.timeout(20):
        assert [order["id"] for order in (await waiting)["machines"]] == [machine.ref]


async def test_a_host_whose_facts_cannot_be_read_harms_no_other(
    api: FastAPI, context: ApiContext, owner: Tenant, host: HostCaller, own: DatabaseHosts
) -> None:
    """It is shown with what can be read, and gives nothing."""
    bad = HostCaller(api)
    await bad.join(await token_of(owner), nonce="b" * 64, name="bad")
    async with context.database.transaction() as connection:
        await connection.execute(
            update(hosts).where(hosts.c.id == bad.host_id).values(facts={"gpus": [{"index": "x"}]})
        )
    assert {offer.host.partition("/")[0] for offer in await own.offers()} == {host.host_id}
    shown = (await owner.http.get("/v1/pools/lab")).json()["hosts"]
    assert {one["name"]: len(one["gpus"]) for one in shown} == {"box": 2, "bad": 0}
    listed = await owner.http.get("/v1/pools")
    assert listed.status_code == 200


@pytest.mark.parametrize(
    "wrong",
    [
        {"gpus": [{"index": -1, "name": "x", "memory_bytes": 1}]},
        {"gpus": [{"index": 0, "name": "x" * 101, "memory_bytes": 1}]},
        {"gpus": [{"index": index, "name": "x", "memory_bytes": 1} for index in range(65)]},
        {"cpus": 0},
        {"memory_bytes": 2**60},
        {"unusable": "x" * 301},
    ],
)
async def test_what_a_host_says_is_bounded(host: HostCaller, wrong: dict[str, Any]) -> None:
    host.facts = facts(A100) | wrong
    error_of(await host.sync(), 422, "invalid_input")


async def test_the_script_and_the_program_belong_together(api: FastAPI) -> None:
    """Nobody has to be known to fetch them; the script proves the program by the hash that it has in it."""
    http = client(api)
    script = await http.get("/join.sh")
    assert script.headers["content-type"].startswith("text/x-shellscript")
    (line,) = [line for line in script.text.splitlines() if line.startswith("SHA256=")]
    program = await http.get(f"/host/{line.partition('=')[2]}.pyz")
    assert hashlib.sha256(program.content).hexdigest() == line.partition("=")[2]
    error_of(await http.get(f"/host/{64 * '0'}.pyz"), 404, "not_found")
