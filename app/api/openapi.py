"""The finishing of the OpenAPI document: what follows from a route's declaration is written down here, once for all.

Examples, error codes by status, headers of answers, scopes. `tests/api/test_openapi.py` holds the result complete.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from allpass.wire.job_lines import JobChanges
from app.api.errors import ErrorCode, codes_of
from app.api.example_ids import example_id
from app.api.examples import ANSWERS, CURSORS, REQUESTS, TEXTS
from app.api.once import REPLAYED
from app.api.requests import IDEMPOTENCY_KEY

Json = dict[str, Any]

TAGS: list[dict[str, Any]] = [
    {"name": "jobs", "description": "Submitting, finding and steering jobs and sweeps of them."},
    {"name": "job records", "description": "What a job leaves behind: events, log, metrics, checkpoints, artifacts."},
    {"name": "apps", "description": "Code and its environment, in versions; bundles are how code gets here."},
    {"name": "nodes", "description": "The machines that are rented for this project."},
    {"name": "offers", "description": "What could be rented now."},
    {"name": "simulations", "description": "Policies played on a workload, without renting anything."},
    {"name": "usage", "description": "Cost and GPU time, from the ledger."},
    {"name": "project", "description": "What is settled for all jobs of a project."},
    {"name": "projects", "description": "The projects of the installation. For keys with scope `owner`."},
    {"name": "calibrations", "description": "What predictions of memory are corrected by."},
    {"name": "limits", "description": "What the installation may rent. For keys with scope `owner`."},
    {
        "name": "budgets",
        "description": "What a project, the jobs of an API key, or a provider may cost per hour, day or month.",
    },
    {"name": "model names", "description": "Which open models are meant by the names that clients of OpenAI send."},
    {"name": "pools", "description": "Machines of a team's own. Keys with scope `owner` define them."},
    {"name": "keys", "description": "API keys. For keys with scope `admin`."},
    {"name": "session", "description": "Signing a browser in and out."},
    {"name": "secrets", "description": "Values for user code, which no request reads again."},
    {"name": "audit", "description": "Who asked for which write. For keys with scope `admin`."},
    {"name": "health", "description": "For probes and Prometheus. No API key is needed."},
    {
        "name": "agent",
        "description": "For rented machines, with their token; clients have no use for it. Every call may be sent "
        "again with the same effect: runs are fenced by `epoch`, contents are named by their hash, pieces of a log by "
        "`sequence`, metrics by `step`. So these POSTs take no `Idempotency-Key`.",
    },
]
_REQUEST_ID = {
    "X-Request-Id": {
        "description": "Names this request in the service's log: yours, if you sent one, else a new one; `none` if it "
        "could not be read",
        "schema": {"type": "string", "minLength": 1, "maxLength": 100},
        "required": True,
    }
}
_SECONDS = {"schema": {"type": "integer", "minimum": 0}, "required": True}
_HEADERS: Mapping[int, Json] = {
    401: {"WWW-Authenticate": {"description": "`Bearer`", "schema": {"type": "string"}, "required": True}},
    429: {"Retry-After": {"description": "Whole seconds until the next request is let in", **_SECONDS}},
    503: {"Retry-After": {"description": "Whole seconds after which to ask again", **_SECONDS}},
}
_REPLAYED_HEADER = {
    REPLAYED: {
        "description": "`true`: this is the first answer to the same request, and nothing was done now",
        "schema": {"type": "string", "const": "true"},
    }
}
_RETRYABLE = frozenset({429, 503})


def finish(document: Json) -> Json:
    """The document with all that follows from it, in place."""
    schemas = document["components"]["schemas"]
    schemas["JobChanges"] = JobChanges.model_json_schema(ref_template="#/components/schemas/{model}")
    del schemas["JobChanges"]["$defs"]  # what it is made of is in the document because of others
    schemas["ErrorDetail"]["properties"]["code"]["enum"] = [code.value for code in ErrorCode]
    for _, _, operation in operations(document):
        _finish_operation(operation)
    return document


def operations(document: Json) -> Iterator[tuple[str, str, Json]]:
    """Every (method, path, operation)."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def _finish_operation(operation: Json) -> None:
    for parameter in operation.get("parameters", ()):
        _finish_parameter(parameter)
    _tell_scope(operation)
    for media in operation.get("requestBody", {}).get("content", {}).values():
        _show(media, REQUESTS)
    keyed = _takes_key(operation)
    for status, response in operation["responses"].items():
        response["headers"] = _REQUEST_ID | _HEADERS.get(int(status), {}) | response.get("headers", {})
        if int(status) < 400:
            response["headers"] |= _REPLAYED_HEADER if keyed else {}
            for media_type, media in response.get("content", {}).items():
                _finish_answer(operation, media_type, media)
        elif _ref(response["content"]["application/json"]) == "ErrorBody":
            _tell_codes(operation, int(status), response)
        else:
            _show(response["content"]["application/json"], ANSWERS)


