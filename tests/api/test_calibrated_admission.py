"""Calibrations act on what is admitted and on what a job asks for, and can be switched off and on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import select

from app.api.context import ApiContext
from app.core.memory.calibration import ENOUGH
from app.core.memory.need import Stated, least_need
from app.db.tables import jobs
from tests.api.conftest import Tenant, error_of, make_tenant
from tests.api.test_calibrations import LORA, MODEL, calibrated
from tests.api.test_plan import A100, SMALL, offered, planned

TEMPLATE: dict[str, Any] = {
    "model": {"name": SMALL["model"]},
    "training": {"method": "lora", "batch_size": 8, "sequence_length": 512, "precision": "bf16"},
}
NEED = least_need(Stated("", MODEL, replace(LORA, precision="bf16"), 8, 1))


@pytest.fixture
async def admin(api: FastAPI, context: ApiContext) -> AsyncIterator[Tenant]:
    async with make_tenant(api, context, ("admin", "read", "submit")) as made:
        yield made


async def submit(tenant: Tenant) -> Any:
    return await tenant.http.post("/v1/jobs", json={"app_id": tenant.app_id, "template": TEMPLATE})


async def switch(tenant: Tenant, calibration_id: str, enabled: bool) -> dict[str, Any]:
    response = await tenant.http.patch(f"/v1/calibrations/{calibration_id}", json={"enabled": enabled})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def test_runs_that_needed_more_are_admitted_by_it(admin: Tenant, context: ApiContext) -> None:
    """The GPU that the model would let through is refused with both numbers, until the calibration is switched off; on
    again, it counts again. Every switch is in the audit log."""
    await offered(context, replace(A100, gpu_memory_bytes=round(NEED.capacity_bytes * 1.1)))
    calibration_id = await calibrated(context, admin, 1.5)
    refused = error_of(await submit(admin), 422, "invalid_input")
    assert (
        f"needs {NEED.capacity_bytes / 1e9:.1f} GB on each of its GPUs (1) (by this project's runs "
        in refused["message"]
    )
    assert " GB on a100)" in refused["message"]
    assert (await planned(admin)).options[0].verdict != "fits"
    assert (await switch(admin, calibration_id, False))["enabled"] is False
    assert (await planned(admin)).options[0].calibrated_by == 0
    assert (await submit(admin)).status_code == 201
    assert (await switch(admin, calibration_id, True))["enabled"] is True
    error_of(await submit(admin), 422, "invalid_input")
    noted = (await admin.http.get("/v1/audit")).json()["data"]
    assert [one["object_id"] for one in noted if one["action"].startswith("PATCH")] == [calibration_id] * 2


@pytest.mark.parametrize(("runs", "admitted"), [(ENOUGH - 1, False), (300, True)])
async def test_a_smaller_gpu_only_after_enough_runs(
    admin: Tenant, context: ApiContext, runs: int, admitted: bool
) -> None:
    """A few runs that needed less let nothing on a GPU that the model calls too small; many do."""
    await offered(context, replace(A100, gpu_memory_bytes=round(NEED.capacity_bytes * 0.9)))
    error_of(await submit(admin), 422, "invalid_input")
    calibration_id = await calibrated(context, admin, 0.6, runs)
    told = (await admin.http.get(f"/v1/calibrations/{calibration_id}")).json()
    assert told["lowers"] is admitted
    await switch(admin, calibration_id, True)  # which has the service look at once
    assert ((await submit(admin)).status_code == 201) is admitted


async def test_the_job_asks_by_type(admin: Tenant, context: ApiContext) -> None:
    """What placement goes by: the model's need, and the learned one on the type that was measured."""
    await offered(context, A100)
    await calibrated(context, admin, 1.5)
    response = await submit(admin)
    async with context.database.transaction() as connection:
        asked = select(jobs.c.resources).where(jobs.c.id == response.json()["id"])
        resources = (await connection.execute(asked)).scalar_one()
    ((gpu_type, bytes_),) = resources["gpu_memory_bytes_by_type"]
    assert resources["gpu_memory_bytes_min"] == NEED.capacity_bytes
    assert gpu_type == "a100"
    assert 1.3 < bytes_ / NEED.capacity_bytes < 1.6


async def test_who_may_switch(admin: Tenant, tenant: Tenant, context: ApiContext) -> None:
    """Administrators of the project alone; a wrong body names its field, an unknown id is not found."""
    calibration_id = await calibrated(context, tenant, 1.5)
    body = {"enabled": False}
    error_of(await tenant.http.patch(f"/v1/calibrations/{calibration_id}", json=body), 403, "forbidden")
    error_of(await admin.http.patch(f"/v1/calibrations/{calibration_id}", json=body), 404, "not_found")
    error_of(await admin.http.get(f"/v1/calibrations/{calibration_id}"), 404, "not_found")
    mine = await calibrated(context, admin, 1.5)
    wrong = error_of(await admin.http.patch(f"/v1/calibrations/{mine}", json={"enabled": "no"}), 422, "invalid_input")
    assert wrong["param"] == "enabled"


async def test_a_gpu_without_bf16_is_asked_for_what_fp16_takes(admin: Tenant, context: ApiContext) -> None:
    """Some models keep more under autocast. What is needed there is told by type, as far as it is known or offered; a
    training that leaves nothing to the GPU asks for the same everywhere."""
    await offered(context, A100, replace(A100, offer_id="old", gpu_type="GTX 1080 Ti"))
    config = {
        "model_type": "gpt2",
        "n_embd": 1600,
        "n_layer": 12,
        "n_head": 25,
        "n_positions": 1024,
        "vocab_size": 50257,
    }
    training = {"method": "lora", "batch_size": 8, "sequence_length": 1024, "micro_batch": 8, "checkpointing": False}
    found = []
    for more in ({"precision_by_gpu": True}, {}):
        template = {"model": {"name": "somebody/gpt", "config": config}, "training": training | more}
        response = await admin.http.post("/v1/jobs", json={"app_id": admin.app_id, "template": template})
        assert response.status_code == 201, response.text
        async with context.database.transaction() as connection:
            asked = select(jobs.c.resources).where(jobs.c.id == response.json()["id"])
            found.append((await connection.execute(asked)).scalar_one())
    least = found[0]["gpu_memory_bytes_min"]
    by_type = dict(found[0]["gpu_memory_bytes_by_type"])
    turing = {"t4", "rtx2080ti", "rtx8000", "titanrtx"}
    assert set(by_type) == {"v100", "titanv", "p100", "gtx1080ti"} | turing
    assert len(set(by_type.values())) == 1
    assert 1.02 < by_type["t4"] / least < 1.3
    assert (found[1]["gpu_memory_bytes_min"], found[1].get("gpu_memory_bytes_by_type", [])) == (least, [])


async def test_a_template_that_contradicts_itself_names_the_field(admin: Tenant) -> None:
    training = {**TEMPLATE["training"], "precision": "fp16", "precision_by_gpu": True}
    body = {"app_id": admin.app_id, "template": TEMPLATE | {"training": training}}
    refused = error_of(await admin.http.post("/v1/jobs", json=body), 422, "invalid_input")
    assert refused["param"] == "template.training.precision_by_gpu"
