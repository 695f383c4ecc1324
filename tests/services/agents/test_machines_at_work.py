"""What is found out of a machine once it has joined: GPUs that do not compute, a slow link, a small disk."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select, update

from app.core import codec
from app.core.model.money import Money
from app.core.model.node import NodeState, Tier
from app.core.model.offer import Offer
from app.core.model.run import RunState
from app.db.offers.listed import replace_offers
from app.db.tables import checkpoints, host_failures, job_events, jobs, node_events, nodes, provider_operations, runs
from tests.seeds import new_id
from tests.services.agents.conftest import Place, Stage

GIB = 1024**3
GPU = {"index": 0, "name": "NVIDIA A100-SXM4-40GB", "memory_mib": 40_960, "ecc_errors": 0, "mig": False}
GOOD = {"gpus": [GPU], "nvidia_smi": {"state": "answers", "count": 1, "driver": "580.95.05", "cuda": "13.0"}}
RIGHT = {"gpu_check": {"state": "right", "message": "", "ms": 900, "torch": "2.13.0"}}
WRONG = {"gpu_check": {"state": "failed", "message": "GPU 0: a product of two matrices is wrong", "ms": 0}}
MEASURED = {"kind": "node_download_measured", "message": "it downloads 4.0 Mbit/s from this service"}
SLOW = {"download": {"bytes": 2_000_000, "ms": 4_000}, "notices": [MEASURED]}
FAST = {"download": {"bytes": 6_000_000, "ms": 100}, "notices": [MEASURED]}


def offer(offer_id: str = "7001", host: str = "host-7", **more: Any) -> Offer:
    fields = {"price_per_hour": Money.usd("1.00"), "startup_ms": 36_000, "disk_bytes": 64 * 10**9, **more}
    return Offer(
        "vast", offer_id, Tier.MARKETPLACE, "A100", 1, 40 * GIB, 8, 64 * GIB, host=host, download_mbps=800, **fields
    )


async def rent(stage: Stage, rented: Offer | None = None, state: NodeState = NodeState.BOOTING, **more: Any) -> Place:
    place = await stage.place(node_state=state, **more)
    rented = rented or offer()
    async with stage.database.transaction() as connection:
        columns = {
            "provider": "vast",
            "host": rented.host,
            "provider_ref": f"c-{rented.host}",
            "offer": codec.encode(rented),
            "image": "allpass/node:1",
            "requested_ms": stage.clock.ms,
        }
        await connection.execute(update(nodes).where(nodes.c.id == place.node_id).values(columns))
    return place


async def joined(stage: Stage, host: str, **facts: Any) -> Place:
    """Another machine, which told this."""
    place = await rent(stage, offer(host, host))
    assert (await stage.sync(place, host={**GOOD, **facts})).status_code in {200, 401}
    return place


async def events(stage: Stage, kind: str, place: Place | None = None) -> list[str]:
    rows = await stage.rows(node_events)
    return [row.message for row in rows if row.kind == kind and place in (None, row.node_id and place)]


async def failed_hosts(stage: Stage) -> list[str]:
    async with stage.database.transaction() as connection:
        return sorted((await connection.execute(select(host_failures.c.host))).scalars())


async def list_offers(stage: Stage, *others: Offer) -> None:
    async with stage.database.transaction() as connection:
        await replace_offers(connection, "vast", others, now_ms=stage.clock.ms)


async def state_of(stage: Stage, place: Place) -> str:
    return str((await stage.row(nodes, place.node_id)).state)


# -- the first calculation


async def test_a_machine_that_computes_works_on(stage: Stage) -> None:
    """And is shown as checked."""
    place = await rent(stage)
    assert (await stage.sync(place, host={**GOOD, **RIGHT})).status_code == 200
    assert (await state_of(stage, place), await failed_hosts(stage)) == ("ready", [])


@pytest.mark.parametrize("with_first_call", [True, False])
async def test_a_machine_that_does_not_compute_is_given_back(stage: Stage, with_first_call: bool) -> None:
    """Whether it tells that with its first call or while its run is prepared: a failed start of the machine's, no
    fault of the job, with the reason in the job's own events."""
    place = await rent(stage)
    if not with_first_call:
        assert (await stage.sync(place, place.report("preparing"), host=GOOD)).status_code == 200
    answer = await stage.sync(place, host={**GOOD, **WRONG})
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthenticated")
    assert await state_of(stage, place) == "terminating"
    assert [operation.kind for operation in await stage.rows(provider_operations)] == ["terminate"]
    job = await stage.row(jobs, place.job_id)
    assert (job.state, job.faults, job.avoided_offers) == ("queued", 0, ["vast/7001"])
    assert (await stage.row(runs, place.run_id)).end_reason == "node_lost"
    assert await failed_hosts(stage) == ["host-7"]
    told = [event.message for event in await stage.rows(job_events)]
    assert any("has a GPU that does not compute: GPU 0: a product of two matrices is wrong" in each for each in told)


