"""What we rely on in Modal's client. A new version that changes any of it fails here, not on somebody's account.

The adapter and the client talk to the emulator in this very process, which records every call with its headers.
"""

from __future__ import annotations

import asyncio
import re
import socket
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from grpclib.events import RecvRequest, listen
from modal.sandbox._common import _is_v1_sandbox_id
from modal_proto import api_pb2

from app.errors import OutcomeUnknown
from providers.emulators.faults import Fault
from providers.emulators.modal.emulation import EMULATION, GrpcFront
from providers.emulators.modal.workspace import new_id
from providers.emulators.serving import Grounds, ServingOptions, lay_grounds
from providers.modal import sdk
from providers.modal.sdk import modal
from tests.providers.cloud_process import PATIENCE_S
from tests.providers.modal_emulator import TOKEN_ID, TOKEN_SECRET, provider_at, rent

# All that the adapter asks Modal, in the life of one sandbox. Anything else is new, and has to be understood first.
RPCS = {
    "AppFetchLogs",
    "AppGetOrCreate",
    "AuthTokenGet",
    "ClientHello",
    "EnvironmentGetOrCreate",
    "ImageGetOrCreate",
    "ImageJoinStreaming",
    "SandboxCreate",
    "SandboxGetTaskId",
    "SandboxListV2",
    "SandboxTagsGet",
    "SandboxTerminate",
    "SandboxWait",
    "SecretGetOrCreate",
}


@dataclass
class Recorded:
    """The emulator in this process, with what it was asked."""

    url: str
    grounds: Grounds
    calls: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def headers(self, name: str) -> list[dict[str, str]]:
        return [headers for each, headers in self.calls if each == name]


@pytest.fixture
async def emulator(tmp_path: Path) -> AsyncIterator[Recorded]:
    options = ServingOptions(
        data_dir=tmp_path,
        host="127.0.0.1",
        port=0,
        admin_port=0,
        speed=0.0,
        seed=1,
        tails=False,
        switches=(),
        parent_pid=None,
        machines_die_with_emulator=True,
    )
    grounds = lay_grounds(EMULATION, options, f"{TOKEN_ID}:{TOKEN_SECRET}")
    front = EMULATION.build(grounds).front
    assert isinstance(front, GrpcFront)
    await grounds.estate.open()
    listener = socket.create_server(("127.0.0.1", 0))
    await front.open(listener)
    recorded = Recorded(f"http://127.0.0.1:{listener.getsockname()[1]}", grounds)

    async def record(event: RecvRequest) -> None:
        headers = {name: str(value) for name, value in event.metadata.items()}
        recorded.calls.append((event.method_name.rpartition("/")[2], headers))

    assert front._server is not None
    listen(front._server, RecvRequest, record)
    yield recorded
    await front.close()
    await grounds.estate.close()


def test_the_version_is_one_that_was_looked_at() -> None:
    """Another minor version may change the wire: read this file again before it is let in."""
    assert re.fullmatch(r"1\.6\.\d+", modal.__version__)


