"""The service dies and never comes back: a machine whose company allows it ends by itself, and is paid no longer."""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from app.ports.provider import MachineRequest, MachineStatus
from providers.bootstrap import bootstrap_script
from providers.conformance.suite import new_label
from providers.emulators.runpod.api import pod_key
from providers.modal.adapter import ModalProvider
from providers.modal.catalogue import Catalogue, Shape
from providers.modal.launch import launch_of
from providers.modal.link import Account
from tests.providers.cloud_process import PATIENCE_S, WallClock
from tests.providers.emulators.process import KEY as EMULATOR_KEY
from tests.providers.emulators.process import EmulatorProcess
from tests.providers.modal_emulator import TOKEN_ID, TOKEN_SECRET, EmulatedModal
from tests.providers.runpod_account import RunpodAccount, provider
from tests.providers.vast_emulator import KEY, EmulatedVast
from workers.agent.build import build_zipapp

ALONE_S = 2
_MARGIN_S = 40.0  # of a busy host: a start of the agent, and its calls to the company


@pytest.fixture(scope="session")
def agent(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    target = tmp_path_factory.mktemp("dead-man") / "agent.pyz"
    build_zipapp(target)
    return target.read_bytes()


class Handler(BaseHTTPRequestHandler):
    """Gives out the agent; hangs up on all that the agent then asks."""

    agent: bytes

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.agent)))
        self.end_headers()
        self.wfile.write(self.agent)

    def do_POST(self) -> None:
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def dying(agent: bytes) -> Iterator[str]:
    """The address of a service that dies as soon as machines have their agent."""
    listening = ThreadingHTTPServer(("127.0.0.1", 0), type("Dying", (Handler,), {"agent": agent}))
    threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield f"http://127.0.0.1:{listening.server_address[1]}"
    listening.shutdown()
    listening.server_close()


def bootstrap(url: str, agent: bytes, root: Path, **more: str) -> tuple[tuple[str, str], ...]:
    values = {
        "ALLPASS_URL": url,
        "ALLPASS_AGENT_SHA256": hashlib.sha256(agent).hexdigest(),
        "ALLPASS_JOIN_TOKEN": "j" * 64,
        "ALLPASS_AGENT_ROOT": str(root),
        "ALLPASS_AGENT_ALONE_IDLE_S": str(ALONE_S),
        **more,
    }
    return tuple(values.items())


def until_ended(state: Callable[[], str], log: Callable[[], str] = lambda: "") -> None:
    deadline = time.monotonic() + PATIENCE_S
    while state() != "ended":
        assert time.monotonic() < deadline, f"it is {state()} still: {log()}"
        time.sleep(0.1)


async def test_a_contract_at_vast_destroys_itself(vast: EmulatedVast, dying: str, agent: bytes, tmp_path: Path) -> None:
    """Not only its container ends, but the contract, whose disk is paid for: with the container's own key."""
    provider = vast.provider(bootstrap=bootstrap_script)
    offer = (await provider.offers())[0]
    given = bootstrap(dying, agent, tmp_path / "root")
    machine = await provider.create(MachineRequest(new_label(), offer, offer.price_per_hour, "i", given))
    until_ended(lambda: vast.machine(machine.ref)["state"], lambda: vast.log_of(machine.ref))
    await provider.close()
    bill = vast.machine(machine.ref)["bill"]["amount_micros"]
    assert bill <= offer.price_per_hour.micros * (ALONE_S + _MARGIN_S) / 3600