async def test_an_image_that_computes_nowhere_bars_no_more_hosts(stage: Stage) -> None:
    """Two machines are given back for it; the third stays, and that is noted once."""
    for number in range(2):
        await joined(stage, f"host-{number}", **WRONG)
    third = await rent(stage)
    for _ in range(3):
        assert (await stage.sync(third, host={**GOOD, **WRONG})).status_code == 200
    assert await state_of(stage, third) == "ready"
    assert await failed_hosts(stage) == ["host-0", "host-1"]
    (doubted,) = await events(stage, "node_check_doubted")
    assert "every machine lately with image allpass/node:1" in doubted


async def test_an_image_that_computes_somewhere_is_not_to_blame(stage: Stage) -> None:
    """Then it is the hosts, however many."""
    await joined(stage, "host-good", **RIGHT)
    for number in range(4):
        await joined(stage, f"host-{number}", **WRONG)
    assert await failed_hosts(stage) == [f"host-{number}" for number in range(4)]


async def test_what_was_found_yesterday_does_not_count(stage: Stage) -> None:
    """The image may have been mended since."""
    for number in range(2):
        await joined(stage, f"host-{number}", **WRONG)
    stage.clock.advance(s=86_401)
    place = await rent(stage)
    assert (await stage.sync(place, host={**GOOD, **WRONG})).status_code == 401


async def test_a_machine_that_was_not_checked_works_on(stage: Stage) -> None:
    """Without torch; that is noted once, in the agent's words."""
    place = await rent(stage)
    notice = {"kind": "node_gpus_not_checked", "message": "no GPU was made to calculate: No module named 'torch'"}
    facts = {"gpu_check": {"state": "unchecked", "message": "No module named 'torch'"}, "notices": [notice]}
    for _ in range(2):
        assert (await stage.sync(place, host={**GOOD, **facts})).status_code == 200
    assert await events(stage, "node_gpus_not_checked") == [notice["message"]]
    assert await failed_hosts(stage) == []


@pytest.mark.parametrize("odd", [7, "failed", [], {"state": []}, {"state": "failed", "message": {"a": 1}}, None])
async def test_odd_words_harm_nobody(stage: Stage, odd: Any) -> None:
    """A report is data from outside."""
    place = await rent(stage)
    host = {**GOOD, "gpu_check": odd, "download": odd, "disk": odd, "notices": [MEASURED, odd]}
    assert (await stage.sync(place, host=host)).status_code in {200, 401}
    listed = await stage.row(nodes, place.node_id)
    assert listed.state in {"ready", "terminating"}


# -- the link


async def others_are_fast(stage: Stage) -> None:
    for number in range(3):
        await joined(stage, f"fast-{number}", **FAST)


async def test_a_machine_with_a_slow_link_is_let_go_before_it_works(stage: Stage) -> None:
    """Its job takes the next offer, and its host is remembered."""
    await others_are_fast(stage)
    await list_offers(stage, offer(), offer("7002", "host-8"))
    place = await rent(stage)
    assert (await stage.sync(place, place.report("preparing"), host={**GOOD, **SLOW})).status_code == 401
    assert await state_of(stage, place) == "terminating"
    assert await failed_hosts(stage) == ["host-7"]
    job = await stage.row(jobs, place.job_id)
    assert (job.state, job.faults) == ("queued", 0)
    (told,) = await events(stage, "node_slow")
    assert told == "it downloads 4.0 Mbit/s, 800 Mbit/s were promised, and others are faster"


async def test_a_job_that_runs_is_left_where_it_is(stage: Stage) -> None:
    """However slow its link is: what it has is worth more. The host is remembered for the next."""
    await others_are_fast(stage)
    await list_offers(stage, offer("7002", "host-8"))
    place = await rent(stage)
    assert (await stage.sync(place, place.report("running"), host=GOOD)).status_code == 200
    assert (await stage.sync(place, place.report("running"), host={**GOOD, **SLOW})).status_code == 200
    assert await state_of(stage, place) == "ready"
    assert (await stage.row(runs, place.run_id)).state == RunState.RUNNING
    assert await failed_hosts(stage) == ["host-7"]
    (told,) = await events(stage, "node_slow")
    assert "it stays" in told


@pytest.mark.parametrize(
    "listed",
    [
        (),
        (offer(),),
        (offer("7002", "host-8", price_per_hour=Money.usd("9.00")),),
        (offer("7002", "barred"),),
    ],
)
async def test_a_slow_machine_stays_where_there_is_nothing_else(stage: Stage, listed: tuple[Offer, ...]) -> None:
    """No other host, none at a price that is not much higher, or none that has not failed."""
    await others_are_fast(stage)
    await joined(stage, "barred", **WRONG)
    await list_offers(stage, *listed)
    place = await rent(stage)
    assert (await stage.sync(place, host={**GOOD, **SLOW})).status_code == 200
    assert await state_of(stage, place) == "ready"
    assert "host-7" in await failed_hosts(stage)


