"""The kinds of objects that the emulated cluster has, and how it describes itself to clients."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

_ALL = ("create", "delete", "get", "list", "patch", "update", "watch")
VERSION = {
    "major": "1",
    "minor": "32",
    "gitVersion": "v1.32.0",
    "gitCommit": "0000000000000000000000000000000000000000",
    "gitTreeState": "clean",
    "buildDate": "2026-01-01T00:00:00Z",
    "goVersion": "go1.23",
    "compiler": "gc",
    "platform": "linux/amd64",
}


@dataclass(frozen=True, slots=True)
class ApiKind:
    """`plural` is what its addresses say. `subresources`: pairs of name and kind."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    short: tuple[str, ...] = ()
    subresources: tuple[tuple[str, str], ...] = ()

    @property
    def group_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """As messages name it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


_POD_PARTS = (("log", "Pod"), ("eviction", "Eviction"), ("status", "Pod"))
KINDS = (
    ApiKind("", "v1", "namespaces", "Namespace", namespaced=False, short=("ns",)),
    ApiKind("", "v1", "nodes", "Node", namespaced=False, short=("no",), subresources=(("status", "Node"),)),
    ApiKind("", "v1", "pods", "Pod", short=("po",), subresources=_POD_PARTS),
    ApiKind("", "v1", "secrets", "Secret"),
    ApiKind("", "v1", "configmaps", "ConfigMap", short=("cm",)),
    ApiKind("", "v1", "serviceaccounts", "ServiceAccount", short=("sa",)),
    ApiKind("", "v1", "events", "Event", short=("ev",)),
    ApiKind("", "v1", "resourcequotas", "ResourceQuota", short=("quota",), subresources=(("status", "ResourceQuota"),)),
    ApiKind("batch", "v1", "jobs", "Job", subresources=(("status", "Job"),)),
    ApiKind("apps", "v1", "daemonsets", "DaemonSet", short=("ds",)),
    ApiKind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", short=("pdb",)),
)
BY_PLACE = {(kind.group, kind.version, kind.plural): kind for kind in KINDS}
BY_PLURAL = {kind.plural: kind for kind in KINDS}


def discovery(path: str) -> dict[str, Any] | None:
    """What is served at addresses that describe the API; None for another address."""
    return _described().get(path)


@cache
def _described() -> dict[str, dict[str, Any]]:
    places = {_place(kind): {"serverRelativeURL": f"/openapi/v3/{_place(kind)}"} for kind in KINDS}
    told: dict[str, dict[str, Any]] = {
        "/version": VERSION,
        "/api": {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(name) for name in _groups()]},
        "/openapi/v3": {"paths": places},
    }
    for kind in KINDS:
        told[f"/{_place(kind)}"] = _resources(kind.group_version)
        told[f"/openapi/v3/{_place(kind)}"] = _openapi(kind.group_version)
        if kind.group:
            told[f"/apis/{kind.group}"] = {"kind": "APIGroup", "apiVersion": "v1", **_group(kind.group)}
    return told


def _place(kind: ApiKind) -> str:
    return f"apis/{kind.group_version}" if kind.group else "api/v1"


def _groups() -> list[str]:
    return sorted({kind.group for kind in KINDS if kind.group})


def _group(name: str) -> dict[str, Any]:
    version = {"groupVersion": f"{name}/v1", "version": "v1"}
    return {"name": name, "versions": [version], "preferredVersion": version}


def _resources(group_version: str) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for kind in (each for each in KINDS if each.group_version == group_version):
        row = {"name": kind.plural, "singularName": kind.kind.lower(), "namespaced": kind.namespaced, "kind": kind.kind}
        rows.append({**row, "verbs": list(_ALL), "shortNames": list(kind.short)})
        for name, part in kind.subresources:
            told = {"name": f"{kind.plural}/{name}", "singularName": "", "namespaced": kind.namespaced, "kind": part}
            if name == "eviction":
                told |= {"group": "policy", "version": "v1"}
            rows.append({**told, "verbs": ["create"] if name == "eviction" else ["get", "patch", "update"]})
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": rows}


def _openapi(group_version: str) -> dict[str, Any]:
    """As much as clients look for: that the server itself checks fields (`fieldValidation`), so that they need not."""
    paths: dict[str, Any] = {}
    asked = [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}]
    for kind in (each for each in KINDS if each.group_version == group_version):
        named = {"group": kind.group, "version": kind.version, "kind": kind.kind}
        base = f"/{_place(kind)}" + ("/namespaces/{namespace}" if kind.namespaced else "")
        call = {"x-kubernetes-group-version-kind": named, "parameters": asked, "responses": {}}
        paths[f"{base}/{kind.plural}/{{name}}"] = {"patch": {**call, "x-kubernetes-action": "patch"}}
        paths[f"{base}/{kind.plural}"] = {"post": {**call, "x-kubernetes-action": "post"}}
    return {"openapi": "3.0.0", "info": {"title": "Kubernetes", "version": "v1.32.0"}, "paths": paths}
