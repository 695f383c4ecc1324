"""The company's HTTP API refuses what is wrong and says what would be accepted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.providers.cloud_process import KEY, PATIENCE_S, CloudProcess, ok

RENTAL = {"label": "x", "offer_id": "serverless-a100-x1", "max_price_micros_per_hour": 10**9, "image": "i", "env": {}}


@pytest.fixture(scope="module")
def stranger() -> Iterator[httpx.Client]:
    """Holds no key."""
    with httpx.Client(trust_env=False, timeout=PATIENCE_S) as http:
        yield http


def error_of(response: httpx.Response) -> tuple[int, str, str]:
    error = response.json()["error"]
    return response.status_code, error["code"], error["message"]


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Bearer", "test-key", "Basic test-key", "Bearer test-kéy"])
@pytest.mark.parametrize("path", ["/v1/machines", "/v1/offers", "/v1/bill", "/v1/traits", "/admin/faults"])
def test_nothing_is_told_without_the_key(
    shared_cloud: CloudProcess, stranger: httpx.Client, path: str, header: str | None
) -> None:
    """Every path but the health check answers 401 to a missing or wrong key."""
    headers = {"Authorization": header.encode()} if header is not None else {}
    status, code, message = error_of(stranger.get(shared_cloud.url + path, headers=headers))
    assert (status, code) == (401, "unauthenticated")
    assert "Authorization: Bearer" in message


def test_health_needs_no_key(shared_cloud: CloudProcess, stranger: httpx.Client) -> None:
    """The health check is for supervisors, who hold no key."""
    assert stranger.get(shared_cloud.url + "/healthz").json() == {"status": "ok"}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"label": 7}, "label"),
        ({"label": ""}, "label"),
        ({"label": "x" * 201}, "label"),
        ({"offer_id": None}, "offer_id"),
        ({"image": ""}, "image"),
        ({"max_price_micros_per_hour": -1}, "max_price_micros_per_hour"),
        ({"max_price_micros_per_hour": 1.5}, "max_price_micros_per_hour"),
        ({"max_price_micros_per_hour": True}, "max_price_micros_per_hour"),
        ({"env": ["A=1"]}, "env"),
        ({"env": {"A": 1}}, "env"),
        ({"env": {"A=B": "1"}}, "env"),
        ({"env": {"A": "1\0"}}, "env"),
        ({"lifetime_ms": 0}, "lifetime_ms"),
        ({"lable": "x"}, "lable"),
    ],
)
def test_a_wrong_field_is_named_and_nothing_is_rented(
    shared_cloud: CloudProcess, change: dict[str, Any], named: str
) -> None:
    """A create call with a wrong field is refused with the field's name; no machine comes of it."""
    before = len(ok(shared_cloud.api.get("/v1/bill"))["lines"])
    status, code, message = error_of(shared_cloud.api.post("/v1/machines", json=RENTAL | change))
    assert (status, code) == (422, "invalid_request")
    assert message.startswith(named)
    assert len(ok(shared_cloud.api.get("/v1/bill"))["lines"]) == before


@pytest.mark.parametrize(("body", "status"), [(b"{", 400), (b"[]", 400), (b"\xff", 400), (b" " * 300_000, 413)])
def test_a_body_that_is_no_object_is_refused(shared_cloud: CloudProcess, body: bytes, status: int) -> None:
    """What is not a JSON object of moderate size is refused without a crash."""
    assert shared_cloud.api.post("/v1/machines", content=body).status_code == status


def test_unknown_machines_and_paths_are_told_apart(shared_cloud: CloudProcess) -> None:
    """Only the company's own word says that a machine does not exist; a wrong path says something else."""
    for method in ("GET", "DELETE"):
        assert error_of(shared_cloud.api.request(method, "/v1/machines/none"))[:2] == (404, "machine_not_found")
    assert error_of(shared_cloud.api.get("/v1/machines/none/logs"))[:2] == (404, "machine_not_found")
    assert error_of(shared_cloud.api.get("/v2/machines"))[:2] == (404, "path_not_found")
    assert error_of(shared_cloud.api.put("/v1/machines"))[:2] == (405, "method_not_allowed")


