"""From what `run()` is given to the wire's requests: checked here, so that mistakes never travel."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from shlex import split
from typing import Any

from pydantic import TypeAdapter, ValidationError

from allpass.errors import InvalidInput
from allpass.wire.access import MOST_SECRETS_PER_JOB, secret_name_problem
from allpass.wire.apps import AppRequest, Runtime
from allpass.wire.deadlines import ACCEPTED, parse_deadline
from allpass.wire.environment import Command
from allpass.wire.jobs import JobRequest, SweepRequest
from allpass.wire.template import Template

ParameterSet = Mapping[str, Any]
_MAX_SWEEP = 10_000
_CHECKPOINT = re.compile(r"job_[0-9A-Za-z]{1,40}(:[0-9]{1,15})?\Z")


def with_secrets(template: Template, names: Sequence[str] | None) -> Template:
    """The template, naming these secrets too. Raises InvalidInput naming the one that cannot be a secret."""
    if not names:
        return template
    if isinstance(names, str):
        raise InvalidInput(
            f"secrets: {names!r} is one text, and a list of names is needed", hint=f"secrets=[{names!r}]"
        )
    for name in names:
        problem = secret_name_problem(name) if isinstance(name, str) else f"{name!r} is not text"
        if problem is not None:
            raise InvalidInput(f"secrets: {problem}", hint='secrets=["HF_TOKEN"]')
        if name in template.env:
            raise InvalidInput(f"secrets: {name!r} is in the template's env, too; leave one of the two out")
    wanted = list(dict.fromkeys([*template.secrets, *names]))
    if len(wanted) > MOST_SECRETS_PER_JOB:
        raise InvalidInput(f"secrets: {len(wanted)} are more than the {MOST_SECRETS_PER_JOB} a job may have")
    return template.model_copy(update={"secrets": wanted})


def with_command(template: Template, words: Sequence[str] | None, otherwise: Sequence[str] | None = None) -> Template:
    """The template with this command; `otherwise` where neither it nor the call has one."""
    chosen = words if words is not None else template.command or otherwise
    return template if chosen is None else template.model_copy(update={"command": check_command(chosen)})


def check_command(words: Sequence[str]) -> list[str]:
    """A command as words. Raises InvalidInput."""
    if isinstance(words, str):
        raise InvalidInput(
            f"command: {words!r} is one text, and a list of words is needed", hint=f"command={split(words)}"
        )
    try:
        return TypeAdapter(Command).validate_python(list(words))
    except ValidationError as error:
        told = error.errors(include_url=False)[0]
        why = told["msg"].removeprefix("Value error, ")
        raise InvalidInput(
            f"command: {list(words)!r} is refused: {why}", hint='command=["torchrun", "train.py"]'
        ) from error


def with_outputs(template: Template, outputs: Sequence[str] | None) -> Template:
    """The template, naming these outputs too. Raises InvalidInput naming the one that cannot be kept."""
    if outputs is None:
        return template
    if isinstance(outputs, str):
        raise InvalidInput(
            f"outputs: {outputs!r} is one text, and a list of paths is needed", hint=f"outputs=[{outputs!r}]"
        )
    try:
        checked = Template.model_validate({"outputs": [*(template.outputs or []), *outputs]}).outputs
    except (ValidationError, TypeError) as error:
        raise _refused("", error, hint='outputs=["out/final"]') from error
    return template.model_copy(update={"outputs": checked})


def app_request(
    name: str, user_name: str, runtime: Mapping[str, Any] | Runtime | None, bundle_sha256: str, entrypoint: str
) -> AppRequest:
    """An app registration; raises InvalidInput naming the argument of `build()` that is wrong."""
    try:
        checked = runtime if isinstance(runtime, Runtime) else Runtime.model_validate(dict(runtime or {}))
    except (ValidationError, TypeError, ValueError) as error:
        raise _refused(
            "runtime", error, hint='runtime={"base_image": "pytorch:2.3.0", "pip": ["transformers"]}'
        ) from error
    try:
        return AppRequest(
            name=name, user_name=user_name, runtime=checked, bundle_sha256=bundle_sha256, entrypoint=entrypoint
        )
    except ValidationError as error:
        raise _refused("", error, hint=None) from error


def job_request(
    app_id: str,
    app_version: int | None,
    *,
    name: str | None,
    template: Template,
    parameters: ParameterSet | Sequence[str] | Sequence[ParameterSet] | None,
    soft_deadline: str | timedelta | datetime | None,
    from_checkpoint: str | None = None,
) -> JobRequest | SweepRequest:
    """A job, or a sweep when `parameters` is a list of parameter sets. Raises InvalidInput naming the argument."""
    checked = check_parameters(parameters)
    fields: dict[str, Any] = {"app_id": app_id, "template": template}
    fields |= {"app_version": app_version} if app_version is not None else {}
    fields |= {"name": name} if name is not None else {}
    fields |= {"soft_deadline": deadline_text(soft_deadline)} if soft_deadline is not None else {}
    fields |= {"from_checkpoint": _checkpoint_name(from_checkpoint)} if from_checkpoint is not None else {}
    fields |= {"parameters": checked} if parameters is not None else {}
    is_sweep = isinstance(checked, list) and bool(checked) and isinstance(checked[0], dict)
    try:
        return SweepRequest(**fields) if is_sweep else JobRequest(**fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        argument = {"name": "app_name"}.get(str(first["loc"][0]), ".".join(str(part) for part in first["loc"]))
        why = "is empty" if first["type"] == "string_too_short" else f"is refused: {first['msg']}"
        raise InvalidInput(f"{argument}: {first['input']!r} {why}", hint='app_name="lora-7b"') from error


def check_parameters(
    parameters: ParameterSet | Sequence[str] | Sequence[ParameterSet] | None,
) -> dict[str, Any] | list[str] | list[dict[str, Any]]:
    """The same parameters as plain JSON data: an object, a list of words, or a list of objects (a sweep)."""
    if parameters is None:
        return {}
    if isinstance(parameters, Mapping):
        return _parameter_set(parameters, "parameters")
    if isinstance(parameters, (str, bytes)) or not isinstance(parameters, Sequence):
        raise InvalidInput(
            f"parameters: {parameters!r} is neither a dict nor a list",
            hint='parameters={"lr": 0.1} or parameters=["--lr", "0.1"]',
        )
    items: list[Any] = list(parameters)
    if any(item is ... for item in items):
        raise InvalidInput("parameters: `...` stands for your own parameters", hint='parameters=["--lr", "0.1"]')
    if items and isinstance(items[0], Mapping):
        return _sweep(items)
    words: list[str] = []
    for index, item in enumerate(items):
        if not isinstance(item, str):
            raise InvalidInput(
                f"parameters[{index}]: {item!r} is not text, and a list is the script's argv",
                hint=f"{str(item)!r}, or a dict of parameters",
            )
        words.append(item)
    return words


def deadline_text(value: str | timedelta | datetime) -> str:
    """A deadline in the wire's text, checked. A duration counts from the moment the service takes the job."""
    if not isinstance(value, (str, timedelta, datetime)):
        raise InvalidInput(f"soft_deadline: {value!r} is not a deadline; write {ACCEPTED}", hint='soft_deadline="6hr"')
    try:
        parse_deadline(value, now=datetime.now(timezone.utc))
    except ValueError as error:
        dated = isinstance(value, str) and "no time zone" in str(error)
        hint = f'soft_deadline="{str(value).strip()}{"" if "T" in str(value) else "T18:00"}Z"' if dated else None
        raise InvalidInput(f"soft_deadline: {error}", hint=hint or 'soft_deadline="6hr"') from error
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return f"P{value.days}DT{value.seconds}.{value.microseconds:06d}S"
    return value.strip()


