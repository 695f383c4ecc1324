"""The API server: addresses, verbs, authentication, pages, and what may go wrong around each call."""

from __future__ import annotations

import base64
import copy
import hmac
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from providers.emulators.faults import Fault, When
from providers.emulators.gpu_faults import BAD_GPUS
from providers.emulators.kubernetes import ways
from providers.emulators.kubernetes.admission import admit_new, with_usage
from providers.emulators.kubernetes.answers import KubeError, expired, failure, forbidden, missing
from providers.emulators.kubernetes.conditions import is_leaving
from providers.emulators.kubernetes.kinds import BY_PLACE, ApiKind, discovery
from providers.emulators.kubernetes.kubelet import PODS, Kubelet
from providers.emulators.kubernetes.patches import patched
from providers.emulators.kubernetes.selectors import selected
from providers.emulators.kubernetes.store import ClusterStore, KubeObject, check_version
from providers.emulators.kubernetes.watching import ObjectWatch
from providers.emulators.serving import Grounds
from providers.emulators.wire import CallerGone, ScriptedError, answer_dropped, strike

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_MOST_BODY_BYTES = 3_000_000
_TROUBLES = frozenset({ways.NEVER_READY, ways.PULL_ERROR, BAD_GPUS})


@dataclass(frozen=True, slots=True)
class ApiTarget:
    """What an address names."""

    kind: ApiKind
    namespace: str
    name: str
    part: str


