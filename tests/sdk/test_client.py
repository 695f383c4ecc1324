"""The clients: what they send, when they try again, and what they make of answers."""

from __future__ import annotations

import asyncio
import importlib.resources
import inspect
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allpass import errors
from allpass.bundle import make_bundle
from allpass.client import AsyncClient, Client
from allpass.http import Retries
from allpass.wire.jobs import JobRequest
from tests.sdk.conftest import Waits
from tests.sdk.fake_service import KEY, FakeService, problem

BROKEN = httpx.ConnectError("connection refused")


def test_every_write_carries_its_own_idempotency_key(service: FakeService, client: Client) -> None:
    """Each POST has a key and the credentials; two submissions have two keys and are two jobs."""
    first, second = (client.submit_job(JobRequest(app_id="app_1")) for _ in range(2))
    keys = [one.headers["idempotency-key"] for one in service.requests]
    assert len(set(keys)) == 2
    assert first.id != second.id
    assert all(one.headers["authorization"] == f"Bearer {KEY}" for one in service.requests)


def test_a_repeated_key_gives_the_same_job(client: Client) -> None:
    """A caller's own key makes a repeated submission harmless."""
    jobs = {client.submit_job(JobRequest(app_id="app_1"), idempotency_key="mine").id for _ in range(3)}
    assert len(jobs) == 1


@pytest.mark.parametrize(
    "fault",
    [BROKEN, httpx.ReadTimeout("late"), httpx.RemoteProtocolError("cut"), problem(503, "unavailable", "later")]
    + [httpx.Response(status, text="<html>") for status in (502, 503, 504)]
    + [problem(429, "rate_limited", "slow down")],
)
def test_what_may_pass_is_tried_again_under_one_key(service: FakeService, client: Client, fault: Any) -> None:
    """Broken connections, 429 and gateway errors are retried with the same key: one job, however often it was sent."""
    service.faults = [fault, fault]
    client.submit_job(JobRequest(app_id="app_1"))
    assert len(service.requests) == 3
    assert len({one.headers["idempotency-key"] for one in service.requests}) == 1
    assert len(service.jobs) == 1


def test_a_write_that_succeeded_unseen_is_not_done_twice(service: FakeService, waits: Waits) -> None:
    """The answer is lost after the job was made: the retry gets that job."""
    lost = iter([True])

    def handler(request: httpx.Request) -> httpx.Response:
        reply = service(request)
        if next(lost, False):
            raise httpx.ReadError("reset")
        return reply

    with Client(service.base, KEY, transport=httpx.MockTransport(handler), sleep=waits.sleep) as client:
        job = client.submit_job(JobRequest(app_id="app_1"))
    assert list(service.jobs) == [job.id]


def test_retries_are_bounded_and_back_off(service: FakeService, client: Client, waits: Waits) -> None:
    """Five attempts, waits that double, then ConnectionFailed with the address and the cause."""
    service.faults = [BROKEN] * 50
    with pytest.raises(errors.ConnectionFailed, match=r"no answer from http://allpass\.test .*refused") as failed:
        client.get_job("job_1")
    assert len(service.requests) == 5
    assert waits.slept == [0.125, 0.25, 0.5, 1.0]
    assert isinstance(failed.value.__cause__, httpx.ConnectError)


@given(st.integers(2, 100), st.floats(0, 1), st.none() | st.floats(0, 1e6))
def test_waits_are_never_longer_than_allowed(attempt: int, chance: float, retry_after_s: float | None) -> None:
    """Jitter lies between nothing and the doubled wait; what the server asks for is kept, up to the longest wait."""
    wait_s = Retries(chance=lambda: chance).wait_s(attempt, retry_after_s)
    assert 0 <= wait_s <= 8.0
    assert wait_s >= min(retry_after_s or 0.0, 8.0)
    assert wait_s <= max(0.25 * 2.0 ** (attempt - 2), retry_after_s or 0.0)


