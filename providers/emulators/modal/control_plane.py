"""The RPCs of `modal.client.ModalClient` that the client needs for sandboxes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from google.protobuf import empty_pb2
from grpclib import GRPCError, Status
from modal_proto import api_pb2

from providers.emulators.modal.gate import Call, Streaming, Unary
from providers.emulators.modal.sandboxes import Sandboxes, Wanted, tag_messages, tags_of
from providers.emulators.modal.tokens import Tokens
from providers.emulators.modal.workspace import DEFAULT_ENVIRONMENT, ModalWorkspace, new_id
from providers.emulators.registry import SWITCH, why_not_pulled
from providers.emulators.rows import MachineRow
from providers.emulators.serving import Grounds

SESSION, ROUTER = "session", "router"
BUILD_FAILURE = "build_failure"
BUILD_SLOW = "build_slow"
IGNORED = "ignored"
EMPTY_LIST = "empty_list"
BUILDER_VERSION = "2025.06"  # with it, an image needs no uploads of the client's own files
_TOKEN_MS = 20 * 60_000
_LOOK_S = 0.05
_LONGEST_STREAM_S = 55.0
_STDOUT = api_pb2.FILE_DESCRIPTOR_STDOUT
_STDERR = api_pb2.FILE_DESCRIPTOR_STDERR


class ControlPlane:
    """`guard` refuses strangers; `unary` and `streaming` are the functions behind the RPCs."""

    def __init__(self, grounds: Grounds, sandboxes: Sandboxes, workspace: ModalWorkspace, tokens: Tokens) -> None:
        self._grounds = grounds
        self._estate = grounds.estate
        self._sandboxes = sandboxes
        self._workspace = workspace
        self._tokens = tokens
        self.url = ""  # of the command router: our own, once we listen
        token_id, _, secret = grounds.key.partition(":")
        self._credentials = (token_id, secret)

    @property
    def unary(self) -> Mapping[str, Unary]:
        both = {
            "SandboxWait": self._wait,
            "SandboxTerminate": self._terminate,
            "SandboxGetTaskId": self._task_id,
            "SandboxTagsGet": self._tags_get,
            "SandboxTagsSet": self._tags_set,
            "SandboxGetFromName": self._from_name,
            "SandboxList": self._list,
        }
        return {
            **both,
            **{f"{name}V2": function for name, function in both.items()},
            "ClientHello": self._hello,
            "AuthTokenGet": self._session_token,
            "EnvironmentGetOrCreate": self._environment,
            "AppGetOrCreate": self._app,
            "ImageGetOrCreate": self._image,
            "SecretGetOrCreate": self._secret,
            "SandboxCreate": self._create_first,
            "SandboxCreateV2": self._create_second,
            "AppFetchLogs": self._fetch_logs,
            "TaskGetCommandRouterAccess": self._router_of_task,
            "SandboxGetCommandRouterAccess": self._router_of_sandbox,
        }

    @property
    def streaming(self) -> Mapping[str, Streaming]:
        return {"ImageJoinStreaming": self._join_build, "SandboxGetLogs": self._follow_logs}

    def guard(self, call: Call) -> None:
        """The account's token on every call; a session token besides, on those of the second generation."""
        given = (call.metadata.get("x-modal-token-id", ""), call.metadata.get("x-modal-token-secret", ""))
        if given != self._credentials:
            raise GRPCError(Status.UNAUTHENTICATED, "Token missing or not valid for any workspace")
        if call.name.endswith("V2") or call.name == "SandboxGetCommandRouterAccess":
            token = call.metadata.get("x-modal-auth-token", "")
            early_ms = int(self._grounds.switches["session_token_ms"])
            if not self._tokens.holds(SESSION, token, refused_after_ms=early_ms):
                raise GRPCError(Status.UNAUTHENTICATED, "the auth token is missing or has expired")

    # -- the account and its things

    async def _hello(self, _request: Any, _call: Call) -> api_pb2.ClientHelloResponse:
        return api_pb2.ClientHelloResponse()

    async def _session_token(self, _request: Any, _call: Call) -> api_pb2.AuthTokenGetResponse:
        return api_pb2.AuthTokenGetResponse(token=self._tokens.issue(SESSION, _TOKEN_MS))

    async def _environment(self, request: Any, _call: Call) -> api_pb2.EnvironmentGetOrCreateResponse:
        name = request.deployment_name or DEFAULT_ENVIRONMENT
        settings = api_pb2.EnvironmentSettings(image_builder_version=BUILDER_VERSION)
        metadata = api_pb2.EnvironmentMetadata(name=name, settings=settings)
        return api_pb2.EnvironmentGetOrCreateResponse(environment_id=f"en-{name}", metadata=metadata)

    async def _app(self, request: Any, _call: Call) -> api_pb2.AppGetOrCreateResponse:
        environment = request.environment_name or DEFAULT_ENVIRONMENT
        create = request.object_creation_type == api_pb2.OBJECT_CREATION_TYPE_CREATE_IF_MISSING
        app_id = self._workspace.app(request.app_name, environment, create=create)
        metadata = api_pb2.AppHandleMetadata(app_id=app_id, description=request.app_name, environment_name=environment)
        return api_pb2.AppGetOrCreateResponse(app_id=app_id, handle_metadata=metadata)

    async def _secret(self, request: Any, _call: Call) -> api_pb2.SecretGetOrCreateResponse:
        secret_id = self._workspace.keep_secret(dict(request.env_dict))
        metadata = api_pb2.SecretMetadata(name=request.deployment_name, keys=sorted(request.env_dict))
        return api_pb2.SecretGetOrCreateResponse(secret_id=secret_id, metadata=metadata)

    async def _image(self, request: Any, call: Call) -> api_pb2.ImageGetOrCreateResponse:
        fault = call.shaped(BUILD_FAILURE)
        failure = None
        definition = request.image.SerializeToString(deterministic=True)
        build_ms = int(self._grounds.switches["image_build_ms"])
        build_ms = build_ms or self._workspace.usual_build_ms(definition, self._grounds.speed)
        slow = call.shaped(BUILD_SLOW) or fault
        if slow is not None and slow.ms:
            build_ms = slow.ms
        if fault is not None:
            message = fault.args.get("message", "no such image in the registry")
            log = fault.args.get("log", "")
            failure = {"status": fault.args.get("status", "FAILURE"), "message": message, "log": log}
        denied = self._denied(request.image)
        if denied:
            failure = {"status": "FAILURE", "message": denied}
        image = self._workspace.image(definition, build_ms, failure)
        result = None if failure is not None else self._workspace.build_result(image)
        metadata = api_pb2.ImageMetadata(image_builder_version=request.builder_version)
        return api_pb2.ImageGetOrCreateResponse(image_id=image["id"], result=result, metadata=metadata)

    def _denied(self, image: Any) -> str:
        """Why the registry does not give out what the image is made from; empty where it does."""
        base = next((each.split()[1] for each in image.dockerfile_commands if each.startswith("FROM ")), "")
        secret_id = image.image_registry_config.secret_id
        told = self._workspace.environment([secret_id], []) if secret_id else {}
        login = (told.get("REGISTRY_USERNAME", ""), told.get("REGISTRY_PASSWORD", "")) if told else None
        return why_not_pulled(self._grounds.switches[SWITCH], base, login)

    async def _join_build(self, request: Any, _call: Call) -> AsyncIterator[api_pb2.ImageJoinStreamingResponse]:
        """Ends without a result when the build outlasts the time that the caller gives; he then asks again."""
        image = self._workspace.image_of(request.image_id)
        deadline_ms = self._grounds.now_ms() + request.timeout * 1_000
        while (result := self._workspace.build_result(image)) is None:
            if self._grounds.now_ms() >= deadline_ms:
                return
            try:
                await asyncio.sleep(_LOOK_S)
            except asyncio.CancelledError:
                if self._grounds.switches["build_needs_client"]:
                    self._workspace.abandon(request.image_id)
                raise
        log = "" if image["failure"] is None else str(image["failure"].get("log", ""))
        if log:
            yield api_pb2.ImageJoinStreamingResponse(task_logs=[api_pb2.TaskLogs(data=log)], entry_id="0-1")
        metadata = api_pb2.ImageMetadata(image_builder_version=BUILDER_VERSION)
        yield api_pb2.ImageJoinStreamingResponse(result=result, entry_id="1-0", eof=True, metadata=metadata)

    # -- sandboxes

    async def _create_first(self, request: Any, call: Call) -> api_pb2.SandboxCreateResponse:
        row = self._create(request, call, [], second=False)
        return api_pb2.SandboxCreateResponse(sandbox_id=row.ref, metadata=_metadata(row))

    async def _create_second(self, request: Any, call: Call) -> api_pb2.SandboxCreateV2Response:
        if request.definition.resources.gpu_config.gpu_type:
            raise GRPCError(Status.INVALID_ARGUMENT, "GPUs are not supported by V2 Sandboxes")
        row = self._create(request, call, list(request.secret_sources), second=True)
        return api_pb2.SandboxCreateV2Response(
            sandbox_id=row.ref,
            task_id=row.facts["task_id"],
            metadata=_metadata(row),
            command_router_access=api_pb2.CommandRouterAccess(jwt=self._router_token(), url=self.url),
        )

    def _create(self, request: Any, call: Call, sources: list[Any], *, second: bool) -> MachineRow:
        definition = request.definition
        environment_name = self._workspace.environment_of(request.app_id)
        image = self._workspace.image_of(definition.image_id)
        if self._workspace.build_result(image) is None or image["failure"] is not None:
            raise GRPCError(Status.FAILED_PRECONDITION, f"Image {definition.image_id} has not been built")
        wanted = Wanted(
            definition=definition,
            app_id=request.app_id,
            environment_name=environment_name,
            tags=tags_of(request.tags),
            environment=self._workspace.environment(list(definition.secret_ids), sources),
            idempotency_key=call.idempotency_key or new_id("call"),
            second_generation=second,
        )
        return self._sandboxes.create(wanted, call.fault)

    async def _task_id(self, request: Any, _call: Call) -> api_pb2.SandboxGetTaskIdResponse:
        row = self._sandboxes.required(request.sandbox_id, just_created=True)
        if self._sandboxes.is_scheduled(row):
            return api_pb2.SandboxGetTaskIdResponse(task_id=row.facts["task_id"])
        if not row.is_live:
            return api_pb2.SandboxGetTaskIdResponse(task_result=self._sandboxes.result(row))
        return api_pb2.SandboxGetTaskIdResponse()

    async def _wait(self, request: Any, _call: Call) -> api_pb2.SandboxWaitResponse:
        row = self._sandboxes.required(request.sandbox_id)
        await self._estate.until(row.ref, lambda each: not each.is_live, request.timeout)
        row = self._sandboxes.required(request.sandbox_id)
        return api_pb2.SandboxWaitResponse(result=self._sandboxes.result(row), metadata=_metadata(row))

    async def _terminate(self, request: Any, call: Call) -> api_pb2.SandboxTerminateResponse:
        row = self._sandboxes.required(request.sandbox_id)
        if not row.is_live:
            return api_pb2.SandboxTerminateResponse(existing_result=self._sandboxes.result(row))
        if call.shaped(IGNORED) is None:
            self._sandboxes.end_soon(row)
        return api_pb2.SandboxTerminateResponse()

    async def _list(self, request: Any, call: Call) -> api_pb2.SandboxListResponse:
        if call.shaped(EMPTY_LIST) is not None:
            return api_pb2.SandboxListResponse()
        environment = request.environment_name or DEFAULT_ENVIRONMENT
        return api_pb2.SandboxListResponse(sandboxes=self._sandboxes.listed(request, environment))

    async def _tags_get(self, request: Any, _call: Call) -> api_pb2.SandboxTagsGetResponse:
        row = self._sandboxes.required(request.sandbox_id)
        return api_pb2.SandboxTagsGetResponse(tags=tag_messages(row.facts["tags"]))

    async def _tags_set(self, request: Any, _call: Call) -> Any:
        row = self._sandboxes.required(request.sandbox_id)
        self._estate.update_facts(row.ref, tags=tags_of(request.tags))
        return empty_pb2.Empty()

    async def _from_name(self, request: Any, call: Call) -> api_pb2.SandboxGetFromNameResponse:
        environment = request.environment_name or DEFAULT_ENVIRONMENT
        app_id = self._workspace.app(request.app_name, environment, create=False)
        second = call.name.endswith("V2")
        row = self._sandboxes.by_name(request.sandbox_name, app_id, second, ended_too=request.include_terminated)
        return api_pb2.SandboxGetFromNameResponse(sandbox_id=row.ref, metadata=_metadata(row))

    # -- logs

    async def _fetch_logs(self, request: Any, _call: Call) -> api_pb2.AppFetchLogsResponse:
        """The last entries of a task; an entry is a line. Error output is told apart by nothing here."""
        row = self._sandboxes.by_task(request.task_id)
        text = await asyncio.to_thread(self._estate.log_tail, row.ref, request.limit)
        items = [self._entry(line) for line in text.splitlines(keepends=True)]
        return api_pb2.AppFetchLogsResponse(batches=[api_pb2.TaskLogsBatch(task_id=request.task_id, items=items)])

    async def _follow_logs(self, request: Any, _call: Call) -> AsyncIterator[api_pb2.TaskLogsBatch]:
        row = self._sandboxes.required(request.sandbox_id)
        offset = int(request.last_entry_id or 0)
        deadline_ms = self._grounds.now_ms() + min(request.timeout or _LONGEST_STREAM_S, _LONGEST_STREAM_S) * 1_000
        while self._grounds.now_ms() < deadline_ms:
            over = not self._sandboxes.required(row.ref).is_live
            data = b"" if request.file_descriptor == _STDERR else self._estate.log_bytes(row.ref, offset)
            if data:
                offset += len(data)
                items = [self._entry(data.decode(errors="replace"))]
                yield api_pb2.TaskLogsBatch(task_id=row.facts["task_id"], entry_id=str(offset), items=items)
            elif over:
                yield api_pb2.TaskLogsBatch(entry_id=str(offset), eof=True)
                return
            else:
                await asyncio.sleep(_LOOK_S)

    def _entry(self, text: str) -> api_pb2.TaskLogs:
        return api_pb2.TaskLogs(data=text, file_descriptor=_STDOUT, timestamp=self._grounds.now_ms() / 1_000)

    # -- the command router

    async def _router_of_task(self, request: Any, _call: Call) -> api_pb2.TaskGetCommandRouterAccessResponse:
        self._sandboxes.by_task(request.task_id)
        return api_pb2.TaskGetCommandRouterAccessResponse(jwt=self._router_token(), url=self.url)

    async def _router_of_sandbox(self, request: Any, _call: Call) -> api_pb2.SandboxGetCommandRouterAccessResponse:
        if request.sandbox_id:
            self._sandboxes.required(request.sandbox_id)
        else:
            self._sandboxes.by_task(request.task_id)
        return api_pb2.SandboxGetCommandRouterAccessResponse(jwt=self._router_token(), url=self.url)

    def _router_token(self) -> str:
        return self._tokens.issue(ROUTER, _TOKEN_MS)


def _metadata(row: MachineRow) -> api_pb2.SandboxHandleMetadata:
    return api_pb2.SandboxHandleMetadata(app_id=row.facts["app_id"])