def _finish_parameter(parameter: Json) -> None:
    """`null` says that a parameter is left out, which no request can write down."""
    schema = parameter["schema"]
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    if len(kinds) == 1:
        del schema["anyOf"]
        parameter["schema"] = kinds[0] | schema


def _tell_scope(operation: Json) -> None:
    """Whatever a key opens, a session that was begun with one opens too."""
    for requirement in list(operation.get("security", ())):
        if "ApiKey" in requirement:
            operation["security"].append({"Session": []})
        for scope in requirement.get("ApiKey", ()):
            operation["description"] = f"{operation.get('description', '')}\n\nScope: `{scope}`.".strip()


def _finish_answer(operation: Json, media_type: str, media: Json) -> None:
    if media_type in TEXTS:
        if "itemSchema" not in media:
            media.setdefault("schema", {"type": "string"})
        media.setdefault("example", TEXTS[media_type])
        return
    _show(media, ANSWERS)
    cursor = media.get("example", {}).get("next_cursor")
    for parameter in operation.get("parameters", ()):
        if parameter["name"] == "cursor" and cursor is not None:
            parameter["schema"]["examples"] = [cursor]


def _show(media: Json, examples: Mapping[str, Any]) -> None:
    """Give it the example of its model. One that has none is left without: the test of the document names it."""
    name = _ref(media)
    item = name.removeprefix("Page_").removesuffix("_")
    if item != name and item in examples:
        media["example"] = {"data": [examples[item]], "next_cursor": CURSORS[item]}
    elif name in examples:
        media["example"] = examples[name]


def _tell_codes(operation: Json, status: int, response: Json) -> None:
    codes = [code for code in codes_of(status) if _applies(code, operation)]
    response["description"] = f"{response['description']}. Code: {', '.join(f'`{code}`' for code in codes)}"
    media = response["content"]["application/json"]
    media["examples"] = {code.value: {"value": _error(code, status)} for code in codes}


def _applies(code: ErrorCode, operation: Json) -> bool:
    if code is ErrorCode.IDEMPOTENCY_CONFLICT:
        return _takes_key(operation)
    if code in _OF_OPERATION:
        return operation.get("operationId") == _OF_OPERATION[code]
    if code is ErrorCode.FENCED:
        return "agent" in operation["tags"]
    if code in _OF_THE_STORE:
        return "502" in operation["responses"]
    return code is not ErrorCode.PROVIDER_ERROR  # requests never wait for a provider


def _error(code: ErrorCode, status: int) -> Json:
    return {
        "error": {
            "code": code.value,
            "message": _MESSAGES[code],
            "param": _PARAMS.get(code),
            "request_id": example_id("req"),
            "retryable": status in _RETRYABLE,
        }
    }


def _takes_key(operation: Json) -> bool:
    return any(parameter["name"] == IDEMPOTENCY_KEY for parameter in operation.get("parameters", ()))


def _ref(media: Json) -> str:
    return str(media.get("schema", {}).get("$ref", "")).rpartition("/")[2]


