"""Who is let in."""

from __future__ import annotations

import asyncio

import pytest
from fastapi import FastAPI
from sqlalchemy import select, update

from app.api.context import ApiContext
from app.db.access.keys import revoke_key
from app.db.tables import api_keys
from app.errors import InvalidInput
from app.services.access.authenticate import REMEMBERED_MS
from app.services.access.create_key import create_key
from tests.api.conftest import Tenant, client, error_of, make_tenant
from tests.conftest import ManualClock
from tests.seeds import new_id

ROUTES = [
    ("POST", "/v1/bundles", "submit"),
    ("POST", "/v1/apps", "submit"),
    ("GET", "/v1/apps", "read"),
    ("GET", f"/v1/apps/{new_id('app')}", "read"),
    ("POST", "/v1/jobs", "submit"),
    ("POST", "/v1/sweeps", "submit"),
    ("POST", "/v1/jobs/plan", "read"),
    ("PUT", "/v1/finetunes/data?name=a.jsonl", "submit"),
    ("POST", "/v1/finetunes", "submit"),
    ("PUT", "/v1/simulations/trace?name=a.csv", "submit"),
    ("POST", "/v1/simulations", "read"),
    ("GET", "/v1/jobs", "read"),
    ("GET", f"/v1/jobs/{new_id('job')}", "read"),
    ("POST", f"/v1/jobs/{new_id('job')}/cancel", "submit"),
    ("POST", f"/v1/jobs/{new_id('job')}/pause", "submit"),
    ("POST", f"/v1/jobs/{new_id('job')}/resume", "submit"),
    ("POST", f"/v1/jobs/{new_id('job')}/resize", "submit"),
    ("POST", f"/v1/jobs/{new_id('job')}/standby", "submit"),
    ("POST", f"/v1/jobs/{new_id('job')}/standby/end", "submit"),
    ("GET", f"/v1/jobs/{new_id('job')}/standbys", "read"),
    ("POST", f"/v1/jobs/{new_id('job')}/standby/windows", "submit"),
    ("GET", f"/v1/jobs/{new_id('job')}/standby/windows", "read"),
    ("DELETE", f"/v1/standby-windows/{new_id('stbw')}", "submit"),
    ("POST", "/v1/reservations", "submit"),
    ("GET", "/v1/reservations", "read"),
    ("GET", f"/v1/reservations/{new_id('resv')}", "read"),
    ("DELETE", f"/v1/reservations/{new_id('resv')}", "submit"),
    ("PATCH", f"/v1/jobs/{new_id('job')}", "submit"),
    ("GET", f"/v1/jobs/{new_id('job')}/explain", "read"),
    ("GET", f"/v1/jobs/{new_id('job')}/events", "read"),
    ("GET", f"/v1/jobs/{new_id('job')}/events/stream", "read"),
    ("GET", f"/v1/jobs/{new_id('job')}/logs/search", "read"),
    ("GET", "/v1/offers", "read"),
    ("GET", "/v1/providers", "read"),
    ("POST", "/v1/providers/check", "admin"),
    ("POST", "/v1/providers/refresh", "admin"),
    ("GET", "/v1/providers/images", "admin"),
    ("POST", "/v1/providers/images", "admin"),
    ("GET", "/v1/providers/prov_modal/prices", "read"),
    ("PUT", "/v1/providers/prov_modal/prices", "owner"),
    ("DELETE", "/v1/providers/prov_modal/prices", "owner"),
    ("GET", "/v1/usage", "read"),
    ("GET", f"/v1/jobs/{new_id('job')}/logs", "read"),
    ("GET", f"/v1/jobs/{new_id('job')}/metrics", "read"),
    ("GET", f"/v1/jobs/{new_id('job')}/system", "read"),
    ("GET", f"/v1/jobs/{new_id('job')}/checkpoints", "read"),
    ("GET", f"/v1/jobs/{new_id('job')}/checkpoints/{new_id('ckpt')}/files", "read"),
    ("GET", f"/v1/jobs/{new_id('job')}/artifacts", "read"),
    ("GET", f"/v1/jobs/{new_id('job')}/artifacts/preview?path=a", "read"),
    ("GET", "/v1/jobs/table", "read"),
    ("GET", "/v1/jobs/table/stream?after=no", "read"),
    ("GET", f"/v1/jobs/{new_id('job')}/timeline", "read"),
    ("GET", f"/v1/jobs/{new_id('job')}/sizes", "read"),
    ("GET", f"/v1/sweeps/{new_id('swp')}", "read"),
    ("GET", "/v1/nodes", "read"),
    ("GET", "/v1/pressure", "read"),
    ("GET", "/v1/ticks", "read"),
    ("GET", "/v1/ticks/tick_1", "read"),
    ("POST", "/v1/ticks/tick_1/replay", "read"),
    ("POST", "/v1/keys", "admin"),
    ("GET", "/v1/keys", "admin"),
    ("DELETE", f"/v1/keys/{new_id('key')}", "admin"),
    ("PUT", "/v1/secrets/HF_TOKEN", "submit"),
    ("GET", "/v1/secrets", "read"),
    ("DELETE", "/v1/secrets/HF_TOKEN", "submit"),
    ("GET", "/v1/audit", "admin"),
    ("GET", "/v1/project", "read"),
    ("PATCH", "/v1/project", "admin"),
    ("GET", "/v1/projects", "owner"),
    ("GET", "/v1/limits", "owner"),
    ("PATCH", "/v1/limits", "owner"),
    ("GET", "/v1/model-names", "read"),
    ("PUT", "/v1/model-names/gpt_4o", "owner"),
    ("DELETE", "/v1/model-names/gpt_4o", "owner"),
    ("GET", "/v1/pools", "read"),
    ("POST", "/v1/pools", "owner"),
    ("GET", "/v1/pools/pool_lab", "read"),
    ("PATCH", "/v1/pools/pool_lab", "owner"),
    ("DELETE", "/v1/pools/pool_lab", "owner"),
    ("POST", "/v1/pools/pool_lab/tokens", "owner"),
    ("GET", "/v1/fragmentation", "read"),
    ("GET", "/v1/defragmentations", "owner"),
    ("POST", "/v1/defragmentations", "owner"),
    ("GET", f"/v1/defragmentations/{new_id('dfrg')}", "owner"),
    ("POST", f"/v1/defragmentations/{new_id('dfrg')}/cancel", "owner"),
    ("POST", "/v1/pools/pool_lab/drain", "owner"),
    ("POST", "/v1/pools/pool_lab/undrain", "owner"),
    ("DELETE", f"/v1/pools/pool_lab/hosts/{new_id('host')}", "owner"),
    ("PATCH", f"/v1/pools/pool_lab/hosts/{new_id('host')}", "owner"),
    ("GET", "/v1/budgets", "read"),
    ("PUT", "/v1/budgets", "admin"),
    ("DELETE", f"/v1/budgets/{new_id('bud')}", "admin"),
    ("POST", "/v1/projects", "owner"),
    ("PATCH", f"/v1/projects/{new_id('proj')}", "owner"),
    ("POST", f"/v1/projects/{new_id('proj')}/archive", "owner"),
    ("POST", f"/v1/projects/{new_id('proj')}/restore", "owner"),
    ("POST", f"/v1/projects/{new_id('proj')}/keys", "owner"),
    ("GET", "/v1/calibrations", "read"),
    ("GET", f"/v1/calibrations/{new_id('cal')}", "read"),
    ("PATCH", f"/v1/calibrations/{new_id('cal')}", "admin"),
    ("DELETE", f"/v1/calibrations/{new_id('cal')}", "admin"),
]