def test_a_machine_without_a_label_is_no_problem(shared_cloud: CloudProcess) -> None:
    """A label is optional on the wire: other customers do not use one."""
    machine = shared_cloud.rent(label=None)
    assert machine["label"] is None
    assert machine["id"] in {each["id"] for each in ok(shared_cloud.api.get("/v1/machines"))["machines"]}


def test_ended_machines_stay_known_by_id_and_label(shared_cloud: CloudProcess) -> None:
    """After its end a machine is still found by its id and its label, with its bill."""
    machine = shared_cloud.rent(label="kept")
    ended = ok(shared_cloud.api.delete(f"/v1/machines/{machine['id']}"))
    assert ended["status"] == "ended"
    assert shared_cloud.machine(machine["id"]) == ended
    found = ok(shared_cloud.api.get("/v1/machines", params={"label": "kept"}))["machines"]
    assert found == [ended]
    assert shared_cloud.bill_of(machine["id"])["amount_micros"] == ended["billed_micros"]


def test_the_bill_adds_up(shared_cloud: CloudProcess) -> None:
    """The total of the bill is the sum of its lines, one per machine ever rented."""
    rented = [shared_cloud.rent()["id"] for _ in range(3)]
    for machine_id in rented:
        ok(shared_cloud.api.delete(f"/v1/machines/{machine_id}"))
    bill = ok(shared_cloud.api.get("/v1/bill"))
    assert bill["total_micros"] == sum(line["amount_micros"] for line in bill["lines"])
    ids = [line["machine_id"] for line in bill["lines"]]
    assert len(ids) == len(set(ids))
    assert set(rented) <= set(ids)


@pytest.mark.parametrize(("tail", "lines"), [(0, 0), (2, 2), (3, 3), (10_000, 500)])
def test_the_end_of_a_log_is_given(shared_cloud: CloudProcess, tail: int, lines: int) -> None:
    """A log request gives the last lines asked for, or all there are."""
    machine_id = shared_cloud.rent(env={"AGENT": "seq 3 500"})["id"]
    shared_cloud.until(machine_id, "ended")
    text = shared_cloud.api.get(f"/v1/machines/{machine_id}/logs", params={"tail": tail}).text
    assert len(text.splitlines()) == lines
    assert tail == 0 or text.endswith("500\n")


@pytest.mark.parametrize("tail", ["-1", "many", "10001", "1e3"])
def test_a_wrong_tail_is_refused(shared_cloud: CloudProcess, tail: str) -> None:
    """The number of lines must be a number in bounds."""
    machine_id = shared_cloud.rent()["id"]
    response = shared_cloud.api.get(f"/v1/machines/{machine_id}/logs", params={"tail": tail})
    assert error_of(response)[:2] == (422, "invalid_request")


# -- scripted faults


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        ({"kind": "error_500"}, "op"),
        ({"op": "create"}, "kind"),
        ({"op": "reboot", "kind": "error_500"}, "op"),
        ({"op": "create", "kind": "fire"}, "kind"),
        ({"op": "create", "kind": "error_500", "when": "during"}, "when"),
        ({"op": "create", "kind": "error_500", "count": 0}, "count"),
        ({"op": "create", "kind": "hang_ms"}, "kind hang_ms needs ms"),
        ({"op": "get", "kind": "hang_ms", "ms": -1}, "ms"),
        ({"op": "get", "kind": "no_capacity"}, "kind no_capacity goes with op create"),
        ({"op": "list", "kind": "never_ready"}, "kind never_ready goes with op create"),
        ({"op": "create", "kind": "price_moved", "when": "after"}, "kind price_moved strikes before"),
        ({"op": "create", "kind": "error_500", "times": 2}, "times"),
    ],
)
def test_a_fault_that_makes_no_sense_is_refused(shared_cloud: CloudProcess, fault: dict[str, Any], named: str) -> None:
    """A scripted fault is checked when it is asked for, not when it would strike."""
    status, code, message = error_of(shared_cloud.api.post("/admin/faults", json=fault))
    assert (status, code) == (422, "invalid_request")
    assert message.startswith(named)
    assert ok(shared_cloud.api.get("/admin/faults"))["faults"] == []


