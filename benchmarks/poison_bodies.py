"""Bodies of requests with one hostile value in them, made from the published schema: a new field is poisoned too.

Each field of each request is one case: all hostile values of its kind are sent, one request each.
"""

from __future__ import annotations

import copy
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from app.api.examples import REQUESTS
from benchmarks.poison_cases import Case, Mallory

_AGENT = "/v1/agent/"
_SUBMISSIONS = ("JobRequest", "SweepRequest")
_ROUNDS_OF_SUBMISSIONS = 2
_DEEP = 2_000
_EDGES = (0, -1, 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, 10**40, 1e308, -1e308, 5e-324, float("nan"), float("inf"))
_LISTS = 20_000

Path = tuple[str | int, ...]


def body_cases(schema: Mapping[str, Any]) -> list[Case]:
    """For every field of every request body of the OpenAPI document."""
    return [
        Case("message" if route.startswith(_AGENT) else "field", f"{name}.{_dotted(path)} of {method} {route}",
             partial(_send_all, schema, method, route, name, path, kinds),
             cure=_cancel_what_was_taken,
             rounds=_ROUNDS_OF_SUBMISSIONS if name in _SUBMISSIONS else 1)
        for method, route, name in bodies(schema)
        for path, kinds in fields(schema, name)
    ]  # fmt: skip