def test_retry_after_is_kept(service: FakeService, client: Client, waits: Waits) -> None:
    """The server says 3 s: the client waits 3 s. A date or nonsense falls back to the usual wait."""
    job = service.add_job()
    busy = [problem(429, "rate_limited", "slow", **{"retry-after": text}) for text in ("3", "Wed, 21 Oct", "-5")]
    service.faults = list(busy)
    client.get_job(job["id"])
    assert waits.slept == [3.0, 0.25, 0.5]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.InvalidRequest), (422, errors.InvalidRequest), (401, errors.AuthenticationError),
        (403, errors.PermissionDenied), (404, errors.NotFound), (409, errors.Conflict), (413, errors.TooLarge),
        (429, errors.RateLimited), (500, errors.ServerError), (501, errors.ServerError), (503, errors.ServerError),
        (418, errors.InvalidRequest),
    ],
)  # fmt: skip
def test_each_status_is_one_exception(
    service: FakeService, client: Client, status: int, kind: type[errors.ApiError]
) -> None:
    """The error keeps the service's code, field and request id; only 429, 502, 503 and 504 were tried again."""
    service.faults = [problem(status, "some_code", "said why", param="gpu.count")] * 5
    with pytest.raises(errors.ApiError) as failed:
        client.get_job("job_1")
    error = failed.value
    assert type(error) is kind
    assert (error.code, error.param, error.request_id, error.http_status) == (
        "some_code", "gpu.count", "req_1", status,
    )  # fmt: skip
    assert str(error) == "gpu.count: said why (request req_1)"
    assert len(service.requests) == (5 if status in (429, 503) else 1)


@pytest.mark.parametrize(
    "reply",
    [httpx.Response(404, text="<html>nginx"), httpx.Response(200, text="hello"), httpx.Response(200, json={"id": 1})],
)
def test_answers_that_are_not_ours_are_told_as_such(
    service: FakeService, client: Client, reply: httpx.Response
) -> None:
    """A wrong address or another version of the service is UnexpectedReply, never a validation traceback."""
    service.faults = [reply]
    with pytest.raises(errors.UnexpectedReply):
        client.get_job("job_1")


@pytest.mark.parametrize("job_id", ["", " ", ".", "..", None])
def test_ids_that_are_none_are_refused_here(service: FakeService, client: Client, job_id: Any) -> None:
    """An empty id would ask for something else entirely."""
    with pytest.raises(errors.InvalidInput, match="job id"):
        client.get_job(job_id)
    assert service.requests == []


def test_an_id_never_reaches_another_path(service: FakeService, client: Client) -> None:
    """Slashes, dots and question marks in an id stay inside their segment."""
    with pytest.raises(errors.NotFound):
        client.get_job("../apps?x=1#y")
    assert service.requests[0].url.raw_path == b"/v1/jobs/..%2Fapps%3Fx%3D1%23y"


def test_lists_page_by_themselves(service: FakeService, client: Client) -> None:
    """Eight jobs in pages of three are one iterator, and only as many pages are asked for as are read."""
    made = [service.add_job(status="running" if number % 2 else "queued")["id"] for number in range(8)]
    listing = client.jobs()
    assert [next(listing).id for _ in range(3)] == made[:3]
    assert len(service.requests) == 1
    assert [one.id for one in listing] == made[3:]
    assert len(service.requests) == 3
    assert {one.status for one in client.jobs(status="running", label="a=b")} == {"running"}
    assert service.requests[-1].url.params["label"] == "a:b"
    with pytest.raises(errors.InvalidInput, match="label: 'a' is not key=value"):
        client.jobs(label="a").__next__()


def test_a_service_that_is_not_ready_still_says_why(service: FakeService, client: Client) -> None:
    """The 503 of a readiness check carries the health itself: it is an answer, and is not asked again."""
    report = {"status": "degraded", "parts": {"database": "does not answer"}, "version": "0.1.0"}
    service.faults = [httpx.Response(503, json=report)]
    assert client.health(ready=True).parts == {"database": "does not answer"}
    assert client.health().status == "ok"
    assert [one.url.path for one in service.requests] == ["/readyz", "/healthz"]


def test_code_is_sent_once(service: FakeService, client: Client, tmp_path: Path) -> None:
    """The first upload sends the bytes, without credentials; the second finds them there and sends nothing."""
    (tmp_path / "train.py").write_text("print(1)")
    bundle = make_bundle(tmp_path)
    assert client.upload(bundle) is True
    assert client.upload(bundle) is False
    assert service.objects == {bundle.sha256: bundle.content}
    assert [one.method for one in service.requests] == ["POST", "PUT", "POST"]
    assert "authorization" not in service.requests[1].headers