def test_faults_strike_in_order_as_often_as_asked_and_only_their_operation(shared_cloud: CloudProcess) -> None:
    """Two faults of one operation strike one after the other; other operations are spared; then all is well."""
    machine_id = shared_cloud.rent()["id"]
    ok(shared_cloud.api.post("/admin/faults", json={"op": "get", "kind": "error_500", "count": 2}))
    ok(shared_cloud.api.post("/admin/faults", json={"op": "get", "kind": "rate_limited", "ms": 2_500}))
    assert shared_cloud.api.get("/v1/machines").status_code == 200
    answers = [shared_cloud.api.get(f"/v1/machines/{machine_id}") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [500, 500, 429, 200]
    assert answers[2].headers["Retry-After"] == "3"
    assert answers[2].json()["error"]["retry_after_ms"] == 2_500


def test_dropped_faults_never_strike(shared_cloud: CloudProcess) -> None:
    """DELETE forgets the faults that have not struck yet."""
    ok(shared_cloud.api.post("/admin/faults", json={"op": "list", "kind": "error_500", "count": 5}))
    assert ok(shared_cloud.api.get("/admin/faults"))["faults"][0]["count"] == 5
    ok(shared_cloud.api.delete("/admin/faults"))
    assert shared_cloud.api.get("/v1/machines").status_code == 200


async def test_a_hanging_call_does_not_hold_up_others(shared_cloud: CloudProcess) -> None:
    """While one answer is late, by an hour here, other calls are answered, and its effect is there."""
    hour = {"op": "create", "kind": "hang_ms", "ms": 3_600_000, "when": "after"}
    headers = {"Authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(base_url=shared_cloud.url, headers=headers, trust_env=False, timeout=None) as http:
        ok(await http.post("/admin/faults", json=hour))
        late = asyncio.create_task(http.post("/v1/machines", json=RENTAL | {"label": "late"}))
        async with asyncio.timeout(PATIENCE_S):
            while not ok(await http.get("/v1/machines", params={"label": "late"}))["machines"]:
                await asyncio.sleep(0.02)
        assert not late.done()
        late.cancel()
        await asyncio.wait([late])


def test_a_late_answer_comes_in_the_end(shared_cloud: CloudProcess) -> None:
    """After the time that was asked for, with its effect."""
    ok(shared_cloud.api.post("/admin/faults", json={"op": "create", "kind": "hang_ms", "ms": 300, "when": "after"}))
    begun_s = time.monotonic()
    rented = shared_cloud.rent(label="late after all")
    assert time.monotonic() - begun_s >= 0.3
    found = ok(shared_cloud.api.get("/v1/machines", params={"label": "late after all"}))["machines"]
    assert [machine["id"] for machine in found] == [rented["id"]]


def test_a_call_that_is_dropped_before_its_effect_has_none(shared_cloud: CloudProcess) -> None:
    """A connection that breaks before the effect leaves no machine; one that breaks after leaves one."""
    for when, machines in (("before", 0), ("after", 1)):
        ok(shared_cloud.api.post("/admin/faults", json={"op": "create", "kind": "drop_connection", "when": when}))
        with pytest.raises(httpx.TransportError):
            shared_cloud.api.post("/v1/machines", json=RENTAL | {"label": f"dropped-{when}"})
        found = ok(shared_cloud.api.get("/v1/machines", params={"label": f"dropped-{when}"}))["machines"]
        assert len(found) == machines


# -- traits


def test_traits_are_scaled_but_leave_room_for_real_processes(shared_cloud: CloudProcess) -> None:
    """At speed 0 nothing is expected to take time, and deadlines still leave a real process time to start."""
    traits = ok(shared_cloud.api.get("/v1/traits"))
    assert traits["speed"] == 0
    assert [each["class"] for each in traits["classes"]] == ["serverless", "marketplace", "conventional"]
    for each in traits["classes"]:
        assert each["startup_mean_ms"] == 0
        assert each["startup_deadline_ms"] >= 30_000
        assert each["create_grace_ms"] >= 5_000