def bodies(schema: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Method, route and model of every request that has a body."""
    found = []
    for route, methods in sorted(schema["paths"].items()):
        for method, operation in sorted(methods.items()):
            content = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if content is not None:
                found.append((method.upper(), route, content["schema"]["$ref"].rsplit("/", 1)[-1]))
    return found


def fields(schema: Mapping[str, Any], name: str) -> list[tuple[Path, tuple[Mapping[str, Any], ...]]]:
    """Every field of a model, nested ones included, with the kinds of value that it may have."""
    return list(_fields(schema, {"$ref": f"#/components/schemas/{name}"}, (), set()))


def _fields(
    schema: Mapping[str, Any], node: Mapping[str, Any], path: Path, within: set[str]
) -> Iterator[tuple[Path, tuple[Mapping[str, Any], ...]]]:
    kinds = tuple(_kinds(schema, node))
    if path:
        yield path, kinds
    for kind in kinds:
        named = kind.get("title", "") if kind.get("properties") else ""
        if named and named in within:
            continue
        for name, inner in kind.get("properties", {}).items():
            yield from _fields(schema, inner, (*path, name), within | {named})
        if kind.get("type") == "array" and "items" in kind:
            yield from _fields(schema, kind["items"], (*path, 0), within | {named})


def _kinds(schema: Mapping[str, Any], node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The node without references and alternatives: each kind of value that it takes."""
    if "$ref" in node:
        yield from _kinds(schema, schema["components"]["schemas"][node["$ref"].rsplit("/", 1)[-1]])
    elif "anyOf" in node or "allOf" in node:
        for inner in node.get("anyOf", node.get("allOf", [])):
            yield from _kinds(schema, inner)
    else:
        yield node


def hostile_values(kinds: tuple[Mapping[str, Any], ...]) -> list[Any]:
    """What no honest client sends: beyond each limit, of another type, far too much, and what JSON just allows."""
    values: list[Any] = [None, True, "1", "", [], {}, [[]]]
    for kind in kinds:
        match kind.get("type"):
            case "integer" | "number":
                limits = [
                    kind[name]
                    for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
                    if name in kind
                ]
                values += [*_EDGES, *(limit + by for limit in limits for by in (-1, 0, 1))]
            case "string":
                longest = kind.get("maxLength", 1_000)
                values += ["\0", "\ud800", "\n", "../../etc/passwd", "%s{0}$(id)", "x" * longest, "x" * (longest + 1)]
                values += ["x" * 200_000, "\u202e" * 50, *kind.get("enum", [])]
            case "array":
                values += [[None], [0] * _LISTS, [""] * _LISTS, [{}] * _LISTS]
            case "object":
                values += [{"": None}, {"\0": 1}, {"x" * 100_000: 1}, {str(number): number for number in range(_LISTS)}]
            case _:
                values += [*_EDGES, "\0", _nested(_DEEP)]
    return values


def _nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


async def _send_all(
    schema: Mapping[str, Any],
    method: str,
    route: str,
    name: str,
    path: Path,
    kinds: tuple[Mapping[str, Any], ...],
    mallory: Mallory,
) -> None:
    """Every value in turn. An answer of 500 is told: a refusal names the field, and what is taken is borne."""
    base = await _own_body(mallory, schema, name)
    url, headers = await _place_of(mallory, route)
    sent = [(_placed(schema, name, base, path, value), value) for value in hostile_values(kinds)]
    for body, value in sent:
        answer = await (mallory.place.api if headers else mallory.place.mallory.http).request(
            method, url, content=_dumped(body), headers={"Content-Type": "application/json", **headers}
        )
        if answer.status_code >= 500:
            shown = f"{value!r:.60}"
            mallory.place.server_errors.append(f"{method} {route} {_dotted(path)} = {shown}: {answer.status_code}")
        elif route in ("/v1/jobs", "/v1/sweeps") and answer.status_code == 201:
            mallory.notes.setdefault("jobs", []).extend(_job_ids(answer.json()))


async def _cancel_what_was_taken(mallory: Mallory) -> None:
    for job_id in mallory.notes.get("jobs", []):
        await mallory.place.mallory.http.post(f"/v1/jobs/{job_id}/cancel", json={})


def _job_ids(answer: Mapping[str, Any]) -> list[str]:
    if "id" in answer and str(answer["id"]).startswith("job_"):
        return [answer["id"]]
    return [job if isinstance(job, str) else job["id"] for job in answer.get("jobs", answer.get("job_ids", []))]


async def _own_body(mallory: Mallory, schema: Mapping[str, Any], name: str) -> Any:
    """The example of the API reference, about things of hers."""
    body = (
        copy.deepcopy(dict(REQUESTS[name]))
        if name in REQUESTS
        else _sample(schema, {"$ref": f"#/components/schemas/{name}"})
    )
    known: dict[str, Any] = {"app_id": mallory.app_id}
    if {"job_id", "runs"} & body.keys():
        agent = await mallory.agent()
        run = next(iter(agent.runs.values()))
        known |= run.writer()
        if "runs" in body:
            body["runs"] = [{**report, **run.writer()} for report in body["runs"]]
    return {key: known.get(key, value) for key, value in body.items()}


async def _place_of(mallory: Mallory, route: str) -> tuple[str, dict[str, str]]:
    """The route with ids of hers, and what the caller shows where it is no user."""
    place = mallory.place
    names = {"app_id": place.mallory.app_id, "name": "TOKEN", "checkpoint_id": "ckpt_none", "key_id": "key_none",
             "provider": "odd", "calibration_id": "none", "sweep_id": "swp_none", "budget_id": "bud_none"}  # fmt: skip
    if "{job_id}" in route:
        names["job_id"] = await mallory.job()
    url = route
    for name, value in names.items():
        url = url.replace("{" + name + "}", value)
    if not route.startswith(_AGENT):
        return url, {}
    agent = await mallory.agent()
    return url, {"Authorization": f"Bearer {agent.join_token if route.endswith('/join') else agent.token}"}


def _placed(schema: Mapping[str, Any], name: str, base: Any, path: Path, value: Any) -> Any:
    """A copy of the body with this value there. What is missing on the way is made as small as the schema allows."""
    return _with(schema, {"$ref": f"#/components/schemas/{name}"}, copy.deepcopy(base), path, value)


def _with(schema: Mapping[str, Any], node: Mapping[str, Any], here: Any, path: Path, value: Any) -> Any:
    if not path:
        return value
    step, *rest = path
    kind, inner = _inner(schema, node, step)
    if not isinstance(here, list if isinstance(step, int) else dict):
        here = _sample(schema, kind)
    if isinstance(step, int):
        old = here[0] if here else _sample(schema, inner)
        return [_with(schema, inner, old, tuple(rest), value)]
    return {**here, step: _with(schema, inner, here.get(step), tuple(rest), value)}


def _inner(
    schema: Mapping[str, Any], node: Mapping[str, Any], step: str | int
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The alternative of the node that this step is in, and what is there."""
    for kind in _kinds(schema, node):
        if isinstance(step, int) and "items" in kind:
            return kind, kind["items"]
        if isinstance(step, str) and step in kind.get("properties", {}):
            return kind, kind["properties"][step]
    raise KeyError(step)


def _sample(schema: Mapping[str, Any], node: Mapping[str, Any]) -> Any:
    """The smallest value that the schema takes, nearly."""
    kind = next(iter(sorted(_kinds(schema, node), key=lambda one: one.get("type") == "null")))
    if "enum" in kind or "const" in kind:
        return kind.get("const", next(iter(kind.get("enum", [None]))))
    samples: Mapping[str, Callable[[], Any]] = {
        "object": lambda: {key: _sample(schema, kind["properties"][key]) for key in kind.get("required", [])},
        "array": lambda: [_sample(schema, kind["items"])] if kind.get("minItems") else [],
        "integer": lambda: max(1, kind.get("minimum", 1)),
        "number": lambda: max(1, kind.get("minimum", 1)),
        "string": lambda: "a" * (64 if "64" in kind.get("pattern", "") else kind.get("minLength", 1)),
        "boolean": lambda: False,
    }
    return samples.get(kind.get("type", ""), lambda: None)()


def _dumped(body: Any) -> bytes:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, 5 * _DEEP))  # for the nested values
    try:
        return json.dumps(body).encode()
    finally:
        sys.setrecursionlimit(limit)


def _dotted(path: Path) -> str:
    return ".".join(str(step) for step in itertools.chain(path))