def _checkpoint_name(text: str) -> str:
    if not isinstance(text, str) or not _CHECKPOINT.match(text):
        raise InvalidInput(
            f"from_checkpoint: {text!r} is not JOB:STEP", hint='from_checkpoint="job_01JD9K3W0A4T6Z8X2C5V:400"'
        )
    return text


def _sweep(items: list[Any]) -> list[dict[str, Any]]:
    if len(items) > _MAX_SWEEP:
        raise InvalidInput(f"parameters: {len(items)} sets are more than the {_MAX_SWEEP} a sweep may have")
    sets = []
    for index, item in enumerate(items):
        if not isinstance(item, Mapping):
            raise InvalidInput(
                f"parameters[{index}]: {item!r} is not a dict, and the items before it are",
                hint="a sweep is a list of dicts, argv is a list of str",
            )
        sets.append(_parameter_set(item, f"parameters[{index}]"))
    return sets


def _parameter_set(values: ParameterSet, where: str) -> dict[str, Any]:
    for name, value in values.items():
        if not isinstance(name, str):
            raise InvalidInput(f"{where}: the name {name!r} is not text", hint=f"{str(name)!r}")
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidInput(
                f"{where}[{name!r}]: {value!r} cannot be written as JSON ({error})",
                hint="numbers, text, booleans, None, and lists and dicts of these",
            ) from error
    plain: dict[str, Any] = json.loads(json.dumps(dict(values)))
    return plain


def _refused(argument: str, error: Exception, *, hint: str | None) -> InvalidInput:
    if not isinstance(error, ValidationError):
        return InvalidInput(f"{argument}: is not a dict", hint=hint)
    first = error.errors(include_url=False)[0]
    path = ".".join(str(part) for part in ([argument] if argument else []) + list(first["loc"]))
    renamed = {"name": "app_name"}.get(path, path)
    return InvalidInput(f"{renamed}: {first['input']!r} is refused: {first['msg']}", hint=hint)
