"""The OpenAPI document says all that a caller needs: a route that leaves something out fails here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest

from app.api.errors import ErrorCode, codes_of
from app.api.examples import ANSWERS, REQUESTS
from tests.api.document import document, named_operations, resolve

OPERATIONS = named_operations()
each_operation = pytest.mark.parametrize("name", sorted(OPERATIONS))
WITH_BODY = ("POST", "PUT", "PATCH", "DELETE")


def check(example: Any, schema: dict[str, Any]) -> None:
    """The example is an instance of the schema. Raises ValidationError, which says where it is not."""
    whole = {**schema, "components": document()["components"]}
    jsonschema_rs.Draft202012Validator(whole, validate_formats=True).validate(example)


@each_operation
def test_it_says_what_it_is(name: str) -> None:
    """A summary, a description, one tag that is described, and a short operation id of its own."""
    _, path, operation = OPERATIONS[name]
    assert operation["summary"]
    assert not operation["summary"].endswith(".")
    assert len(operation["description"]) > 10
    (tag,) = operation["tags"]
    assert any(known["name"] == tag and known["description"] for known in document()["tags"])
    assert name.isidentifier()
    assert "_v1_" not in name, f"{path}: name the function, or give an operation_id"


def test_operation_ids_are_unique() -> None:
    """As many names as operations."""
    assert len(OPERATIONS) == sum(len(methods) for methods in document()["paths"].values())


@each_operation
def test_its_parameters_are_described(name: str) -> None:
    """In words that begin with a capital, with an example that fits and with limits."""
    for parameter in OPERATIONS[name][2].get("parameters", ()):
        schema = parameter["schema"]
        where = f"{name}: {parameter['name']}"
        assert parameter["description"][0] in "`ABCDEFGHIJKLMNOPQRSTUVWXYZ" or parameter["name"] == "cursor", where
        assert "anyOf" not in schema, where
        examples = schema.get("examples") or resolve(schema).get("enum")
        assert examples, f"{where} has no example"
        for example in examples:
            check(example, schema)
        assert _is_limited(schema), f"{where} has no limits"


def _is_limited(schema: dict[str, Any]) -> bool:
    schema = resolve(schema)
    if "enum" in schema or schema["type"] == "boolean":
        return True
    if schema["type"] in ("integer", "number"):
        return "minimum" in schema and "maximum" in schema
    if schema["type"] == "array":
        return _is_limited(schema["items"])
    return any(limit in schema for limit in ("maxLength", "pattern", "format"))


_BODY_MAY_BE_LEFT_OUT = {"pause_job"}
_BODY_IS_A_FILE = {"send_rows", "send_trace"}


@each_operation
def test_its_body_is_shown(name: str) -> None:
    """A body is JSON of a named model, with an example that the model takes; it is required, unless all that it could
    say goes without saying."""
    method, _, operation = OPERATIONS[name]
    body = operation.get("requestBody")
    if body is None:
        assert method not in ("PUT", "PATCH")
        return
    assert body.get("required", False) is (name not in _BODY_MAY_BE_LEFT_OUT)
    (media,) = body["content"].values()
    if name in _BODY_IS_A_FILE:
        assert body["content"] == {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
        return
    assert list(body["content"]) == ["application/json"]
    assert media["schema"]["$ref"]
    check(media["example"], media["schema"])


@each_operation
def test_its_answers_are_shown(name: str) -> None:
    """Every success has a model and an example of it, or is empty (204)."""
    operation = OPERATIONS[name][2]
    successes = {status: answer for status, answer in operation["responses"].items() if int(status) < 400}
    assert successes
    for status, answer in successes.items():
        assert answer["description"]
        assert answer["headers"]["X-Request-Id"]["required"] is True
        assert ("content" not in answer) == (status == "204")
        for media in answer.get("content", {}).values():
            if "itemSchema" in media:  # a stream of events, each of which has data of this model
                assert media["itemSchema"]["properties"]["data"]["contentSchema"]
                assert "data: " in media["example"]
                continue
            assert media["schema"].get("$ref") or media["schema"] == {"type": "string"}
            check(media["example"], media["schema"])


@each_operation
def test_its_errors_are_shown(name: str) -> None:
    """Every status that it can answer, with the codes of the closed list that it may have, each with an example."""
    method, path, operation = OPERATIONS[name]
    responses = operation["responses"]
    assert _expected_errors(method, path, operation) <= set(responses)
    for status, answer in responses.items():
        if int(status) < 400 or name == "check_readiness":
            continue
        media = answer["content"]["application/json"]
        assert media["schema"]["$ref"].endswith("/ErrorBody")
        assert media["examples"], f"{name}: {status} has no code"
        for code, example in media["examples"].items():
            assert ErrorCode(code) in codes_of(int(status))
            assert example["value"]["error"]["code"] == code
            assert f"`{code}`" in answer["description"]
            check(example["value"], media["schema"])


def _expected_errors(method: str, path: str, operation: dict[str, Any]) -> set[str]:
    expected = {"500"}
    if not path.startswith("/v1/"):
        return expected
    expected |= {"401", "422", "503"}
    if not path.startswith("/v1/agent/"):
        expected |= {"403", "429"}
    if method in WITH_BODY:
        expected |= {"413"}
    if method == "POST":
        expected |= {"409"}
    if "_id}" in path:
        expected |= {"404"}
    return expected


@each_operation
def test_who_may_call_it_is_declared(name: str) -> None:
    """Every route under /v1 names its scheme: an API key with its scope or a session, or a node's token. Signing in
    needs none."""
    _, path, operation = OPERATIONS[name]
    if not path.startswith("/v1/"):
        assert "security" not in operation
        return
    if path == "/v1/session":
        assert operation.get("security", []) == ([] if name == "sign_in" else [{"Session": []}])
        return
    requirement, *others = operation["security"]
    assert others == ([] if path.startswith("/v1/agent/") else [{"Session": []}])
    if path.startswith("/v1/agent/"):
        own = {"/v1/agent/join": "JoinToken", "/v1/agent/hosts/join": "PoolToken", "/v1/agent/hosts/sync": "HostToken"}
        assert requirement == {own.get(path, "NodeToken"): []}
        assert operation["tags"] == ["agent"]
        return
    (scope,) = requirement["ApiKey"]
    assert scope in ("read", "submit", "admin", "owner")
    assert f"Scope: `{scope}`." in operation["description"]


def test_the_security_schemes_are_declared() -> None:
    """Bearer tokens and the cookie of a session, which say where they come from."""
    schemes = document()["components"]["securitySchemes"]
    assert set(schemes) == {"ApiKey", "NodeToken", "JoinToken", "HostToken", "PoolToken", "Session"}
    cookie = schemes.pop("Session")
    assert (cookie["type"], cookie["in"], cookie["name"]) == ("apiKey", "cookie", "allpass_session")
    for scheme in schemes.values():
        assert (scheme["type"], scheme["scheme"]) == ("http", "bearer")
    assert all(scheme["description"] for scheme in (cookie, *schemes.values()))


def test_the_closed_list_of_codes_is_in_the_document() -> None:
    """As the only values of `error.code`, and in the introduction."""
    assert document()["components"]["schemas"]["ErrorDetail"]["properties"]["code"]["enum"] == list(ErrorCode)
    for code in ErrorCode:
        assert f"`{code}`" in document()["info"]["description"]


def test_limits_are_in_the_words_of_json_schema() -> None:
    """A limit that pydantic checks, but cannot express, would be told to nobody."""
    for name, schema in document()["components"]["schemas"].items():
        found = set(_words(schema)) & {"ge", "gt", "le", "lt", "min_length", "max_length"}
        assert not found, f"{name}: {found}"


def _words(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _words(inner)


def test_no_example_is_left_over() -> None:
    """Each belongs to a model of the document."""
    assert set(REQUESTS) | set(ANSWERS) <= set(document()["components"]["schemas"]) | {"Health"}
