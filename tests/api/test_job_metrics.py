"""Metrics as a picture's worth of points and as a table."""

from __future__ import annotations

import csv
import io
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from app.api.context import ApiContext
from app.db.learning.losses import averaged_metric
from app.db.reading import metric_series
from app.db.tables import metric_points
from tests.api.builders import add_job, add_metric
from tests.api.conftest import Tenant, error_of
from tests.seeds import T0_MS

VALUES = st.floats(-1e9, 1e9, allow_nan=False)
SERIES = st.dictionaries(
    st.integers(0, 10_000), st.dictionaries(st.sampled_from(["loss", "lr"]), VALUES, max_size=2), max_size=120
)


async def put(context: ApiContext, job_id: str, series: dict[int, dict[str, float]]) -> None:
    rows = [
        {"job_id": job_id, "step": step, "epoch": 1, "at_ms": T0_MS + step, "values": values}
        for step, values in series.items()
    ]
    async with context.database.transaction() as connection:
        if rows:
            await connection.execute(metric_points.insert(), rows)


async def read(tenant: Tenant, job_id: str, **query: Any) -> list[dict[str, Any]]:
    response = await tenant.http.get(f"/v1/jobs/{job_id}/metrics", params=query)
    assert response.status_code == 200, response.text
    points: list[dict[str, Any]] = response.json()["data"]
    return points


async def read_csv(tenant: Tenant, job_id: str, **query: Any) -> list[list[str]]:
    response = await tenant.http.get(f"/v1/jobs/{job_id}/metrics", params=query, headers={"accept": "text/csv"})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/csv")
    return list(csv.reader(io.StringIO(response.text)))


@given(series=SERIES, most=st.integers(4, 40))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_a_thinned_series_is_bounded_real_and_keeps_its_extremes(
    tenant: Tenant, context: ApiContext, series: dict[int, dict[str, float]], most: int
) -> None:
    """Of each name at most so many points, all of them reported ones; first, last, lowest, highest always; and all
    of them when they are few."""
    job_id = await add_job(context, tenant)
    await put(context, job_id, series)
    points = await read(tenant, job_id, max_points=most)
    assert [point["step"] for point in points] == sorted({point["step"] for point in points})
    for name in ("loss", "lr"):
        whole = {step: values[name] for step, values in series.items() if name in values}
        kept = {point["step"]: point["values"][name] for point in points if name in point["values"]}
        assert kept.items() <= whole.items()
        assert len(kept) <= most
        if len(whole) <= most:
            assert kept == whole
        if whole:
            assert {min(whole), max(whole)} <= kept.keys()
            assert {min(whole.values()), max(whole.values())} <= set(kept.values())


async def test_a_spike_in_any_stretch_stays_visible(tenant: Tenant, context: ApiContext) -> None:
    """Not only the highest of all: each stretch keeps its own."""
    job_id = await add_job(context, tenant)
    spikes = {137: 9.0, 512: 5.0, 803: 7.0}
    await put(context, job_id, {step: {"loss": spikes.get(step, 1.0)} for step in range(1000)})
    points = await read(tenant, job_id, max_points=40)
    shown = {point["step"]: point["values"]["loss"] for point in points}
    assert spikes.items() <= shown.items()


async def test_names_choose_series(tenant: Tenant, context: ApiContext) -> None:
    """Only these, repeated or with commas; points without any of them are left out, in pages too."""
    job_id = await add_job(context, tenant)
    await add_metric(context, job_id, 1, loss=2.0, lr=0.1)
    await add_metric(context, job_id, 2, accuracy=0.5)
    await add_metric(context, job_id, 3, loss=1.0, accuracy=0.6)
    for query in ({"names": "loss,lr"}, {"names": ["loss", "lr"]}, {"names": "loss,lr", "max_points": 10}):
        assert [(one["step"], one["values"]) for one in await read(tenant, job_id, **query)] == [
            (1, {"loss": 2.0, "lr": 0.1}),
            (3, {"loss": 1.0}),
        ]
    page = (await tenant.http.get(f"/v1/jobs/{job_id}/metrics", params={"names": "loss", "limit": 1})).json()
    assert (len(page["data"]), page["next_cursor"]) == (1, "1")
    assert [one["step"] for one in await read(tenant, job_id, names="loss", after=1)] == [3]
    assert [one["step"] for one in await read(tenant, job_id, names="loss", after=1, max_points=4)] == [3]
    for query in ({"names": ","}, {"max_points": 3}, {"max_points": 10_001}):
        error_of(await tenant.http.get(f"/v1/jobs/{job_id}/metrics", params=query), 422, "invalid_input")