async def test_a_contract_destroys_itself_where_somebody_else_answers(
    vast: EmulatedVast, agent: bytes, dying: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name has gone to another site, or the node is not known any more: what is not let in is not needed."""
    monkeypatch.delattr(Handler, "do_POST")
    provider = vast.provider(bootstrap=bootstrap_script)
    offer = (await provider.offers())[0]
    given = bootstrap(dying, agent, tmp_path / "root", ALLPASS_AGENT_ALONE_IDLE_S="3600")
    machine = await provider.create(MachineRequest(new_label(), offer, offer.price_per_hour, "i", given))
    until_ended(lambda: vast.machine(machine.ref)["state"], lambda: vast.log_of(machine.ref))
    await provider.close()


async def test_a_contract_whose_agent_cannot_be_had_destroys_itself(
    vast: EmulatedVast, agent: bytes, tmp_path: Path
) -> None:
    """The service was gone before the machine had booted."""
    provider = vast.provider(bootstrap=bootstrap_script)
    offer = (await provider.offers())[0]
    given = bootstrap("http://127.0.0.1:9", agent, tmp_path / "root", ALLPASS_BOOTSTRAP_LIMIT_S="0")
    machine = await provider.create(MachineRequest(new_label(), offer, offer.price_per_hour, "i", given))
    until_ended(lambda: vast.machine(machine.ref)["state"], lambda: vast.log_of(machine.ref))
    await provider.close()


async def test_a_sandbox_at_modal_ends_with_its_agent(
    shared_modal: EmulatedModal, dying: str, agent: bytes, tmp_path: Path
) -> None:
    """And Modal's own timeout, which every create call sets, is behind that."""
    account = Account(server_url=shared_modal.url, token_id=TOKEN_ID, token_secret=TOKEN_SECRET)
    provider = ModalProvider(account, Catalogue(Shape(2, 16)), clock=WallClock(), timeout_s=10.0, launch=launch_of)
    offer = next(each for each in await provider.offers() if each.offer_id == "T4:1")
    given = bootstrap(dying, agent, tmp_path / "root")
    machine = await provider.create(MachineRequest(new_label(), offer, offer.price_per_hour, "i", given))
    until_ended(lambda: shared_modal.machine(machine.ref)["state"])
    await provider.close()
    assert shared_modal.bill(machine.ref)["amount_micros"] <= offer.price_per_hour.micros * (ALONE_S + _MARGIN_S) / 3600


async def test_a_pod_at_runpod_deletes_itself(
    shared_runpod: EmulatorProcess, dying: str, agent: bytes, tmp_path: Path
) -> None:
    """Its container has ended by then, but a pod that is left would be there for ever."""
    rented = provider(shared_runpod.url, bootstrap=bootstrap_script)
    offer = (await rented.offers())[0]
    given = bootstrap(dying, agent, tmp_path / "root")
    machine = await rented.create(MachineRequest(new_label(), offer, offer.price_per_hour, "i", given))
    until_ended(lambda: shared_runpod.machine(machine.ref)["state"], lambda: shared_runpod.log_of(machine.ref))
    assert (await rented.get(machine.ref)).status is MachineStatus.ENDED  # type: ignore[union-attr]
    await rented.close()


def test_the_key_of_a_pod_deletes_that_pod_alone(shared_runpod: EmulatorProcess, runpod_account: RunpodAccount) -> None:
    """What user code could do with it, if it found it, is end its own machine."""
    one, other = runpod_account.created(), runpod_account.created()
    own = RunpodAccount(shared_runpod, pod_key(EMULATOR_KEY, one))
    assert own.http.get("/pods").status_code == own.create().status_code == 401
    assert own.http.delete(f"/pods/{other}").status_code == own.act(other, "terminate").status_code == 401
    assert own.http.delete(f"/pods/{one}").status_code == 204
    assert [pod["id"] for pod in runpod_account.pods()] == [other]
    own.close()


def test_the_key_of_a_container_opens_that_contract_alone(vast: EmulatedVast) -> None:
    """What user code could do with it, if it found it, is end its own machine."""
    one, other = (vast.rent().json() for _ in range(2))
    headers = {"Authorization": f"Bearer {one['instance_api_key']}"}
    with httpx.Client(base_url=vast.url, headers=headers, trust_env=False) as own:
        assert own.delete(f"/api/v0/instances/{other['new_contract']}/").status_code == 401
        assert own.get("/api/v1/instances/").status_code == 401
        assert own.put("/api/v0/asks/1/", json={}).status_code == 401
        assert own.delete("/api/v0/instances/").status_code == 401
        assert own.delete(f"/api/v0/instances/{one['new_contract']}/").status_code == 200
    assert [str(machine["ref"]) for machine in vast.live()] == [str(other["new_contract"])]
    assert KEY not in one["instance_api_key"]