async def test_our_own_slow_link_is_nobodys_fault(stage: Stage) -> None:
    """Where all machines are as slow, none is let go."""
    for number in range(4):
        await joined(stage, f"also-{number}", **SLOW)
    await list_offers(stage, offer("7002", "host-8"))
    place = await rent(stage)
    assert (await stage.sync(place, host={**GOOD, **SLOW})).status_code == 200
    assert await failed_hosts(stage) == []
    assert len(await events(stage, "node_download_measured")) == 5


async def test_a_slow_link_is_judged_once(stage: Stage) -> None:
    """Agents tell what they have measured at every call; what others measure later changes nothing."""
    place = await rent(stage)
    assert (await stage.sync(place, host={**GOOD, **SLOW})).status_code == 200
    await others_are_fast(stage)
    await list_offers(stage, offer("7002", "host-8"))
    later = {key: value for key, value in SLOW.items() if key != "notices"}
    assert (await stage.sync(place, host={**GOOD, **later})).status_code == 200
    assert await failed_hosts(stage) == []


# -- the disk


def free(gib: float) -> dict[str, Any]:
    return {"disk": {"free_bytes": round(gib * GIB), "total_bytes": 500 * GIB}}


async def test_a_machine_with_less_disk_than_promised_is_given_back(stage: Stage) -> None:
    """As with any other promise."""
    place = await rent(stage)
    assert (await stage.sync(place, host={**GOOD, **free(20)})).status_code == 401
    assert await failed_hosts(stage) == ["host-7"]
    (told,) = await events(stage, "node_unfit")
    assert "its disk has 20.0 GiB free, 59.6 GiB were promised" in told


async def test_a_disk_that_jobs_have_filled_is_no_breach(stage: Stage) -> None:
    """A machine that was away and comes back holds what was put there."""
    place = await rent(stage, state=NodeState.UNREACHABLE)
    assert (await stage.sync(place, host={**GOOD, **free(2)})).status_code == 200


async def test_an_offer_from_before_promises_no_disk(stage: Stage) -> None:
    """Rows of the release before have no such field."""
    place = await rent(stage)
    async with stage.database.transaction() as connection:
        old = {
            name: value for name, value in codec.encode(offer()).items() if name not in {"disk_bytes", "download_mbps"}
        }
        await connection.execute(update(nodes).where(nodes.c.id == place.node_id).values(offer=old))
    assert (await stage.sync(place, host={**GOOD, **free(2), **SLOW})).status_code == 200


async def test_a_job_that_needs_more_disk_is_told(stage: Stage) -> None:
    """The machine has what was promised, and others have no more: it goes on, and its owner knows."""
    place = await rent(stage)
    async with stage.database.transaction() as connection:
        for step, gib in ((10, 1), (20, 40)):
            row = {
                "id": new_id("ckpt"),
                "project_id": place.project_id,
                "job_id": place.job_id,
                "run_id": place.run_id,
                "epoch": 1,
                "step": step,
                "state": "committed",
                "manifest_sha256": "0" * 64,
                "size_bytes": gib * GIB,
                "opened_ms": 1,
            }
            await connection.execute(checkpoints.insert().values(row))
    assert (await stage.sync(place, host={**GOOD, **free(60)})).status_code == 200
    assert await state_of(stage, place) == "ready"
    (told,) = [event.message for event in await stage.rows(job_events) if event.kind == "disk_is_short"]
    assert told.startswith("its checkpoints are 40.0 GiB each, and the disk of its machine has 60.0 GiB free")


# -- what is measured with


async def test_a_machine_gets_the_bytes_that_it_asks_for(stage: Stage) -> None:
    """As many, with its node's token, a few times."""
    place = await rent(stage)
    headers = {"Authorization": f"Bearer {place.token}"}
    for _ in range(3):
        answer = await stage.client.get("/v1/agent/probe?bytes=700001", headers=headers)
        assert (answer.status_code, len(answer.content)) == (200, 700_001)
        assert answer.headers["Content-Length"] == "700001"
    assert (await stage.client.get("/v1/agent/probe?bytes=1", headers=headers)).status_code == 429
    assert (await stage.client.get("/v1/agent/probe?bytes=1")).status_code == 401


@pytest.mark.parametrize("size", ["0", "-1", "64000001", "many"])
async def test_no_more_than_some_megabytes_are_sent(stage: Stage, size: str) -> None:
    """They cost whoever serves them."""
    place = await rent(stage)
    headers = {"Authorization": f"Bearer {place.token}"}
    assert (await stage.client.get(f"/v1/agent/probe?bytes={size}", headers=headers)).status_code == 422
