"""A machine that calls home is compared with what was rented; one that is less is given back, and nobody else pays."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select, update

from app.core import promised
from app.core.model.node import NodeState, Tier
from app.db.tables import host_failures, job_events, jobs, node_events, nodes, provider_operations, runs
from tests.services.agents.conftest import Place, Stage

GPU = {"index": 0, "name": "NVIDIA A100-SXM4-40GB", "memory_mib": 40_960, "ecc_errors": 0, "mig": False}
LOOKED = {"state": "answers", "count": 1, "driver": "580.95.05", "cuda": "13.0"}
GOOD = {"cpus": 8, "gpus": [GPU], "nvidia_smi": LOOKED}
BAD: dict[str, dict[str, Any]] = {
    "0 GPUs": {**GOOD, "gpus": [], "nvidia_smi": {**LOOKED, "count": 0}},
    "its GPU is Tesla T4": {**GOOD, "gpus": [{**GPU, "name": "Tesla T4"}]},
    "a GPU has 20.0 GiB": {**GOOD, "gpus": [{**GPU, "memory_mib": 20_480}]},
    "knows CUDA up to 12.4": {**GOOD, "nvidia_smi": {**LOOKED, "cuda": "12.4"}},
    "37 errors": {**GOOD, "gpus": [{**GPU, "ecc_errors": 37}]},
    "does not answer there: gone\ufffd": {"nvidia_smi": {"state": "fails", "message": "gone\ufffd"}},
}


async def events(stage: Stage, kind: str) -> list[Any]:
    return [event for event in await stage.rows(node_events) if event.kind == kind]


async def rent(stage: Stage, state: NodeState = NodeState.BOOTING, **more: Any) -> Place:
    """A node of Vast.ai on a host that is known by name."""
    place = await stage.place(node_state=state, **more)
    offer = {"provider": "vast", "offer_id": "7001"}
    async with stage.database.transaction() as connection:
        columns = {"provider": "vast", "host": "host-7", "provider_ref": "c-1", "offer": offer}
        await connection.execute(update(nodes).where(nodes.c.id == place.node_id).values(columns))
    return place


async def failed_hosts(stage: Stage) -> list[tuple[str, str, str]]:
    row = host_failures.c
    async with stage.database.transaction() as connection:
        found = await connection.execute(select(row.provider, row.host, row.machine))
        return [tuple(each) for each in found]


async def is_given_back(stage: Stage, place: Place) -> None:
    node = await stage.row(nodes, place.node_id)
    assert (node.state, node.token_sha256) == ("terminating", None)
    assert [operation.kind for operation in await stage.rows(provider_operations)] == ["terminate"]
    assert len(await events(stage, "node_unfit")) == 1


async def test_a_machine_that_is_what_was_rented_joins(stage: Stage) -> None:
    """Without a word."""
    place = await rent(stage)
    assert (await stage.sync(place, host=GOOD)).status_code == 200
    assert (await stage.row(nodes, place.node_id)).state == "ready"
    assert await events(stage, "node_unfit") == await events(stage, "node_not_judged") == []
    assert await failed_hosts(stage) == []


@pytest.mark.parametrize("said", BAD)
@pytest.mark.parametrize("state", [NodeState.REQUESTED, NodeState.BOOTING, NodeState.UNKNOWN])
async def test_a_machine_that_is_less_is_given_back(stage: Stage, said: str, state: NodeState) -> None:
    """Its agent is sent away, its job is queued again without a fault and avoids the offer, its host is remembered."""
    place = await rent(stage, state)
    answer = await stage.sync(place, host=BAD[said])
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthenticated")
    await is_given_back(stage, place)
    ((event),) = await events(stage, "node_unfit")
    assert said in event.message
    job = await stage.row(jobs, place.job_id)
    assert (job.state, job.faults, job.epoch) == ("queued", 0, 2)
    assert [key.partition("/")[0] for key in job.avoided_offers] == ["vast"]
    run = await stage.row(runs, place.run_id)
    assert (run.state, run.end_reason) == ("ended", "node_lost")
    assert await failed_hosts(stage) == [("vast", "host-7", "c-1")]


async def test_hearing_it_again_changes_nothing(stage: Stage) -> None:
    """Both threads of an agent may call at once."""
    place = await rent(stage)
    answers = [await stage.sync(place, host=BAD["37 errors"]) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [401, 401, 401]
    await is_given_back(stage, place)
    assert len(await failed_hosts(stage)) == 1


async def test_a_machine_that_calls_before_its_company_has_answered_waits_for_that(stage: Stage) -> None:
    """It could not be given back by its reference: it is asked to call again, for a minute at most. One that is what
    was rented need not wait."""
    place = await rent(stage, NodeState.REQUESTED)
    async with stage.database.transaction() as connection:
        await connection.execute(update(nodes).values(provider_ref=None, requested_ms=stage.clock.ms))
    assert (await stage.sync(place, host=BAD["0 GPUs"])).status_code == 503
    assert (await stage.row(nodes, place.node_id)).state == "requested"
    stage.clock.advance(s=60)
    assert (await stage.sync(place, host=BAD["0 GPUs"])).status_code == 401
    await is_given_back(stage, place)
    assert (await stage.row(nodes, place.node_id)).lost_ms is None  # it never worked
    assert await failed_hosts(stage) == [("vast", "host-7", place.node_id)]


async def test_the_owner_of_the_job_is_told(stage: Stage) -> None:
    """In the job's own events, with the reason."""
    place = await rent(stage)
    await stage.sync(place, host=BAD["its GPU is Tesla T4"])
    told = [event.message for event in await stage.rows(job_events)]
    assert any("Tesla T4" in message and "A100 was promised" in message for message in told)


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ({"cpus": 8, "gpus": [{"index": 0, "name": "Tesla T4", "memory_mib": "15360"}]}, "another release"),
        ({"nvidia_smi": {"state": "sideways"}}, "another release"),
        ({"nvidia_smi": {"state": "absent"}}, "no nvidia-smi"),
        ({"nvidia_smi": {"state": "shared"}}, "not its own"),
    ],
)
async def test_a_machine_that_does_not_tell_is_let_in_and_that_is_said_once(
    stage: Stage, host: dict[str, Any], said: str
) -> None:
    """An agent of the release before, or a machine without GPUs to look at."""
    place = await rent(stage)
    for _ in range(3):
        assert (await stage.sync(place, host=host)).status_code == 200
    async with stage.database.transaction() as connection:
        await connection.execute(update(nodes).values(state=NodeState.UNREACHABLE))
    assert (await stage.sync(place, host=host)).status_code == 200
    (event,) = await events(stage, "node_not_judged")
    assert said in event.message
    assert (await stage.row(nodes, place.node_id)).state == "ready"


