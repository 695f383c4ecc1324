"""The RPCs of `modal.task_command_router.TaskCommandRouter`: output of the second generation, and commands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from grpclib import GRPCError, Status
from modal_proto import task_command_router_pb2 as wire

from providers.emulators.modal.commands import SandboxCommand
from providers.emulators.modal.control_plane import ROUTER
from providers.emulators.modal.gate import Call, Streaming, Unary
from providers.emulators.modal.sandboxes import Sandboxes
from providers.emulators.modal.tokens import Tokens
from providers.emulators.modal.workspace import ModalWorkspace
from providers.emulators.rows import MachineRow, MachineState
from providers.emulators.serving import Grounds
from workers.machines.order import MACHINE_ID_VARIABLE

_LOOK_S = 0.05


class Router:
    """Commands are forgotten when the emulator is restarted, as when Modal's worker is."""

    def __init__(self, grounds: Grounds, sandboxes: Sandboxes, workspace: ModalWorkspace, tokens: Tokens) -> None:
        self._grounds = grounds
        self._sandboxes = sandboxes
        self._workspace = workspace
        self._tokens = tokens
        self._commands: dict[str, SandboxCommand] = {}

    @property
    def unary(self) -> Mapping[str, Unary]:
        return {
            "TaskExecStart": self._start,
            "TaskExecPoll": self._poll,
            "TaskExecWait": self._wait,
            "TaskExecStdinWrite": self._write,
        }

    @property
    def streaming(self) -> Mapping[str, Streaming]:
        return {"TaskExecStdioRead": self._read, "SandboxStdioReadV2": self._read_sandbox}

    def guard(self, call: Call) -> None:
        token = call.metadata.get("authorization", "").removeprefix("Bearer ")
        early_ms = int(self._grounds.switches["router_token_ms"])
        if not self._tokens.holds(ROUTER, token, refused_after_ms=early_ms):
            raise GRPCError(Status.UNAUTHENTICATED, "the token is missing or has expired")

    async def close(self) -> None:
        """End all commands; harmless when repeated."""
        await asyncio.gather(*(command.kill() for command in self._commands.values()))

    async def _start(self, request: Any, _call: Call) -> wire.TaskExecStartResponse:
        """The caller's id of the command makes a repeated start harmless."""
        row = self._running(request.task_id)
        if request.exec_id not in self._commands:
            command = self._commands[request.exec_id] = SandboxCommand()
            given = self._workspace.environment(list(request.secret_ids), list(request.secret_sources))
            home = self._home(row)
            environment = {"HOME": str(home), **given, MACHINE_ID_VARIABLE: self._grounds.estate.mark_of(row.ref)}
            await command.start(list(request.command_args), environment, Path(request.workdir or home))
        return wire.TaskExecStartResponse()

    async def _poll(self, request: Any, _call: Call) -> wire.TaskExecPollResponse:
        code = self._command(request.exec_id).returncode
        if code is None:
            return wire.TaskExecPollResponse()
        return wire.TaskExecPollResponse(signal=-code) if code < 0 else wire.TaskExecPollResponse(code=code)

    async def _wait(self, request: Any, _call: Call) -> wire.TaskExecWaitResponse:
        code = await self._command(request.exec_id).ended()
        return wire.TaskExecWaitResponse(signal=-code) if code < 0 else wire.TaskExecWaitResponse(code=code)

    async def _write(self, request: Any, _call: Call) -> wire.TaskExecStdinWriteResponse:
        await self._command(request.exec_id).write(request.data, eof=request.eof)
        return wire.TaskExecStdinWriteResponse()

    async def _read(self, request: Any, _call: Call) -> AsyncIterator[wire.TaskExecStdioReadResponse]:
        async for data in self._command(request.exec_id).read(request.file_descriptor + 1, request.offset):
            yield wire.TaskExecStdioReadResponse(data=data)

    async def _read_sandbox(self, request: Any, _call: Call) -> AsyncIterator[wire.SandboxStdioReadV2Response]:
        """Both kinds of output come as standard output; an empty piece would be an error to the client."""
        row, offset = self._sandboxes.by_task(request.task_id), request.offset
        error_output = request.file_descriptor == wire.SANDBOX_STDIO_FILE_DESCRIPTOR_STDERR
        while True:
            over = not self._sandboxes.required(row.ref).is_live
            data = b"" if error_output else self._grounds.estate.log_bytes(row.ref, offset)
            if data:
                yield wire.SandboxStdioReadV2Response(data=data, starting_offset=offset)
                offset += len(data)
            elif over:
                return
            else:
                await asyncio.sleep(_LOOK_S)

    def _running(self, task_id: str) -> MachineRow:
        row = self._sandboxes.by_task(task_id)
        if row.state is not MachineState.RUNNING:
            raise GRPCError(Status.NOT_FOUND, f"task {task_id} does not run")
        return row

    def _command(self, exec_id: str) -> SandboxCommand:
        if exec_id not in self._commands:
            raise GRPCError(Status.NOT_FOUND, f"exec {exec_id} not found")
        return self._commands[exec_id]

    def _home(self, row: MachineRow) -> Path:
        return self._grounds.data_dir / "machines" / row.ref / "root"
