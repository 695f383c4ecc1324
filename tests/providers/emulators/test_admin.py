"""The emulators' admin port, their faults and switches, and the process around them."""

from __future__ import annotations

import fcntl
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from providers.emulators.faults import FaultKind, FaultScript, When
from providers.emulators.lambda_cloud.emulation import EMULATION
from providers.emulators.serving import ADMIN_KEY_VARIABLE, KEY_VARIABLE, run
from providers.emulators.switches import Switches
from tests.providers.cloud_process import eventually, ok, processes_under
from tests.providers.emulators.process import ADMIN_KEY, KEY, EmulatorProcess
from tests.providers.lambda_account import LambdaAccount
from workers.machines.processes import send_signal

KINDS = {"odd": FaultKind(ops=frozenset({"create"}), needs_ms=True, args={"size": int}, needed=frozenset({"size"}))}


# -- faults and switches, without a process


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"op": "create", "kind": "drop", "colour": 1}, "colour is not a field"),
        ({"op": "dance", "kind": "drop"}, "op is 'dance'; it must be one of create, list, any"),
        ({"op": "list", "kind": "explode"}, "kind is 'explode'"),
        ({"op": "list", "kind": "odd"}, "kind odd goes with op create"),
        ({"op": "create", "kind": "odd", "when": "after"}, "leave `when` out"),
        ({"op": "create", "kind": "odd"}, "needs ms"),
        ({"op": "create", "kind": "odd", "ms": 1}, r"needs args\.size"),
        ({"op": "create", "kind": "odd", "ms": 1, "args": {"size": "big"}}, r"args\.size is 'big'"),
        ({"op": "create", "kind": "odd", "ms": 1, "args": {"size": True}}, r"args\.size is True"),
        ({"op": "create", "kind": "drop", "args": {"size": 1}}, r"args\.size is not an argument of kind drop"),
        ({"op": "create", "kind": "drop", "args": []}, "must be an object"),
        ({"op": "list", "kind": "slow"}, "needs ms"),
        ({"op": "list", "kind": "drop", "when": "during"}, "when is 'during'"),
        ({"op": "list", "kind": "drop", "count": 0}, "count is 0"),
        ({"op": "list", "kind": "slow", "ms": -1}, "ms is -1"),
    ],
)
def test_a_fault_that_makes_no_sense_is_refused_in_words(body: dict[str, Any], words: str) -> None:
    """A wrong fault names the field, its value, and what would be accepted."""
    with pytest.raises(ValueError, match=words):
        FaultScript(("create", "list"), KINDS).parse(body)


def test_faults_are_used_up_in_order() -> None:
    """Each call uses up the first fault that fits it; a count is a number of calls; any op means any."""
    script = FaultScript(("create", "list"), KINDS)
    for body in (
        {"op": "list", "kind": "drop", "count": 2},
        {"op": "create", "kind": "odd", "ms": 5, "args": {"size": 3}},
        {"op": "any", "kind": "error", "when": "after"},
    ):
        script.add(script.parse(body))
    assert script.take("create", "drop") is None
    odd = script.take("create")
    assert odd is not None
    assert (odd.kind, odd.ms, odd.args, odd.when) == ("odd", 5, {"size": 3}, When.BEFORE)
    kinds = [fault and fault.kind for fault in (script.take("list") for _ in range(4))]
    assert kinds == ["drop", "drop", "error", None]
    script.add(script.parse({"op": "list", "kind": "hang"}))
    assert len(script.waiting()) == 1
    script.clear()
    assert script.take("list") is None


def test_switches_keep_their_type() -> None:
    """A switch takes values of its default's type, from JSON and from the command line; all or none."""
    switches = Switches({"on": True, "count": 3, "word": "a"})
    switches.set({"on": False, "count": 4})
    switches.set_text("word=b")
    switches.set_text("count=0")
    switches.set_text("on=true")
    assert switches.all() == {"on": True, "count": 0, "word": "b"}
    for wrong in ({"on": 1}, {"count": True}, {"count": -1}, {"word": 5}, {"other": 1}, {"count": 9, "on": "yes"}):
        with pytest.raises(ValueError, match=next(reversed(wrong))):
            switches.set(wrong)
    for text in ("on", "on=yes", "count=many", "other=1"):
        with pytest.raises(ValueError, match=text.partition("=")[0]):
            switches.set_text(text)
    assert switches["count"] == 0
    switches.reset()
    assert switches["count"] == 3