async def test_what_another_company_does_not_promise_is_not_asked_for(stage: Stage) -> None:
    """Only where a driver was promised is an older one a breach."""
    place = await stage.place(node_state=NodeState.BOOTING)
    assert (await stage.sync(place, host=BAD["knows CUDA up to 12.4"])).status_code == 200


async def test_a_machine_that_was_away_is_compared_again(stage: Stage) -> None:
    """A container that was stopped may come back with fewer GPUs; its job goes on elsewhere, without a fault."""
    place = await stage.running()
    async with stage.database.transaction() as connection:
        await connection.execute(update(nodes).values(state=NodeState.UNREACHABLE))
    assert (await stage.sync(place, host=BAD["0 GPUs"])).status_code == 401
    await is_given_back(stage, place)
    job = await stage.row(jobs, place.job_id)
    assert (job.state, job.faults) == ("waiting", 0)


async def test_our_own_mistake_keeps_no_machine_out(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be paid for, and never be given up, since it calls."""

    def fails(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("app.services.nodes.check_machine.breaches", fails)
    place = await rent(stage)
    assert (await stage.sync(place, host=GOOD)).status_code == 200
    assert (await stage.row(nodes, place.node_id)).state == "ready"
    assert len(await events(stage, "node_not_judged")) == 1
    assert promised.breaches is not fails


@pytest.mark.parametrize(
    "more", [{"gpu_fault": "GPU is lost", "fault": "x"}, {"nvidia_smi": {"state": "fails", "message": "GPU is lost"}}]
)
async def test_gpus_that_fail_later_are_the_machines_fault(stage: Stage, more: dict[str, Any]) -> None:
    """The run's process has ended with an error, as it does without its GPU: the job waits to go on from its newest
    checkpoint, and its budget of faults is what it was."""
    place = await stage.running()
    async with stage.database.transaction() as connection:
        offer = {"provider": "vast", "offer_id": "7001"}
        await connection.execute(update(nodes).values(provider="vast", host="host-7", offer=offer))
    failed = place.report("exited", exit={"environment_error": "GPU is lost", "machine_fault": True})
    assert (await stage.sync(place, failed, host={**GOOD, **more})).status_code == 401
    await is_given_back(stage, place)
    job = await stage.row(jobs, place.job_id)
    assert (job.state, job.faults) == ("waiting", 0)
    assert await failed_hosts(stage) == [("vast", "host-7", place.node_id)]
    assert (await stage.row(nodes, place.node_id)).lost_ms is not None  # it worked until then


@pytest.mark.parametrize("tier", [Tier.SERVERLESS, Tier.CONVENTIONAL])
async def test_each_tier_gives_its_machine_back(stage: Stage, tier: Tier) -> None:
    """A machine that dies with its run is ended by that; one without a host's name leaves none to remember."""
    place = await stage.place(node_state=NodeState.BOOTING, tier=tier)
    async with stage.database.transaction() as connection:
        await connection.execute(update(nodes).values(provider_ref="c-1"))
    assert (await stage.sync(place, host=BAD["0 GPUs"])).status_code == 401
    await is_given_back(stage, place)
    assert await failed_hosts(stage) == []


@pytest.mark.parametrize("odd", [7, None, [], {"state": []}, {"state": {"a": 1}}, {"state": "answers", "count": -1}])
async def test_odd_words_of_a_machine_harm_nobody(stage: Stage, odd: Any) -> None:
    """A report is data from outside."""
    place = await rent(stage)
    answer = await stage.sync(place, host={"nvidia_smi": odd, "gpus": odd, "gpu_fault": odd})
    assert answer.status_code in {200, 401}
    assert (await stage.row(nodes, place.node_id)).state in {"ready", "terminating"}