def test_a_refused_upload_is_a_storage_error(service: FakeService, client: Client, tmp_path: Path) -> None:
    """The store's refusal is told with its status."""
    (tmp_path / "train.py").write_text("print(1)")
    service.faults = [None, httpx.Response(403, text="signature expired")]
    with pytest.raises(errors.StorageError, match="HTTP 403 signature expired"):
        client.upload(make_bundle(tmp_path))


def test_read_timeouts_are_longer_than_long_polls(service: FakeService, client: Client) -> None:
    """A request that the server may hold open is given more time than that; every request has a timeout."""
    job = service.add_job(status="succeeded")
    list(client.log_pages(job["id"], follow=True))
    client.get_job(job["id"])
    for request in service.requests:
        timeout = request.extensions["timeout"]
        assert timeout["read"] > int(request.url.params.get("wait_s", 0))
        assert timeout["connect"] <= 10


def test_proxies_of_the_environment_are_not_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP_PROXY is for the outside: the local stack is reached directly."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with Client("http://127.0.0.1:7700", KEY) as client:
        direct = client._http._transport_for_url(httpx.URL("http://127.0.0.1:7700/x"))
        outside = client._http._transport_for_url(httpx.URL("http://example.com/x"))
    assert direct is client._http._transport
    assert outside is not direct


def test_both_clients_have_the_same_methods() -> None:
    """What one client can do, the other can: same names, same parameters."""

    def methods(kind: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(member).parameters)
            for name, member in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_")
            and name not in ("close", "aclose", "job", "sweep")  # handles are for plain code
        }

    assert methods(Client) == methods(AsyncClient)
    assert len(methods(Client)) > 30


def test_the_package_says_that_it_is_typed() -> None:
    """Type checkers of its users read its annotations: the marker is part of the package."""
    assert (importlib.resources.files("allpass") / "py.typed").is_file()


async def test_the_async_client_does_the_same(service: FakeService, tmp_path: Path) -> None:
    """Submit, page, follow, download and errors, awaited, give what the plain client gives."""
    async with AsyncClient(service.base, KEY, transport=httpx.MockTransport(service)) as client:
        (tmp_path / "train.py").write_text("print(1)")
        assert await client.upload(make_bundle(tmp_path)) is True
        job = await client.submit_job(JobRequest(app_id="app_1"))
        service.jobs[job.id]["status"] = "succeeded"
        service.logs[job.id] = ["a\n", "b\n"]
        service.add_event(job.id, "submitted")
        service.metrics[job.id] = [{"step": step, "at": "2030-01-01T00:00:00Z", "values": {}} for step in range(5)]
        service.add_artifact(job.id, "out/model.bin", b"weights")
        assert [one.id async for one in client.jobs()] == [job.id]
        assert (await client.wait(job.id)).status == "succeeded"
        assert "".join([one.text async for one in client.log_pages(job.id, follow=True)]) == "a\nb\n"
        assert [one.kind async for one in client.events(job.id, follow=True)] == ["submitted"]
        assert [one.step async for one in client.metrics(job.id)] == [0, 1, 2, 3, 4]
        assert [one.reused async for one in client.download(job.id, tmp_path / "d")] == [False]
        assert await asyncio.to_thread((tmp_path / "d/out/model.bin").read_bytes) == b"weights"
        assert (await client.timeline(job.id)).cost == 0
        with pytest.raises(errors.Conflict):
            await client.cancel_job(job.id)
        with pytest.raises(errors.NotFound):
            await client.get_job("job_none")


async def test_the_async_client_retries(service: FakeService) -> None:
    """Broken connections are retried under one key here too."""
    service.faults = [BROKEN, httpx.Response(502)]
    retries = Retries(first_wait_s=0.001)
    async with AsyncClient(service.base, KEY, transport=httpx.MockTransport(service), retries=retries) as client:
        await client.submit_job(JobRequest(app_id="app_1"))
    assert len({one.headers["idempotency-key"] for one in service.requests}) == 1
    assert len(service.jobs) == 1