async def test_every_route_needs_a_key_with_its_scope(api: FastAPI, context: ApiContext) -> None:
    """401 without one or with a wrong one, 403 with the other scope; `admin` opens all but what is an owner's."""
    async with (
        make_tenant(api, context, ("read",)) as reader,
        make_tenant(api, context, ("submit",)) as submitter,
        make_tenant(api, context, ("admin",)) as admin,
        make_tenant(api, context, ("owner",)) as owner,
        client(api) as nobody,
        client(api, "ak_00000000_" + "0" * 64) as unknown,
    ):
        wrong = {"read": submitter, "submit": reader, "admin": submitter, "owner": admin}
        for method, path, scope in ROUTES:
            for http in (nobody, unknown):
                response = await http.request(method, path, json={} if method == "POST" else None)
                error_of(response, 401, "unauthenticated")
                assert response.headers["www-authenticate"] == "Bearer"
            refused = await wrong[scope].http.request(method, path, json={} if method == "POST" else None)
            assert scope in error_of(refused, 403, "forbidden")["message"]
            allowed = await (owner if scope == "owner" else admin).http.request(
                method, path, json={} if method == "POST" else None
            )
            # A machine that others keep busy does not finish a simulation in the time that it may have.
            is_too_slow = (path, allowed.status_code) == ("/v1/simulations", 413)
            assert is_too_slow or allowed.status_code in (200, 404, 422), allowed.text