_OF_OPERATION: Mapping[ErrorCode, str] = {
    ErrorCode.STEPS_WOULD_BE_LOST: "pause_job",
    ErrorCode.NOT_ELASTIC: "resize_job",
    ErrorCode.NO_ROOM: "resize_job",
    ErrorCode.NOT_RESERVABLE: "reserve",
    ErrorCode.NOT_LENDABLE: "begin_standby",
    ErrorCode.PRICE_FAR_OFF: "set_prices",
}
_OF_THE_STORE = (ErrorCode.STORE_UNAVAILABLE, ErrorCode.STORE_FULL, ErrorCode.STORE_MISCONFIGURED)
_PARAMS: Mapping[ErrorCode, str] = {
    ErrorCode.INVALID_INPUT: "limit",
    ErrorCode.IDEMPOTENCY_CONFLICT: IDEMPOTENCY_KEY,
    ErrorCode.STEPS_WOULD_BE_LOST: "lose_steps",
    ErrorCode.PRICE_FAR_OFF: "prices",
    ErrorCode.NO_ROOM: "gpus",
}
_MESSAGES: Mapping[ErrorCode, str] = {
    ErrorCode.INVALID_REQUEST: "the request cannot be understood",
    ErrorCode.UNAUTHENTICATED: "no API key: send Authorization: Bearer ak_..., with a key of this service",
    ErrorCode.FORBIDDEN: "this needs a key with scope 'submit'; the key that was sent has: read",
    ErrorCode.PROJECT_ARCHIVED: "the project of this API key is archived: its keys open nothing until an owner of the "
    "installation restores it (allpass project restore)",
    ErrorCode.NOT_FOUND: f"there is no job '{example_id('job')}' in this project",
    ErrorCode.URL_TOO_LONG: "the URL is longer than 16384 bytes; shorten its query",
    ErrorCode.METHOD_NOT_ALLOWED: "DELETE is not possible on /v1/nodes",
    ErrorCode.CONFLICT: f"{example_id('job')} has succeeded: there is nothing left to cancel",
    ErrorCode.IDEMPOTENCY_CONFLICT: "Idempotency-Key 'k' was used with another body; send a new key, or the body it "
    "was used with",
    ErrorCode.STEPS_WOULD_BE_LOST: f"lose_steps: pausing {example_id('job')} now would lose 12 steps: it is at step "
    "412, and what it has done since the checkpoint of step 400 is not kept (pipe is not a regular file). Mend that "
    "and wait for the next checkpoint, or pause it with lose_steps: true",
    ErrorCode.NOT_ELASTIC: f"{example_id('job')} cannot change its GPUs now: it is being started; try again when it "
    "runs",
    ErrorCode.NOT_RESERVABLE: "gpus: 8 x A100 cannot be kept from 2026-12-01 07:00 UTC until 2026-12-01 15:00 UTC: "
    "open hosts of lab have 16, 12 of them are reserved at some moment of that window; 4 are left. Reserve so many, or "
    "another window",
    ErrorCode.NOT_LENDABLE: f"{example_id('job')} cannot stand by: it is a spot job, which leaves anyway when a "
    "guaranteed job needs its GPUs: pause it instead",
    ErrorCode.NO_ROOM: f"gpus: {example_id('job')} cannot have 6 where it is: its machine has 4 x A100. It can have 4; "
    "to have 6 on another machine, pause it, resize it and resume it",
    ErrorCode.PRICE_FAR_OFF: "prices: more than three times the price in use, or less than a third of it (H100: "
    "$39.50/h, where $3.9492/h is used now). Nothing was changed; send it again with confirm: true if it is meant",
    ErrorCode.FENCED: f"the run no longer holds {example_id('job')}: another one does",
    ErrorCode.TOO_LARGE: "the body is larger than 1048576 bytes; bulk data goes to the object store by signed URL",
    ErrorCode.INVALID_INPUT: "limit: '0': input should be greater than or equal to 1",
    ErrorCode.RATE_LIMITED: "too many requests with this key",
    ErrorCode.INTERNAL_ERROR: f"the service failed; it is our fault. Quote request id {example_id('req')} when you "
    "report it",
    ErrorCode.STORE_ERROR: "the object store answered with an error",
    ErrorCode.OBJECT_CORRUPT: "the stored bytes are not what their hash says",
    ErrorCode.UNAVAILABLE: "the database does not answer; try again",
    ErrorCode.DATABASE_FULL: "the database has no room left on its disk; nothing was written. Make room there, then "
    "try again",
    ErrorCode.STORE_UNAVAILABLE: "the object store does not answer",
    ErrorCode.STORE_FULL: "no room left in the object store: free some space or raise its quota, then retry",
    ErrorCode.STORE_MISCONFIGURED: "there is no bucket 'runs' at https://s3.example.org: create it or set "
    "ALLPASS_S3_BUCKET",
}