async def test_a_sandbox_takes_these_calls_and_no_others(emulator: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole life of a machine uses a known set of calls, each with the account's token."""
    monkeypatch.setattr("modal._environments.ENVIRONMENT_CACHE", {})
    emulator.grounds.switches.set({"image_build_ms": 50})
    provider = provider_at(emulator.url)
    machine = await rent(provider)
    await emulator.grounds.estate.until(machine.ref, lambda row: row.ready_ms is not None, PATIENCE_S)
    await provider.get(machine.ref)
    await provider.list_owned()
    await provider.logs(machine.ref, 5)
    await provider.terminate(machine.ref)
    await provider.find(str(machine.label))
    await provider.close()
    assert {name for name, _ in emulator.calls} == RPCS
    for _, headers in emulator.calls:
        assert headers["x-modal-token-id"] == TOKEN_ID
        assert headers["x-modal-client-version"] == modal.__version__
    assert all(headers["x-modal-auth-token"] for headers in emulator.headers("SandboxListV2"))


async def test_the_create_call_carries_all_we_ask_for(emulator: Recorded) -> None:
    """Name and tags travel inside the create call; so do lifetime, CPU, memory, GPU and environment."""
    provider = provider_at(emulator.url)
    machine = await rent(provider, "H100:2", lifetime_ms=3_600_000, bootstrap=(("ALLPASS_X", "y"),))
    row = emulator.grounds.estate.get(machine.ref)
    assert row is not None
    facts = row.facts
    assert (facts["name"], facts["tags"]["allpass-node"]) == (machine.label, machine.label)
    assert (facts["gpu"], facts["gpu_count"]) == ("H100", 2)
    assert (facts["milli_cpu"], facts["memory_mib"], facts["timeout_secs"]) == (4_000, 32_768, 3_600)
    assert emulator.grounds.estate.recall("secrets") != {}
    await provider.close()


async def test_a_create_call_is_made_four_times_under_one_key(emulator: Recorded) -> None:
    """The client repeats an unanswered create three times, always under the same key: then it is ours to find out."""
    provider = provider_at(emulator.url)
    await provider.offers()
    emulator.grounds.faults.add(Fault("create", "error"))
    with pytest.raises(OutcomeUnknown):
        await rent(provider)
    keys = [headers["x-idempotency-key"] for headers in emulator.headers("SandboxCreate")]
    assert len(keys) == 4
    assert len(set(keys)) == 1
    uuid.UUID(keys[0])
    assert [headers["x-retry-attempt"] for headers in emulator.headers("SandboxCreate")] == ["0", "1", "2", "3"]
    await provider.close()


async def test_a_throttled_call_is_not_repeated_by_the_client(emulator: Recorded) -> None:
    """The client would wait without limit when Modal says so; ours says so at once, and our own queue waits."""
    provider = provider_at(emulator.url)
    await provider.offers()
    emulator.grounds.faults.add(Fault("list", "throttle", ms=60_000))
    with pytest.raises(Exception, match="throttles"):
        await provider.find("node_0")
    assert len(emulator.headers("SandboxListV2")) == 1
    await provider.close()


@pytest.mark.parametrize("needs_client", [False, True])
async def test_a_build_may_or_may_not_go_on_when_its_client_leaves(emulator: Recorded, needs_client: bool) -> None:
    """Nobody outside Modal knows which: both are played, and asking again is right in both."""
    build_ms = 60_000 if needs_client else 3_000
    emulator.grounds.switches.set({"build_needs_client": needs_client, "image_build_ms": build_ms})
    provider = provider_at(emulator.url)

    def builds() -> list[tuple[str, int]]:
        """Which image, and when it is ready: a build that begins anew is another one."""
        return [(one["id"], one["ready_ms"]) for one in emulator.grounds.estate.recall("images", {}).values()]

    left = asyncio.create_task(provider.build_image("allpass/node:left"))
    await _until(lambda: emulator.headers("ImageJoinStreaming") != [])
    await provider.find("node_0")  # once this later call is answered, the emulator has begun to wait for the build
    (first,) = builds()
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    if needs_client:
        await _until(lambda: builds() == [])
    emulator.grounds.switches.set({"image_build_ms": 100})
    await provider.build_image("allpass/node:left")
    (second,) = builds()
    assert (second != first) is needs_client
    await provider.close()


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.01)


def test_ids_tell_the_generation_as_they_do_for_the_client() -> None:
    """Both agree which sandboxes are of the first generation, whose calls have other names."""
    ids = [new_id("sb"), new_id("sb", 26), "sb-", "sb-" + "x" * 21 + "-", "no-such-machine", "ap-" + "x" * 22]
    assert [sdk.is_first_generation(each) for each in ids] == [_is_v1_sandbox_id(each) for each in ids]
    assert sdk.is_first_generation(ids[0])
    assert not sdk.is_first_generation(ids[1])


@pytest.mark.parametrize(
    ("message", "fields"),
    [
        (api_pb2.SandboxListRequest, {"app_id", "before_timestamp", "environment_name", "include_finished", "tags"}),
        (api_pb2.SandboxInfo, {"id", "created_at", "app_id", "name", "tags", "task_info"}),
        (api_pb2.TaskInfo, {"id", "started_at", "finished_at", "result"}),
        (api_pb2.GenericResult, {"status", "exitcode", "exception"}),
        (api_pb2.SandboxTag, {"tag_name", "tag_value"}),
        (api_pb2.SandboxWaitResponse, {"result", "metadata"}),
        (api_pb2.RPCRetryPolicy, {"retry_after_secs"}),
    ],
)
def test_messages_have_the_fields_we_read(message: Any, fields: set[str]) -> None:
    """Fields that the adapter reads or sets are there under their names."""
    assert fields <= {each.name for each in message.DESCRIPTOR.fields}


def test_the_settings_we_fix_are_the_clients() -> None:
    """What we fix in the client's configuration is still what it looks at, and it looks where we answer."""
    assert {"max_throttle_wait", "disable_api_proxy"} <= set(modal.config._SETTINGS)
    assert modal.config.config["max_throttle_wait"] == 0
    assert modal.config.config.get("disable_api_proxy") is True
