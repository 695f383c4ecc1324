"""How Modal is put together from the parts that all emulators share."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Mapping
from typing import Any

from grpclib.server import Server
from modal_proto.api_grpc import ModalClientBase
from modal_proto.task_command_router_grpc import TaskCommandRouterBase

from providers.emulators import registry
from providers.emulators.admin import whole_number
from providers.emulators.faults import FaultKind
from providers.emulators.gpu_faults import BAD_GPUS, bad_gpus, break_gpus
from providers.emulators.meter import MODAL_RULE
from providers.emulators.modal.control_plane import BUILD_FAILURE, BUILD_SLOW, EMPTY_LIST, IGNORED, ControlPlane
from providers.emulators.modal.gate import LIMIT, THROTTLE, DetailsCodec, Gate
from providers.emulators.modal.prices import GOODS
from providers.emulators.modal.router import Router
from providers.emulators.modal.sandboxes import (
    DEAD_ON_ARRIVAL,
    INIT_FAILURE,
    NEVER_SCHEDULED,
    NEVER_STARTS,
    Sandboxes,
)
from providers.emulators.modal.tokens import Tokens
from providers.emulators.modal.workspace import ModalWorkspace
from providers.emulators.serving import Built, Emulation, Grounds
from providers.emulators.startup import MODAL

DEFAULT_PORT = 7721
DEFAULT_ADMIN_PORT = 7731
_CLOSE_S = 2.0
_CREATE = frozenset({"create"})

OPS = {
    "ClientHello": "hello",
    "AuthTokenGet": "token",
    "AppGetOrCreate": "app",
    "ImageGetOrCreate": "image",
    "SecretGetOrCreate": "secret",
    "SandboxCreate": "create",
    "SandboxCreateV2": "create",
    "SandboxGetTaskId": "schedule",
    "SandboxGetTaskIdV2": "schedule",
    "SandboxWait": "get",
    "SandboxWaitV2": "get",
    "SandboxTagsGet": "tags",
    "SandboxTagsGetV2": "tags",
    "SandboxGetFromName": "find",
    "SandboxGetFromNameV2": "find",
    "SandboxList": "list",
    "SandboxListV2": "list",
    "SandboxTerminate": "terminate",
    "SandboxTerminateV2": "terminate",
    "AppFetchLogs": "logs",
    "TaskExecStart": "exec",
}
KINDS = {
    THROTTLE: FaultKind(sided=True, needs_ms=True),  # too many requests: come back after `ms`
    LIMIT: FaultKind(sided=True, args={"message": str}),  # a limit of the workspace, without a word on when it ends
    NEVER_SCHEDULED: FaultKind(_CREATE),  # there is never a machine for it
    NEVER_STARTS: FaultKind(_CREATE),  # it has a machine, on which its container never starts
    INIT_FAILURE: FaultKind(_CREATE),  # it dies while it is made ready, with exit code 0
    DEAD_ON_ARRIVAL: FaultKind(_CREATE),  # the call succeeds; from then on nobody knows the sandbox
    BAD_GPUS: bad_gpus("create"),
    BUILD_FAILURE: FaultKind(frozenset({"image"}), args={"status": str, "message": str, "log": str}),  # after `ms`
    BUILD_SLOW: FaultKind(frozenset({"image"}), needs_ms=True),  # takes `ms`, whatever it is
    EMPTY_LIST: FaultKind(frozenset({"list"})),  # the call succeeds, and nothing is in it
    IGNORED: FaultKind(frozenset({"terminate"})),  # the call succeeds and does nothing
}
SWITCHES: Mapping[str, bool | int | str] = {
    "dedupe": True,  # a repeated create call gets the sandbox that it made before
    "strike_each_attempt": False,  # faults strike single attempts of a call, not all of them
    "page_size": 50,
    "listing_lag_ms": 0,  # 0: up to five seconds, at the emulator's speed
    "listing_clock_ms": 1,  # how coarse times of creation are
    "name_kept_ms": 0,  # how long a name stays taken after the end
    "gpu_limit": 0,  # of the whole workspace; 0: none
    "image_build_ms": 0,  # of an image that is new; 0: one to three minutes, at the emulator's speed
    "build_needs_client": False,  # a build that nobody waits for is given up
    registry.SWITCH: "",  # `registry user password`: its images are built with that login alone
    "timeout_late_ms": 0,
    "preempted_as": "TERMINATED",  # or INTERNAL_FAILURE, or SILENCE: nobody knows it any more
    "session_token_ms": 0,  # refused so long after issue, whatever it says itself; 0: as it says
    "router_token_ms": 0,
}


class GrpcFront:
    """Both services on one plaintext port."""

    def __init__(self, services: list[Any], plane: ControlPlane, router: Router) -> None:
        self._services = services
        self._plane = plane
        self._router = router
        self._server: Server | None = None

    async def open(self, listener: socket.socket) -> None:
        """Accept connections; returns when that works."""
        host, port = listener.getsockname()[:2]
        self._plane.url = f"http://{host}:{port}"
        self._server = Server(self._services, status_details_codec=DetailsCodec())
        await self._server.start(sock=listener)

    async def close(self) -> None:
        """Cut off what is under way; harmless when repeated."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
            try:
                async with asyncio.timeout(_CLOSE_S):
                    await server.wait_closed()
            except TimeoutError:
                pass  # a caller that does not leave is left behind
        await self._router.close()


def build(grounds: Grounds) -> Built:
    """The emulator, on what the process around it provides."""
    secret = grounds.estate.recall("tokens", "") or secrets.token_hex(32)
    grounds.estate.remember("tokens", secret)
    tokens, workspace, sandboxes = Tokens(secret, grounds.now_ms), ModalWorkspace(grounds.estate), Sandboxes(grounds)
    plane = ControlPlane(grounds, sandboxes, workspace, tokens)
    router = Router(grounds, sandboxes, workspace, tokens)
    gate = Gate(grounds.faults, grounds.switches, OPS)
    services = [
        gate.service(ModalClientBase, plane.guard, plane.unary, plane.streaming),
        gate.service(TaskCommandRouterBase, router.guard, router.unary, router.streaming),
    ]

    async def finish(ref: str, body: Mapping[str, Any]) -> None:
        """{"status": "INTERNAL_FAILURE", "exitcode": 0, "exception": "..."}: it ends like that, now."""
        exception = str(body.get("exception", ""))
        sandboxes.finish(ref, str(body.get("status", "")), whole_number(body, "exitcode", default=0), exception)

    async def untag(ref: str, _: Mapping[str, Any]) -> None:
        """It has no tags (yet, or any more)."""
        grounds.estate.update_facts(ref, tags={})

    return Built(
        GrpcFront(services, plane, router), {"finish": finish, "untag": untag, "gpus": break_gpus(grounds.estate)}
    )


EMULATION = Emulation(
    name="modal",
    default_port=DEFAULT_PORT,
    default_admin_port=DEFAULT_ADMIN_PORT,
    rule=MODAL_RULE,
    startup=MODAL,
    goods=GOODS,
    ops=tuple(dict.fromkeys(OPS.values())),
    build=build,
    kinds=KINDS,
    switches=SWITCHES,
)