async def test_a_table_has_every_point_and_a_column_per_name(tenant: Tenant, context: ApiContext) -> None:
    """Also those beyond a page; a value that a step lacks is an empty cell; awkward names are quoted."""
    job_id = await add_job(context, tenant)
    await put(context, job_id, {step: {"loss": step / 2} for step in range(2500)} | {2500: {'a,"b"': 1.0}})
    head, *rows = await read_csv(tenant, job_id)
    assert head == ["step", "at", 'a,"b"', "loss"]
    assert [int(row[0]) for row in rows] == list(range(2501))
    assert rows[3][1:] == ["2027-01-15T08:00:00.003000+00:00", "", "1.5"]
    assert rows[-1][2:] == ["1.0", ""]
    head, *rows = await read_csv(tenant, job_id, names="loss", max_points=8)
    assert head == ["step", "at", "loss"]
    assert 0 < len(rows) <= 8


async def test_a_table_of_nothing_has_a_head(tenant: Tenant, context: ApiContext) -> None:
    """Before anything was reported."""
    assert await read_csv(tenant, await add_job(context, tenant)) == [["step", "at"]]


_MILLION = """
    INSERT INTO metric_points (job_id, step, epoch, at_ms, values)
    SELECT :job_id, n, 1, n, jsonb_build_object('loss', 3 - n / 1e6)
           || CASE WHEN n % 10000 = 0 THEN jsonb_build_object('eval_loss', n) ELSE '{}' END
    FROM generate_series(CAST(:first AS bigint), CAST(:last AS bigint)) AS n
"""
_DATABASE_S = 10.0  # the machine that runs tests is slow and busy: one second where it is not


async def test_a_million_points_are_answered_as_quickly_as_some(tenant: Tenant, context: ApiContext) -> None:
    """A picture, a page, and the curve that tells when the job will be done: each looks at a bounded number of them."""
    job_id = await add_job(context, tenant)
    async with context.database.transaction() as connection:
        await connection.execute(text("SET LOCAL session_replication_role = replica"))  # a million checks of one job
        for first in range(1, 1_000_000, 100_000):
            told = {"job_id": job_id, "first": first, "last": first + 99_999}
            await connection.execute(text(_MILLION), told)
        await connection.execute(text("ANALYZE metric_points"))  # as the database does by itself before long
    begun_s = time.monotonic()
    points = await read(tenant, job_id, max_points=200, names="loss,eval_loss")
    page = await read(tenant, job_id, after=500_000, limit=10)
    async with context.database.transaction() as connection:
        curve = await averaged_metric(connection, job_id, "loss")
        rare = await averaged_metric(connection, job_id, "eval_loss")
    assert time.monotonic() - begun_s < _DATABASE_S
    loss = {point["step"]: point["values"]["loss"] for point in points if "loss" in point["values"]}
    assert (min(loss), max(loss)) == (1, 1_000_000)
    assert 100 <= len(loss) <= 200
    assert sorted(loss.values(), reverse=True) == list(loss.values())
    evals = [point["step"] for point in points if "eval_loss" in point["values"]]
    assert evals == list(range(10_000, 1_000_001, 10_000)), "the few of them are all there"
    assert [point["step"] for point in page] == list(range(500_001, 500_011))
    assert len(curve) == 120
    assert all(abs(value - (3 - step / 1e6)) < 1e-6 for step, value in curve)
    assert len(rare) == 100


async def test_a_long_series_keeps_its_ends_and_its_shape(
    tenant: Tenant, context: ApiContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where steps are spread unevenly, beyond a step that the caller has, and for all names at once."""
    monkeypatch.setattr(metric_series, "LONG_POINTS", 50)
    job_id = await add_job(context, tenant)
    steps = [number**3 for number in range(400)]
    await put(context, job_id, {step: {"loss": 1.0, "lr": step} if step % 2 else {"loss": 2.0} for step in steps})
    points = await read(tenant, job_id, max_points=40, after=1000)
    assert {point["step"] for point in points} <= set(steps)
    for name, first in (("loss", 11**3), ("lr", 11**3)):
        kept = [point["step"] for point in points if name in point["values"]]
        assert (kept[0], kept[-1]) == (first, 399**3)
        assert 4 <= len(kept) <= 40
    assert await read(tenant, job_id, max_points=40, after=400**3) == []
