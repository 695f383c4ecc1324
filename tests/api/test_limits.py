"""What is out of all proportion, in every field of every route, and a database that has no room: a clear refusal."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import text

from app.api.context import ApiContext
from app.api.examples import REQUESTS
from app.ports.objects import content_key
from tests.api.builders import add_metric
from tests.api.conftest import Tenant, error_of, make_tenant
from tests.api.document import named_operations
from tests.bundles import code
from tests.sdk.test_wire_limits import unlimited


@pytest.fixture
async def admin(api: FastAPI, context: ApiContext) -> AsyncIterator[Tenant]:
    async with make_tenant(api, context, ("admin",)) as made:
        yield made


# Bodies that are wrong in any place that they are put into. As text: JSON writers refuse some of them.
_WILD = {
    "deep": "[" * 100_000 + "]" * 100_000,
    "deep objects": '{"a":' * 50_000 + "1" + "}" * 50_000,
    "NaN": "NaN",
    "infinite": "-Infinity",
    "a huge exponent": "1e999999999",
    "beyond 64 bits": str(2**70),
    "4,000 digits": "9" * 4_000,
    "5,000 digits": "9" * 5_000,
    "half a character": '"\\ud800"',
    "NUL": '"a\\u0000b"',
    "long text": json.dumps("x" * 900_000),
    "a long list": json.dumps([1] * 400_000),
    "many names": json.dumps({str(number): 0 for number in range(60_000)}),
}


def _bodies() -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """(name, method, path, an example of the body) of every route that takes one."""
    for name, (method, path, operation) in sorted(named_operations().items()):
        content = operation.get("requestBody", {}).get("content", {}).get("application/json")
        if content is not None:
            model = content["schema"]["$ref"].rpartition("/")[2]
            yield name, method, path.replace("{name}", "HF_TOKEN"), REQUESTS[model]


@pytest.mark.parametrize("name", _WILD)
async def test_no_field_of_no_route_fails_for_what_is_in_it(admin: Tenant, name: str) -> None:
    """Each field at the top of each body, and each body itself: refused, or taken where any JSON may be; never 500."""
    wild = _WILD[name]
    for _, method, path, example in _bodies():
        bodies = [wild]
        for field in example:
            rest = {key: value for key, value in example.items() if key != field}
            bodies.append(json.dumps(rest)[:-1] + f"{', ' if rest else ''}{json.dumps(field)}: {wild}}}")
        for body in bodies:
            response = await admin.http.request(
                method, path, content=body, headers={"Content-Type": "application/json"}
            )
            assert response.status_code < 500, (method, path, body[:200], response.text)
            if response.status_code >= 400:
                error = response.json()["error"]
                assert len(error["message"]) < 1_000, (method, path, error["message"][:2_000])


def test_every_parameter_of_every_route_has_a_limit() -> None:
    """Those in URLs and headers, as those in bodies (tests/sdk/test_wire_limits.py)."""
    found = [
        problem
        for name, (_, _, operation) in named_operations().items()
        for parameter in operation.get("parameters", ())
        for problem in unlimited(parameter["schema"], f"{name}: {parameter['name']}")
    ]
    assert found == []


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ("NaN", "body"),
        ("1e400", "template.training.learning_rate"),
        ("1" + "0" * 400, "template.training.learning_rate"),
        ("-0.0", "template.training.learning_rate"),
    ],
)
async def test_a_number_out_of_bounds_is_named(tenant: Tenant, value: str, param: str) -> None:
    """422 with the field and its value, shortened."""
    body = f'{{"app_id": "{tenant.app_id}", "template": {{"training": {{"learning_rate": {value}}}}}}}'
    response = await tenant.http.post("/v1/jobs", content=body)
    error = error_of(response, 422, "invalid_input")
    assert (error["param"], len(error["message"]) < 300) == (param, True)


async def test_a_sweep_of_a_hundred_thousand_is_too_large(tenant: Tenant) -> None:
    """Ten thousand parameter sets are the most, whatever the body weighs."""
    sent = await tenant.http.post("/v1/sweeps", json={"app_id": tenant.app_id, "parameters": [{}] * 100_000})
    assert error_of(sent, 422, "invalid_input")["param"] == "parameters"
    grown = await tenant.http.post("/v1/sweeps", json={"app_id": tenant.app_id, "parameters": [{"seed": 1}] * 100_000})
    error_of(grown, 413, "too_large")


async def test_a_job_with_a_megabyte_of_parameters_is_taken_and_read(tenant: Tenant) -> None:
    """Parameters are the user's own: as large as a body may be."""
    parameters = {"text": "x" * 1_000_000, "deep": json.loads("[" * 60 + "]" * 60)}
    job = (await tenant.http.post("/v1/jobs", json={"app_id": tenant.app_id, "parameters": parameters})).json()
    assert (await tenant.http.get(f"/v1/jobs/{job['id']}")).json()["parameters"] == parameters


