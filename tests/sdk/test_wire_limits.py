"""Every field of every request has a limit, and what is beyond one is refused and never an accident."""

from __future__ import annotations

import importlib
import json
import math
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

import allpass.wire
from allpass.wire.agent import CheckpointOpen, MetricReport, RunReport, SyncRequest
from allpass.wire.base import Request
from allpass.wire.jobs import Accepted, Job, JobRequest
from allpass.wire.template import Template

# What user code measured may be any number: what cannot be counted with is told and left out, and never refused.
_ANY_NUMBER = {"MetricReportPoint.values", "CheckpointOpen.metrics"}
# JSON of the user's own, which we hand on: its size is that of the body, and its depth that of the parser.
_ANY_JSON = {
    "JobRequest.parameters",
    "SweepRequest.parameters",
    "PlanRequest.config",
    "FinetuneRequest.config",
    "FinetuneRequest.settings",
    "SyncRequest.host",
}


def _requests() -> list[type[Request]]:
    for module in pkgutil.iter_modules(allpass.wire.__path__):
        importlib.import_module(f"allpass.wire.{module.name}")
    found: list[type[Request]] = []
    waiting = list(Request.__subclasses__())
    while waiting:
        model = waiting.pop()
        found.append(model)
        waiting.extend(model.__subclasses__())
    return sorted(
        (model for model in found if model.__module__.startswith("allpass.wire")), key=lambda one: one.__name__
    )


def unlimited(schema: dict[str, Any], where: str) -> Iterator[str]:
    """Every part of a JSON schema that allows values of any size, by the field that it is in."""
    for choice in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())):
        yield from unlimited(choice, where)
    if "enum" in schema or "const" in schema or "$ref" in schema:
        return  # a model that is referred to is walked by itself
    kind = schema.get("type")
    if kind in ("integer", "number"):
        low, high = {"minimum", "exclusiveMinimum"}, {"maximum", "exclusiveMaximum"}
        if not (low & schema.keys() and high & schema.keys()) and where not in _ANY_NUMBER:
            yield f"{where}: a number without a least and a most"
    elif kind == "string" and not _is_short(schema):
        yield f"{where}: text without maxLength"
    elif kind == "array":
        if "maxItems" not in schema:
            yield f"{where}: a list without maxItems"
        yield from unlimited(schema["items"], where)
    elif kind == "object":
        yield from _unlimited_object(schema, where)
    elif kind is None and not {"anyOf", "oneOf", "allOf"} & schema.keys() and where not in _ANY_JSON:
        yield f"{where}: anything at all"


def _is_short(schema: dict[str, Any]) -> bool:
    sized = "maxLength" in schema or schema.get("format") == "date-time"
    return sized or str(schema.get("pattern", "")).endswith(("{20}$", "{64}$", "{1,64}$"))


def _unlimited_object(schema: dict[str, Any], where: str) -> Iterator[str]:
    if "maxProperties" not in schema:
        yield f"{where}: an object without maxProperties"
    if "maxLength" not in schema.get("propertyNames", {}):
        yield f"{where}: names of any length"
    inner = [*schema.get("patternProperties", {}).values(), schema.get("additionalProperties")]
    known = [each for each in inner if isinstance(each, dict)]
    for each in known:
        yield from unlimited(each, where)
    if not known and where not in _ANY_JSON:
        yield f"{where}: values of any kind"


@pytest.mark.parametrize("model", _requests(), ids=lambda model: model.__name__)
def test_every_field_of_every_request_has_a_limit(model: type[Request]) -> None:
    """A number has a least and a most, text a longest, a list and an object a most; the schema says so to everybody."""
    assert model.model_config["extra"] == "forbid"
    properties = model.model_json_schema()["properties"]
    found = [
        problem for name, schema in properties.items() for problem in unlimited(schema, f"{model.__name__}.{name}")
    ]
    assert found == []


def test_the_walk_finds_what_has_no_limit() -> None:
    """A field of each kind without one is told, wherever it hides."""

    class _Loose(Request):
        count: int | None
        share: float
        text: list[str]
        facts: dict[str, Any]
        pair: dict[str, list[int]]

    properties = _Loose.model_json_schema()["properties"]
    found = {problem for name, schema in properties.items() for problem in unlimited(schema, name)}
    assert found == {
        "count: a number without a least and a most",
        "share: a number without a least and a most",
        "text: a list without maxItems",
        "text: text without maxLength",
        "facts: an object without maxProperties",
        "facts: names of any length",
        "facts: values of any kind",
        "pair: an object without maxProperties",
        "pair: names of any length",
        "pair: a list without maxItems",
        "pair: a number without a least and a most",
    }


_WILD_NUMBERS = ("1e999", "-1e999", "NaN", "-Infinity", "1" + "0" * 400, "-" + "9" * 30, str(2**63), "1e400")
_WILD: tuple[str, ...] = (
    *_WILD_NUMBERS,
    json.dumps("x" * 100_000),
    json.dumps(["x"] * 20_000),
    json.dumps({str(n): n for n in range(20_000)}),
    "[" * 5_000 + "]" * 5_000,
    '"\\ud800"',
)