# -- the admin port


def test_the_admin_port_has_a_key_of_its_own(shared_lambda: EmulatorProcess) -> None:
    """Neither no key nor a customer's opens the admin port; its health needs none; it is not on the company's port."""
    for headers in ({}, {"Authorization": f"Bearer {KEY}"}):
        response = httpx.get(f"{shared_lambda.admin_url}/admin/machines", headers=headers, trust_env=False)
        assert (response.status_code, response.json()["error"]["code"]) == (401, "unauthenticated")
    assert httpx.get(f"{shared_lambda.admin_url}/healthz", trust_env=False).status_code == 200
    admin = {"Authorization": f"Bearer {ADMIN_KEY}"}
    assert httpx.get(f"{shared_lambda.url}/admin/machines", headers=admin, trust_env=False).status_code == 404


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/admin/faults", {"op": "launch", "kind": "nothing"}, 422, "kind is 'nothing'"),
        ("/admin/switches", {"rate_limits": "on"}, 422, "must be true or false"),
        ("/admin/market", {"supply": {"gpu_1x_abacus": 1}}, 422, "is not for rent"),
        ("/admin/market", {"price_micros": {"gpu_1x_a10": -1}}, 422, "at least 0"),
        ("/admin/market", {"colour": 1}, 422, "colour is not one of"),
        ("/admin/ledger", {"owned": "m-1"}, 422, "owned must be a list"),
        ("/admin/machines/m-1/end", {}, 404, "there is no machine m-1"),
        ("/admin/nowhere", {}, 404, "Not Found"),
    ],
)
def test_the_admin_port_says_what_is_wrong(
    shared_lambda: EmulatorProcess, path: str, body: dict[str, Any], status: int, words: str
) -> None:
    """A wrong request to the admin port names what is wrong with it."""
    response = shared_lambda.admin.post(path, json=body)
    assert response.status_code == status
    assert words in response.json()["error"]["message"]


def test_machines_can_be_worked_from_the_admin_port(
    shared_lambda: EmulatorProcess, lambda_account: LambdaAccount
) -> None:
    """A test can stop, start, signal, reprice, kill and end a machine, and is told where that makes no sense."""
    ref = lambda_account.launched()
    shared_lambda.until(ref, "running")
    eventually(lambda: "up" in shared_lambda.log_of(ref))
    assert shared_lambda.act(ref, "price", price_micros_per_hour=990_000)["price_micros_per_hour"] == 990_000
    assert shared_lambda.act(ref, "stop")["state"] == "stopped"
    assert shared_lambda.admin.post(f"/admin/machines/{ref}/kill", json={}).status_code == 409
    assert shared_lambda.act(ref, "start")["state"] == "booting"
    shared_lambda.until(ref, "running")
    shared_lambda.act(ref, "signal", signal="SIGTERM")
    eventually(lambda: shared_lambda.machine(ref)["exit_code"] == -15)
    wrong = shared_lambda.admin.post(f"/admin/machines/{ref}/signal", json={"signal": "SIGNOTHING"})
    assert wrong.status_code == 422
    assert shared_lambda.admin.post(f"/admin/machines/{ref}/dance", json={}).json()["error"]["code"] == "no_such_action"
    assert shared_lambda.act(ref, "end")["state"] == "ended"
    assert ref in {machine["ref"] for machine in shared_lambda.machines()}
    assert "up" in shared_lambda.log_of(ref)


def test_the_market_can_be_scripted_from_the_admin_port(
    shared_lambda: EmulatorProcess, lambda_account: LambdaAccount
) -> None:
    """Emptying the market leaves what is set beside it; giving it back shows the market's own figures."""
    shared_lambda.market(empty=True, supply={"gpu_1x_a10": {"us-east-1": 2}}, price_micros={"gpu_1x_a10": 880_000})
    free = {name: each["regions_with_capacity_available"] for name, each in lambda_account.types().items()}
    assert {name: [place["name"] for place in places] for name, places in free.items() if places} == {
        "gpu_1x_a10": ["us-east-1"]
    }
    assert lambda_account.types()["gpu_1x_a10"]["instance_type"]["price_cents_per_hour"] == 88
    ok(shared_lambda.admin.delete("/admin/market"))
    goods = {good["name"]: good for good in ok(shared_lambda.admin.get("/admin/market"))["goods"]}
    assert goods["gpu_1x_a10"]["price_micros"] == 750_000