async def test_a_job_of_older_limits_is_listed_and_read(tenant: Tenant, context: ApiContext) -> None:
    """Its row holds what would not be accepted any more: it can be read, alone and in a list."""
    job = (await tenant.http.post("/v1/jobs", json={"app_id": tenant.app_id})).json()
    async with context.database.transaction() as connection:
        stored = {"training": {"steps": 10**15, "method": "lora"}, "of_tomorrow": True}
        await connection.execute(
            text("UPDATE jobs SET template = :template, total_steps = 1000000000000000"),
            {"template": json.dumps(stored)},
        )
    read = (await tenant.http.get(f"/v1/jobs/{job['id']}")).json()
    assert (read["total_steps"], read["template"]["training"]["method"]) == (10**15, "lora")
    assert (await tenant.http.get("/v1/jobs")).json()["data"][0]["template"] == read["template"]


async def test_metrics_at_their_extremes_can_be_read(tenant: Tenant, context: ApiContext) -> None:
    """Steps, moments and values as far as they go, and as older rows may hold them: every way to read them answers."""
    job = (await tenant.http.post("/v1/jobs", json={"app_id": tenant.app_id})).json()
    for step, value in [(0, 1e100), (1, -1e100), (2**53, 1e-300), (2**53 - 1, 1.7e308)]:
        await add_metric(context, job["id"], step, loss=value)  # measured at as many milliseconds
    for path in ("/metrics", "/metrics?max_points=4&names=loss", "/explain", "/timeline", ""):
        for accept in ("application/json", "text/csv"):
            response = await tenant.http.get(f"/v1/jobs/{job['id']}{path}", headers={"Accept": accept})
            assert response.status_code == 200, (path, response.text)


_REFUSE_WRITES = """
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'could not extend file "base/1/2": no space' USING ERRCODE = '{state}'; END $$
"""
_WRITTEN = ("jobs", "api_keys", "secrets", "app_versions", "objects")


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ("53100", "database_full"),
        ("53200", "unavailable"),
        ("53400", "unavailable"),
        ("58030", "unavailable"),
        ("25006", "unavailable"),
        ("40P01", "unavailable"),
        ("55P03", "unavailable"),
    ],
)
async def test_a_database_that_cannot_write_now_says_to_come_back(
    admin: Tenant, context: ApiContext, state: str, says: str
) -> None:
    """503 with its code, on every route that writes; nothing of our insides is told; reading goes on; and once there is
    room, the same request under the same key is carried out."""
    bundle = code()
    sha256 = hashlib.sha256(bundle).hexdigest()
    await context.objects.put(content_key(admin.project_id, sha256), bundle, sha256=sha256)
    app = {"name": "x", "user_name": "ada", "bundle_sha256": sha256, "entrypoint": "train.py"}
    requests: list[tuple[str, str, dict[str, Any]]] = [
        ("POST", "/v1/jobs", {"app_id": admin.app_id}),
        ("POST", "/v1/sweeps", {"app_id": admin.app_id, "parameters": [{}] * 70}),
        ("POST", "/v1/keys", {"name": "k", "scopes": ["read"]}),
        ("POST", "/v1/apps", app),
        ("PUT", "/v1/secrets/HF_TOKEN", {"value": "hf_123456"}),
    ]
    async with context.database.transaction() as connection:
        await connection.execute(text(_REFUSE_WRITES.format(state=state)))
        for table in _WRITTEN:
            trigger = f"CREATE TRIGGER refuse BEFORE INSERT ON {table} EXECUTE FUNCTION refuse()"
            await connection.execute(text(trigger))
    for method, path, body in requests:
        headers = {"Idempotency-Key": path}
        response = await admin.http.request(method, path, json=body, headers=headers)
        error = error_of(response, 503, says)
        assert (error["retryable"], response.headers["retry-after"]) == (True, "1")
        assert "base/1/2" not in response.text
    assert (await admin.http.get("/v1/jobs")).json()["data"] == []
    async with context.database.transaction() as connection:
        await connection.execute(text("DROP FUNCTION refuse CASCADE"))
    for method, path, body in requests:
        response = await admin.http.request(method, path, json=body, headers={"Idempotency-Key": path})
        assert response.status_code in (200, 201), response.text