def _leaves(
    schema: dict[str, Any], definitions: dict[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    """The path of every field, through the models within."""
    for name, inner in schema["properties"].items():
        yield (*path, name)
        for choice in (inner, *inner.get("anyOf", ())):
            if "$ref" in choice:
                yield from _leaves(definitions[choice["$ref"].rsplit("/", 1)[1]], definitions, (*path, name))


def _body(path: tuple[str, ...], value: str) -> str:
    text = value
    for name in reversed(path):
        text = f'{{"{name}":{text}}}'
    return text


def test_no_field_of_a_template_takes_a_number_beyond_all_bounds() -> None:
    """Infinity, NaN, numbers of 400 digits, lists and texts without end: each is a validation error of its field."""
    schema = Template.model_json_schema()
    paths = list(_leaves(schema, schema["$defs"]))
    assert ("training", "steps") in paths
    assert ("placement", "affinity") in paths
    for path in paths:
        for wild in _WILD:
            with pytest.raises(ValidationError):
                Template.model_validate_json(_body(path, wild))


def _job(template: Any) -> dict[str, Any]:
    at = "2026-12-01T18:00:00Z"
    numbers = dict.fromkeys(("app_version", "epoch", "moves", "faults", "step", "cost"), 1)
    texts = dict.fromkeys(("id", "app_id", "app_name", "name"), "x")
    return {
        **numbers,
        **texts,
        "status": "queued",
        "soft_deadline": at,
        "submitted_at": at,
        "parameters": {},
        "template": template,
    }


def test_a_job_that_was_accepted_under_other_limits_can_be_read() -> None:
    """What this version would not accept any more, or does not know, is left out of the template; the rest is told."""
    stored = {
        "training": {"steps": 10**15, "method": "lora", "of_tomorrow": {"a": 1}},
        "labels": {"a\nb": "x", "team": "y"},
        "secrets": ["not a name", "HF_TOKEN"],
        "gpu": {"count": 4, "max_count": 2},
        "of_tomorrow": 1,
        "cpus": 3,
    }
    read = Job.model_validate(_job(stored)).template
    assert read == Template.model_validate({"training": {"method": "lora"}, "labels": {"team": "y"}, "cpus": 3})
    assert stored["training"] == {"steps": 10**15, "method": "lora", "of_tomorrow": {"a": 1}}
    with pytest.raises(ValidationError):
        JobRequest.model_validate({"app_id": "x", "template": stored})


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
_fields = sorted(Template.model_fields)
_templates = _json | st.dictionaries(st.sampled_from([*_fields, "other"]), _json, max_size=6)


@given(_templates)
@settings(max_examples=200)
def test_whatever_is_stored_as_a_template_can_be_read(stored: Any) -> None:
    """Any JSON gives a template that would be accepted today, and one that is accepted today is read as it is."""
    read = TypeAdapter[Template](Accepted).validate_python(stored)
    assert Template.model_validate(read.model_dump()) == read
    assert TypeAdapter[Template](Accepted).validate_python(read.model_dump()) == read


_RUN = {"run_id": "run_1", "job_id": "job_1", "epoch": 1}


@pytest.mark.parametrize(
    "told",
    [
        {"profile": {"fisher": [1e16], "pull": [1.0], "rows": 1, "tokens": 1}},
        {"profile": {"fisher": [math.nan], "pull": [1.0], "rows": 1, "tokens": 1}},
        {"profile": {"fisher": [1.0], "pull": [1.0], "rows": -1, "tokens": 2**70}},
        {"profile": 7},
        {"watch": {"job_id": "a b", "epochs": math.inf, "fruitless_epochs": 0.0}},
        {"phase": "exited", "exit": {"exit_code": 0, "training": {"micro_batch": 2**50}}},
        {"phase": "exited", "exit": {"exit_code": 0, "training": {"versions": {"torch": "x" * 99}}}},
        {"phase": "exited", "exit": {"exit_code": 0, "profile": {"fisher": []}}},
    ],
)
def test_what_user_code_said_never_costs_a_run_its_report(told: dict[str, Any]) -> None:
    """That part alone is left out; the other runs of the machine, and the rest of this report, are heard."""
    body = {"agent_version": "1", "seen": 0, "wait_ms": 0, "runs": [{**_RUN, "phase": "running", **told}]}
    (report,) = SyncRequest.model_validate_json(json.dumps(body)).runs
    plain = RunReport.model_validate({**_RUN, "phase": told.get("phase", "running"), "exit": report.exit})
    assert report == plain
    if report.exit is not None:
        assert (report.exit.training, report.exit.profile) == (None, None)


def test_names_of_metrics_are_cut_and_their_values_are_any_number() -> None:
    """A report is not refused for what a script calls its metrics, nor for what it measured."""
    values = {"n" * 1000: 1.0, "loss": math.nan}
    text = json.dumps({**_RUN, "points": [{"step": 1, "at_ms": 1, "values": values}]})
    (point,) = MetricReport.model_validate_json(text).points
    assert list(point.values) == ["n" * 200, "loss"]
    saved = {"path": "a", "size_bytes": 1, "sha256": "a" * 64}
    opened = CheckpointOpen.model_validate({**_RUN, "step": 1, "files": [saved], "metrics": {"n" * 999: 1.0}})
    assert list(opened.metrics) == ["n" * 200]


def test_facts_of_a_machine_are_few() -> None:
    """They are stored with every heartbeat."""
    body = {"agent_version": "1", "seen": 0, "wait_ms": 0, "runs": [], "host": {"gpus": ["x" * 70_000]}}
    with pytest.raises(ValidationError, match="65536 bytes"):
        SyncRequest.model_validate(body)