async def test_all_routes_of_clients_are_in_the_list(api: FastAPI) -> None:
    """A route that is added without saying who may call it fails here."""
    paths = api.openapi()["paths"]
    documented = {
        (method.upper(), path) for path, methods in paths.items() for method in methods if path.startswith("/v1/")
    }
    ids = {
        "HF": "{name}",
        "gpt": "{name}",
        "key": "{key_id}",
        "app": "{app_id}",
        "job": "{job_id}",
        "dfrg": "{defragmentation_id}",
        "ckpt": "{checkpoint_id}",
        "cal": "{calibration_id}",
        "bud": "{budget_id}",
        "prov": "{provider}",
        "pool": "{pool}",
        "host": "{host}",
        "swp": "{sweep_id}",
        "tick": "{tick_id}",
        "resv": "{reservation_id}",
        "stbw": "{window_id}",
        "proj": "{project_id}",
    }
    listed = {
        (
            method,
            "/".join(
                ids.get(part.split("_")[0], part) if "_" in part else part for part in path.partition("?")[0].split("/")
            ),
        )
        for method, path, _ in ROUTES
    }
    apart = ("/v1/agent", "/v1/session")  # node tokens; test_session.py
    assert {one for one in documented if not one[1].startswith(apart)} == listed


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic abc", "Bearer a b", "ak_x", "Bearer ü"])
async def test_a_header_that_is_no_key_is_a_401(api: FastAPI, header: str) -> None:
    """Never a 500, whatever it holds."""
    async with client(api) as http:
        response = await http.get("/v1/jobs", headers={"Authorization": header.encode("latin-1")})
    error_of(response, 401, "unauthenticated")


async def test_only_the_hash_of_a_key_is_stored(tenant: Tenant, context: ApiContext) -> None:
    """No column holds the key, or more of it than its public prefix."""
    async with context.database.transaction() as connection:
        (row,) = (await connection.execute(select(api_keys))).all()
    assert tenant.key.startswith(f"{row.prefix}_ak"[: len(row.prefix)])
    assert tenant.key not in repr(row._mapping)
    secret = tenant.key.removeprefix(row.prefix + "_")
    assert len(secret) == 64
    assert secret[:16] not in repr(row._mapping)


async def test_a_revoked_key_is_out_within_seconds(tenant: Tenant, context: ApiContext, clock: ManualClock) -> None:
    """It may be remembered for five seconds, never longer."""
    assert (await tenant.http.get("/v1/jobs")).status_code == 200
    async with context.database.transaction() as connection:
        key_id = (await connection.execute(select(api_keys.c.id))).scalar_one()
        assert await revoke_key(connection, key_id, now_ms=clock.ms)
        assert not await revoke_key(connection, key_id, now_ms=clock.ms)
    clock.advance(ms=REMEMBERED_MS)
    assert "revoked" in error_of(await tenant.http.get("/v1/jobs"), 401, "unauthenticated")["message"]


async def test_a_key_ends_when_it_expires(tenant: Tenant, context: ApiContext, clock: ManualClock) -> None:
    """To the millisecond, also when it was remembered."""
    async with context.database.transaction() as connection:
        await connection.execute(update(api_keys).values(expires_ms=clock.ms + 1000))
    assert (await tenant.http.get("/v1/jobs")).status_code == 200
    clock.advance(ms=999)
    assert (await tenant.http.get("/v1/jobs")).status_code == 200
    clock.advance(ms=1)
    assert "expired" in error_of(await tenant.http.get("/v1/jobs"), 401, "unauthenticated")["message"]


async def test_the_use_of_a_key_is_recorded(
    api: FastAPI, tenant: Tenant, context: ApiContext, clock: ManualClock
) -> None:
    """About once a minute, and behind the requests: those in between write nothing."""

    async def last_used() -> int | None:
        async with context.database.transaction() as connection:
            return (await connection.execute(select(api_keys.c.last_used_ms))).scalar_one()

    start_ms = clock.ms
    seen = []
    for _ in range(4):
        await asyncio.gather(*(tenant.http.get("/v1/jobs") for _ in range(3)))
        await api.state.authenticator.settled()
        seen.append(await last_used())
        clock.advance(s=30)
    assert seen == [start_ms, start_ms, start_ms + 60_000, start_ms + 60_000]


async def test_keys_have_only_scopes_that_exist(context: ApiContext) -> None:
    """An unknown scope, or none at all, is refused with what would be accepted."""
    for scopes in (("read", "write"), ()):
        async with context.database.transaction() as connection:
            with pytest.raises(InvalidInput, match="read, submit, admin"):
                await create_key(connection, "proj", "x", scopes, clock=context.clock, ids=context.ids)