def test_owned_machines_may_be_named_by_label(shared_lambda: EmulatorProcess, lambda_account: LambdaAccount) -> None:
    """Whoever does not know a machine's ref yet owns it by its label; all others are orphans."""
    refs = [lambda_account.launched(name=name) for name in ("mine", "theirs")]
    told = ok(shared_lambda.admin.post("/admin/ledger", json={"owned_labels": ["mine"]}))
    assert refs[1] in told["live_orphans"]
    assert refs[0] not in told["live_orphans"]


# -- the process


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "emulator"


@pytest.fixture
def started(folder: Path) -> Iterator[list[EmulatorProcess]]:
    """Emulators that a test starts; ended with all they leave behind."""
    emulators: list[EmulatorProcess] = []
    yield emulators
    for emulator in emulators:
        emulator.kill()
    for identity in processes_under(folder):
        send_signal(identity, signal.SIGKILL)


def test_books_and_machines_survive_a_kill_of_the_emulator(folder: Path, started: list[EmulatorProcess]) -> None:
    """After SIGKILL and a new start: the machine runs on under its id, with its bill, and the script of the market."""
    started.append(EmulatorProcess.start("lambda", folder, machines_die_with_emulator=False))
    account = LambdaAccount(started[0])
    ref = account.launched()
    account.close()
    started[0].until(ref, "running")
    eventually(lambda: "ready" in started[0].log_of(ref))
    started[0].market(price_micros={"gpu_1x_a10": 860_000})
    before = processes_under(folder)
    started[0].kill()
    assert processes_under(folder) == before
    started.append(EmulatorProcess.start("lambda", folder, machines_die_with_emulator=False))
    account = LambdaAccount(started[1])
    assert account.instance(ref)["status"] == "active"
    assert account.types()["gpu_1x_a10"]["instance_type"]["price_cents_per_hour"] == 86
    assert started[1].machine(ref)["bill"]["from_ms"] is not None
    account.terminate(ref)
    account.close()
    started[1].until(ref, "ended")
    assert processes_under(folder) == []


def test_machines_go_with_an_emulator_that_is_killed(folder: Path, started: list[EmulatorProcess]) -> None:
    """By default nothing runs on when the emulator is killed outright."""
    started.append(EmulatorProcess.start("lambda", folder))
    account = LambdaAccount(started[0])
    ref = account.launched()
    account.close()
    started[0].until(ref, "running")
    eventually(lambda: "ready" in started[0].log_of(ref))
    started[0].kill()
    eventually(lambda: processes_under(folder) == [])


def test_what_keeps_an_emulator_from_starting_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A folder or port that is taken, a missing key and odd options each end it with code 2 and a line that says so."""
    folder.mkdir()
    base = ["--data-dir", str(folder), "--port", "0", "--admin-port", "0"]
    with socket.create_server(("127.0.0.1", 0)) as taken, (folder / "emulator.lock").open("w") as lock:
        port = str(taken.getsockname()[1])
        fcntl.flock(lock, fcntl.LOCK_EX)
        elsewhere = ["--data-dir", str(folder / "other")]
        for key, options, words in (
            (ADMIN_KEY, [], "another emulator runs"),
            (ADMIN_KEY, [*elsewhere, "--port", port], f"port {port}"),
            ("", elsewhere, ADMIN_KEY_VARIABLE),
            (ADMIN_KEY, ["--set", "gpu_quota=x"], "gpu_quota is 'x'; it must be a whole number"),
            (ADMIN_KEY, ["--speed", "-1"], "speed is -1"),
        ):
            monkeypatch.setenv(KEY_VARIABLE, KEY)
            monkeypatch.setenv(ADMIN_KEY_VARIABLE, key)
            try:
                code: object = run(EMULATION, [*base, *options])
            except SystemExit as usage:
                code = usage.code
            assert code == 2
            assert words in capfd.readouterr().err


def test_sigterm_ends_it_though_callers_hang(folder: Path, started: list[EmulatorProcess]) -> None:
    """A call that hangs, as a fault had it, does not keep the emulator from ending."""
    started.append(EmulatorProcess.start("lambda", folder))
    started[0].fault(op="list", kind="hang")
    host, port = started[0].url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as caller:
        request = f"GET /api/v1/instances HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {KEY}\r\n\r\n"
        caller.sendall(request.encode())
        eventually(lambda: not ok(started[0].admin.get("/admin/faults"))["faults"])
        assert started[0].stop() == 0
        assert caller.recv(10) == b""