class KubeApi:
    """Builds the application on its grounds."""

    def __init__(self, grounds: Grounds, store: ClusterStore, kubelet: Kubelet, crowd: Callable[[], None]) -> None:
        self._grounds = grounds
        self._store = store
        self._kubelet = kubelet
        self._crowd = crowd

    def app(self) -> Starlette:
        methods = ["GET", *_VERBS]
        return Starlette(
            routes=[Route("/{path:path}", self.answer, methods=methods)],
            exception_handlers={
                KubeError: _answer_error,
                ScriptedError: _answer_scripted,
                CallerGone: answer_dropped,
                Exception: _answer_bug,
            },
        )

    async def answer(self, request: Request) -> Response:
        path = request.url.path.rstrip("/")
        if path in {"/healthz", "/readyz", "/livez"}:
            return PlainTextResponse("ok")
        given = request.headers.get("authorization", "").encode()
        if not hmac.compare_digest(given, b"Bearer " + self._grounds.key.encode()):
            raise KubeError(401, "Unauthorized")
        self._crowd()
        told = discovery(path) if request.method == "GET" else None
        if told is not None:
            return await self._around(request, "describe", lambda _: _at_once(told))
        target = _target(path)
        verb = self._verb(request, target)
        self._check_rights(verb, target)
        op = target.part if target.part == "log" else "evict" if target.part == "eviction" else ""
        op = op or f"{verb}_{target.kind.plural}"
        return await self._around(
            request,
            op if op in ways.OPS else "other",
            lambda fault: self._do(request, target, verb, fault),
        )

    async def _around(self, request: Request, op: str, do: Callable[[Fault | None], Awaitable[Response]]) -> Response:
        fault = self._grounds.faults.take(op)
        await strike(request, fault, When.BEFORE)
        response = await do(fault)
        if fault is not None and fault.when is When.AFTER:
            await strike(request, fault, When.AFTER)
        return response

    def _verb(self, request: Request, target: ApiTarget) -> str:
        if request.method != "GET":
            return _VERBS[request.method]
        if request.query_params.get("watch") in {"true", "1"}:
            return "watch"
        return "get" if target.name else "list"

    def _check_rights(self, verb: str, target: ApiTarget) -> None:
        if self._grounds.switches["forbidden"] == f"{verb} {target.kind.plural}":
            who = 'User "system:serviceaccount:allpass:allpass-control"'
            where = f'in API group "{target.kind.group}" in the namespace "{target.namespace}"'
            why = f'{who} cannot {verb} resource "{target.kind.plural}" {where}'
            raise forbidden(target.kind.qualified, target.name, why)

    async def _do(self, request: Request, target: ApiTarget, verb: str, fault: Fault | None) -> Response:
        if target.part in {"log", "eviction"}:
            return await (self._log if target.part == "log" else self._evict)(request, target)
        if verb in {"watch", "list"}:
            return (self._watch if verb == "watch" else self._list)(request, target, fault)
        if verb == "create":
            return self._create(await _body(request), target, fault, is_dry="dryRun" in request.query_params)
        if verb == "delete":
            return self._delete(await _body(request), request, target)
        found = self._store.required(target.kind, target.namespace, target.name)
        return JSONResponse(found) if verb == "get" else await self._change(request, target, verb, found)

    # -- looking

    def _list(self, request: Request, target: ApiTarget, fault: Fault | None) -> Response:
        if fault is not None and fault.kind == ways.EXPIRED:
            raise expired()
        rows = self._chosen(request, target)
        if fault is not None and fault.kind == ways.PARTIAL_LIST:
            rows = rows[fault.args["hide"] :]
        begin, limit = _continued(request), int(request.query_params.get("limit") or 0)
        most = self._grounds.switches["page_limit"]
        limit = min(limit or most, most) if most else limit
        page = rows[begin : begin + limit] if limit else rows[begin:]
        left = len(rows) - begin - len(page)
        meta: dict[str, Any] = {"resourceVersion": str(self._store.revision)}
        if left > 0:
            token = base64.urlsafe_b64encode(json.dumps({"start": begin + len(page)}).encode()).decode()
            meta |= {"continue": token, "remainingItemCount": left}
        if fault is not None and fault.kind == ways.MALFORMED:
            page = [{"metadata": {"name": 17, "labels": "none"}, "spec": None, "status": []}, *page]
        told = {"kind": f"{target.kind.kind}List", "apiVersion": target.kind.group_version, "metadata": meta}
        return JSONResponse({**told, "items": page})

    def _chosen(self, request: Request, target: ApiTarget) -> list[KubeObject]:
        asked = request.query_params
        matches = selected(asked.get("labelSelector", ""), asked.get("fieldSelector", ""))
        rows = [each for each in self._store.all(target.kind, target.namespace) if matches(each)]
        return rows if target.kind.plural != "resourcequotas" else [with_usage(self._store, row) for row in rows]

    def _watch(self, request: Request, target: ApiTarget, fault: Fault | None) -> Response:
        asked = request.query_params
        fields = asked.get("fieldSelector", "") or (f"metadata.name={target.name}" if target.name else "")
        watch = ObjectWatch(
            self._store,
            target.kind,
            target.namespace,
            selected(asked.get("labelSelector", ""), fields),
            bookmark_every_ms=self._grounds.switches["bookmark_every_ms"],
            fault=fault,
        )
        return StreamingResponse(watch.lines(request), media_type="application/json")

    async def _log(self, request: Request, target: ApiTarget) -> Response:
        pod = self._store.required(PODS, target.namespace, target.name)
        uid, asked = pod["metadata"]["uid"], request.query_params
        if self._grounds.estate.get(uid) is None:
            name = pod["spec"]["containers"][0]["name"]
            raise KubeError(400, f'container "{name}" in pod "{target.name}" is waiting to start: ContainerCreating')
        return PlainTextResponse(self._grounds.estate.log_tail(uid, int(asked.get("tailLines") or 100_000)))

    # -- changing

    def _create(self, given: KubeObject, target: ApiTarget, fault: Fault | None, *, is_dry: bool) -> Response:
        if fault is not None and fault.kind == ways.DENIED:
            why = str(fault.args.get("message", "images must come from registry.example.com"))
            raise KubeError(403, f'admission webhook "policy.example.com" denied the request: {why}')
        meta = given.setdefault("metadata", {})
        if target.kind.namespaced:
            meta["namespace"] = target.namespace
        admit_new(self._store, target.kind, given)
        if is_dry:
            return JSONResponse(given, status_code=201)
        made = self._store.add(target.kind, given)
        if fault is not None and fault.kind in _TROUBLES:
            self._kubelet.troubles[made["metadata"]["uid"]] = fault
        if target.kind.plural == "namespaces":
            add_account(self._store, made["metadata"]["name"], "default")
        return JSONResponse(made, status_code=201)

    async def _change(self, request: Request, target: ApiTarget, verb: str, found: KubeObject) -> Response:
        body = await _body(request, is_any=True)
        how = request.headers.get("content-type", "").partition(";")[0].strip()
        after = patched(found, body, how) if verb == "patch" else copy.deepcopy(body)
        if verb == "update":
            check_version(found, (body.get("metadata") or {}).get("resourceVersion"))
        fixed = ("uid", "creationTimestamp", "resourceVersion", "namespace", "name")
        after["metadata"] |= {key: found["metadata"][key] for key in fixed if key in found["metadata"]}
        if not target.part and "status" in found and target.kind.subresources:
            after["status"] = found["status"]
        return JSONResponse(self._store.put(target.kind, after))

    def _delete(self, body: Mapping[str, Any], request: Request, target: ApiTarget) -> Response:
        if not target.name:
            for found in self._chosen(request, target):
                self._delete_one(target.kind, found, body, request)
            return JSONResponse({"kind": "Status", "apiVersion": "v1", "status": "Success"})
        found = self._store.required(target.kind, target.namespace, target.name)
        wanted = (body.get("preconditions") or {}).get("uid")
        if wanted is not None and wanted != found["metadata"]["uid"]:
            uid = found["metadata"]["uid"]
            message = f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {uid}"
            raise KubeError(409, f'Operation cannot be fulfilled on {target.kind.qualified} "{target.name}": {message}')
        self._delete_one(target.kind, found, body, request)
        left = self._store.get(target.kind, target.namespace, target.name)
        if left is not None:
            return JSONResponse(left)
        details = {"name": target.name, "kind": target.kind.plural, "uid": found["metadata"]["uid"]}
        return JSONResponse({"kind": "Status", "apiVersion": "v1", "status": "Success", "details": details})

    def _delete_one(self, kind: ApiKind, found: KubeObject, body: Mapping[str, Any], request: Request) -> None:
        asked = request.query_params
        grace = body.get("gracePeriodSeconds", asked.get("gracePeriodSeconds"))
        policy = body.get("propagationPolicy", asked.get("propagationPolicy", "Background"))
        if kind is PODS:
            self._kubelet.delete(found, None if grace is None else int(grace))
        elif kind.plural == "jobs" and policy == "Foreground":
            if not is_leaving(found):
                leaving = {"deletionTimestamp": self._store.stamp(), "finalizers": ["foregroundDeletion"]}
                self._store.change(kind, found, lambda now: now["metadata"].update(leaving))
        else:
            self._store.remove(kind, found)

    async def _evict(self, request: Request, target: ApiTarget) -> Response:
        body = await _body(request)
        pod = self._store.required(PODS, target.namespace, target.name)
        grace = (body.get("deleteOptions") or {}).get("gracePeriodSeconds")
        why = ("EvictionByEvictionAPI", "Eviction API: evicting")
        self._kubelet.delete(pod, None if grace is None or grace < 0 else int(grace), why)
        return JSONResponse({"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}, status_code=201)


def add_account(store: ClusterStore, namespace: str, name: str) -> None:
    """A service account."""
    store.add(BY_PLACE["", "v1", "serviceaccounts"], {"metadata": {"name": name, "namespace": namespace}})


def _target(path: str) -> ApiTarget:
    parts = path.strip("/").split("/")
    group, version = ("", parts[1]) if parts[0] == "api" and len(parts) > 1 else ("", "")
    rest = parts[2:]
    if parts[0] == "apis" and len(parts) > 2:
        group, version, rest = parts[1], parts[2], parts[3:]
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces" and (group, version, rest[2]) in BY_PLACE:
        namespace, rest = rest[1], rest[2:]
    kind = BY_PLACE.get((group, version, rest[0])) if rest else None
    if kind is None or len(rest) > 3:
        raise KubeError(404, "the server could not find the requested resource")
    name, part = [*rest, "", ""][1:3]
    if part and part not in {each for each, _ in kind.subresources}:
        raise missing(kind.qualified, f"{name}/{part}")
    return ApiTarget(kind, namespace, name, part)


def _continued(request: Request) -> int:
    token = request.query_params.get("continue")
    if not token:
        return 0
    try:
        return int(json.loads(base64.urlsafe_b64decode(token))["start"])
    except (ValueError, KeyError) as error:
        raise KubeError(400, "continue key is not valid") from error


async def _at_once(told: Mapping[str, Any]) -> Response:
    return JSONResponse(told)


async def _body(request: Request, *, is_any: bool = False) -> Any:
    text, kind = await request.body(), request.headers.get("content-type", "")
    if "protobuf" in kind:
        raise KubeError(415, f"the body of the request was in an unknown format: {kind}")
    if len(text) > _MOST_BODY_BYTES:
        raise KubeError(413, "Request entity too large: limit is 3145728")
    if not text:
        return {}
    try:
        body = json.loads(text)
    except ValueError as error:
        raise KubeError(400, f"the object provided is unrecognized: {error}") from error
    if not is_any and not isinstance(body, dict):
        raise KubeError(400, "the object provided is unrecognized")
    return body


async def _answer_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, KubeError)
    return failure(error)


async def _answer_scripted(_: Request, error: Exception) -> Response:
    assert isinstance(error, ScriptedError)
    return failure(KubeError(error.status or 500, str(error), retry_after_s=error.retry_after_s))


async def _answer_bug(_: Request, error: Exception) -> Response:
    return failure(KubeError(500, f"{type(error).__name__}: {error}"))
