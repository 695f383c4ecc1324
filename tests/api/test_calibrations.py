"""What was learned of memory and time: in plans, in a list, and taken back."""

from __future__ import annotations

import math
from typing import Any

import pytest
from fastapi import FastAPI

from allpass.wire.calibrations import Calibration as Told
from app.api.context import ApiContext
from app.core.memory.calibration import Calibration, kind_of
from app.core.memory.catalogue import model_named
from app.core.memory.training import Training
from app.core.throughput import MeasuredStep, key_of
from app.db.learning.calibrations import set_calibration, set_step_time
from tests.api.conftest import Tenant, error_of, make_tenant
from tests.api.test_plan import A100, SMALL, offered, planned
from tests.seeds import T0_MS, new_id

MODEL = model_named(SMALL["model"])  # type: ignore[arg-type]  # a word of the sample
LORA = Training("lora", 1, 512)


async def calibrated(context: ApiContext, tenant: Tenant, ratio: float, runs: int = 300) -> str:
    """As many runs measured `ratio` times what was predicted; returns the id."""
    row, new = Calibration(runs, math.log(ratio), 0.1, 500 << 20), new_id("cal")
    kind = kind_of(MODEL, LORA, "A100", {"torch": "2.5.1"})
    async with context.database.transaction() as connection:
        await set_calibration(connection, new, tenant.project_id, kind, row, now_ms=T0_MS)
    return new


async def test_a_plan_goes_by_what_was_measured_until_that_is_deleted(
    api: FastAPI, tenant: Tenant, context: ApiContext
) -> None:
    """Higher after runs that needed more, seen in the list, and back to the model's own estimate afterwards."""
    await offered(context, A100)
    before = (await planned(tenant)).options[0]
    calibration_id = await calibrated(context, tenant, 1.5)
    after = (await planned(tenant)).options[0]
    assert (before.calibrated_by, after.calibrated_by) == (0, 300)
    assert after.layout != before.layout or after.allocated.expected > 1.4 * before.allocated.expected
    (listed,) = (await tenant.http.get("/v1/calibrations")).json()["data"]
    told = Told.model_validate(listed)
    assert (told.id, told.family, told.gpu_type, told.versions) == (calibration_id, "llama", "a100", "torch 2.5")
    assert (told.runs, told.ratio, told.weight) == (300, pytest.approx(1.5), pytest.approx(300 / 303))
    refused = await tenant.http.delete(f"/v1/calibrations/{calibration_id}")
    error_of(refused, 403, "forbidden")
    async with make_tenant(api, context, ("admin",)) as stranger:
        missing = await stranger.http.delete(f"/v1/calibrations/{calibration_id}")
        error_of(missing, 404, "not_found")


async def test_an_administrator_takes_it_back(api: FastAPI, context: ApiContext) -> None:
    """DELETE answers with what it was; a second one finds nothing; plans are the model's own again."""
    await offered(context, A100)
    async with make_tenant(api, context, ("admin",)) as admin:
        before = (await planned(admin)).options[0]
        calibration_id = await calibrated(context, admin, 1.5)
        assert (await planned(admin)).options[0].calibrated_by == 300
        deleted = await admin.http.delete(f"/v1/calibrations/{calibration_id}")
        assert (deleted.status_code, deleted.json()["id"]) == (200, calibration_id)
        assert (await planned(admin)).options[0] == before
        error_of(await admin.http.delete(f"/v1/calibrations/{calibration_id}"), 404, "not_found")
        error_of(await admin.http.delete("/v1/calibrations/cal"), 404, "not_found")


async def test_a_project_is_planned_by_its_own_runs_alone(
    tenant: Tenant, stranger: Tenant, context: ApiContext
) -> None:
    """Nothing that another project measured is seen."""
    await offered(context, A100)
    await calibrated(context, stranger, 1.9)
    assert (await planned(tenant)).options[0].calibrated_by == 0
    assert (await tenant.http.get("/v1/calibrations")).json()["data"] == []


async def test_a_measured_step_is_told_as_such(tenant: Tenant, context: ApiContext) -> None:
    """Exactly this layout was run before: its step is what was measured, and its cost follows."""
    await offered(context, A100)
    option = (await planned(tenant, steps=100)).options[0]
    assert option.step_source == "estimate"
    layout: dict[str, Any] = {"accumulation": option.layout.accumulation, "checkpointing": option.layout.checkpointing}
    ran = Training("lora", option.layout.micro_batch, 512, **layout)
    key = key_of("llama-3.2-1b", ran, "A100", MODEL.layers)
    async with context.database.transaction() as connection:
        row = MeasuredStep(50.0, 3, option.step_ms)
        await set_step_time(connection, tenant.project_id, key, row, now_ms=T0_MS)
    after = (await planned(tenant, steps=100)).options[0]
    assert (after.step_ms, after.step_source) == (50.0, "measured")
    assert after.offers[0].duration_ms == after.offers[0].startup_ms + 5_000
