"""Writes docs/reference: `cli.md` from the commands, `api.md` from the OpenAPI document, `python.md` from docstrings.

    .venv/bin/python scripts/reference.py

A test compares the committed files with what this makes.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

from allpass.cli.main import app as command_line
from app.api.openapi import operations
from app.api.requests import IDEMPOTENCY_KEY
from app.settings import Settings
from app.wiring import build_server

sys.path.insert(0, str(Path(__file__).parent))  # the tests load this file by its path
from python_reference import render_python

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference"
Json = dict[str, Any]
UNUSED = "the service is described, and not started"

# Command line

GROUPS: Mapping[str, tuple[str, ...]] = {
    "Submit": ("run", "finetune", "plan", "calibrations", "schema"),
    "Look": ("ps", "top", "show", "explain", "logs", "events", "metrics", "checkpoints", "download", "tensorboard"),
    "Steer": ("pause", "resume", "resize", "standby", "set", "cancel", "wait"),
    "Sweeps": ("sweep",),
    "Machines and money": ("nodes", "pressure", "replay", "offers", "providers", "cost", "project", "limits", "budget"),
    "Your own machines": ("pool", "reserve", "node", "defrag", "fragmentation"),
    "Keys and secrets": ("key", "secret"),
    "OpenAI": ("import", "model-names"),
    "Servers and shells": ("login", "context", "completion", "example"),
    "Simulate": ("simulate", "reproduce", "trace"),
    "The server": ("up", "doctor", "smoke", "demo", "emulate", "images"),
}
_KINDS = {"str": "TEXT", "int": "NUMBER", "float": "NUMBER", "list": "TEXT", "path": "PATH"}
CLI_HEAD = """\
# Command line

Made by `scripts/reference.py` from the commands themselves; `allpass COMMAND --help` says the same.

- **Exit codes**: 0 done, 1 failed, 2 wrong usage, 130 interrupted. `run --follow` fails if the job does.
- **Output**: results on stdout; errors (`error: ...`, then `  try: ...`) and remarks for people on stderr. Piped,
  tables have one line for each row, no colours, and names of at most 40 characters (`--json` has them whole), and
  remarks are left out. On a terminal a table is as wide as that: what does not fit goes below its row. `NO_COLOR=1`
  turns colours off.
- **`--json`** prints the objects of the [REST API](api.md), one document per call; what is followed is one object a
  line. Later versions may add fields; those that are there keep their meaning.
- **Which server**: `ALLPASS_URL` with `ALLPASS_API_KEY`, else the context named by `ALLPASS_CONTEXT`, else a stack in
  this folder or above (`allpass up`), else the current context of `allpass login`.
- **Completion**: `eval "$(allpass completion bash)"`; see [`allpass completion`](#allpass-completion-shell).
"""


def render_cli() -> str:
    root: Any = typer.main.get_command(command_line)
    context = _context(root, "allpass", None)
    listed = [name for names in GROUPS.values() for name in names]
    if sorted(listed) != sorted(root.list_commands(context)):
        raise SystemExit(f"GROUPS and the commands differ: {set(listed) ^ set(root.list_commands(context))}")
    parts = [CLI_HEAD]
    for title, names in GROUPS.items():
        parts.append(f"## {title}\n")
        for name in names:
            parts += _command(root.get_command(context, name), name, context)
    return _joined(parts)


def _context(command: Any, name: str, parent: Any) -> Any:
    wide = {"terminal_width": 1000, "max_content_width": 1000}  # one line each, whatever terminal this runs in
    return command.make_context(name, [], parent=parent, resilient_parsing=True, **wide)


def _command(command: Any, name: str, parent: Any) -> Iterator[str]:
    context = _context(command, name, parent)
    example, _, text = (command.help or "").strip().partition("\n\n")
    usage = command.get_usage(context).removeprefix("Usage: ")
    if hasattr(command, "list_commands"):
        yield f"### `{context.command_path}`\n\n{_flat(text)}\n"
        for inner in command.list_commands(context):
            yield from _command(command.get_command(context, inner), inner, context)
        return
    usage = re.sub(r"[{}]", "", usage.replace(" [OPTIONS]", "")).replace("......", "...")
    yield f"### `{usage}`\n\n{_flat(text)}\n"
    yield f"```sh\n{_flat(example).removeprefix('Example: ')}\n```\n"
    records = [record for one in command.params if (record := one.get_help_record(context)) is not None]
    if records:
        rows = [f"| `{_names(names)}` | {_cell(told)} |" for names, told in records]
        yield "| option | |\n|---|---|\n" + "\n".join(rows) + "\n"


def _names(text: str) -> str:
    """`-n, --count NUMBER`; of an argument, its name alone."""
    if not text.startswith("-"):
        return _cell(text.partition(" <")[0])
    return _cell(re.sub(r"<([a-z]+)[^>]*>", lambda kind: _KINDS.get(kind[1], kind[1].upper()), text))


# REST API

_KINDS_OF_JSON = {"string": "text", "integer": "whole number", "boolean": "`true` | `false`"}
API_HEAD = """\
# REST API

Made by `scripts/reference.py` from the OpenAPI document, which a running server gives at `/openapi.json`, with examples
of every body; `/docs` shows it.

{description}
* **The usual errors** of routes that need a key: {usual}.
"""


def render_api() -> str:
    document = _document()
    usual = _usual_errors(document)
    description = document["info"]["description"].strip().partition("\n\n")[2]
    parts = [API_HEAD.format(description=description, usual=_told_codes(usual))]
    by_tag: dict[str, list[str]] = {tag["name"]: [] for tag in document["tags"]}
    for method, path, operation in operations(document):
        by_tag[operation["tags"][0]].append(_operation(document, method, path, operation, usual))
    for tag in document["tags"]:
        parts.append(f"## {tag['name'].capitalize()}\n\n{tag['description']}\n")
        parts += by_tag[tag["name"]]
    parts.append("## Models\n\nA field without a default is required in a request, and always there in an answer.\n")
    models = document["components"]["schemas"]
    parts += [_model(name, models[name]) for name in sorted(models) if not name.startswith("Page_")]
    return _joined(parts)


def _document() -> Json:
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings.model_validate(
            {
                "database_url": "postgresql://nobody@127.0.0.1:1/none",
                "objects_dir": folder,
                "objects_signing_key": UNUSED,
                "secret_key": UNUSED,
            }
        )
        return build_server(settings).openapi()


def _operation(document: Json, method: str, path: str, operation: Json, usual: Mapping[str, set[str]]) -> str:
    text = operation.get("description", "").strip().replace("\n\nScope:", " Scope:")
    lines = [f"### `{method} {path}`", "", f"**{operation['summary']}** · {text}".removesuffix(" · "), ""]
    names = [one["name"] for one in operation.get("parameters", ())]
    lines += [_parameter(one) for one in operation.get("parameters", ()) if one["name"] != IDEMPOTENCY_KEY]
    if "requestBody" in operation:
        lines.append(f"- Body: {_media(document, operation['requestBody'])}")
    if IDEMPOTENCY_KEY in names:
        lines.append(f"- Takes an `{IDEMPOTENCY_KEY}`")
    answers = [
        f"{status} {_media(document, response)}"
        for status, response in sorted(operation["responses"].items())
        if not _codes(response)
    ]
    lines.append(f"- Answer: {'; '.join(answers)}")
    errors = {status: codes for status, one in operation["responses"].items() if (codes := _codes(one))}
    if all(usual[status] <= errors.get(status, set()) for status in usual):
        more = {status: codes - usual.get(status, set()) for status, codes in errors.items()}
        told = _told_codes({status: codes for status, codes in more.items() if codes})
        lines.append(f"- Errors: the usual ones{'; ' + told if told else ''}")
    elif errors:
        lines.append(f"- Errors: {_told_codes(errors)}")
    return "\n".join(lines) + "\n"


def _usual_errors(document: Json) -> dict[str, set[str]]:
    """What every route that wants an API key may answer."""
    keyed = [
        one["responses"] for _, _, one in operations(document) if any("ApiKey" in s for s in one.get("security", ()))
    ]
    statuses = set.intersection(*(set(one) for one in keyed))
    return {
        status: codes
        for status in sorted(statuses)
        if (codes := set.intersection(*(_codes(one[status]) for one in keyed)))
    }


def _codes(response: Json) -> set[str]:
    return set(response.get("content", {}).get("application/json", {}).get("examples", {}))


def _told_codes(errors: Mapping[str, set[str]]) -> str:
    return "; ".join(
        f"{status} {', '.join(f'`{one}`' for one in sorted(codes))}" for status, codes in sorted(errors.items())
    )


def _parameter(parameter: Json) -> str:
    place = "" if parameter["in"] == "query" else f" ({parameter['in']})"
    needed = ", required" if parameter.get("required") and parameter["in"] != "path" else ""
    told = _flat(parameter.get("description", ""))
    kind = f"{_kind(parameter['schema'])}{needed}{_default(parameter['schema'])}"
    return f"- `{parameter['name']}`{place}: {kind}{'. ' + told if told else ''}"


def _media(document: Json, holder: Json) -> str:
    kinds = []
    for media_type, media in holder.get("content", {}).items():
        if media_type == "application/json":
            kinds.append(_answer_kind(document, media["schema"]))
        else:
            kinds.append(f"`{media_type}`")
    return " or ".join(kinds) if kinds else "without a body"


def _answer_kind(document: Json, schema: Json) -> str:
    name = _name(schema)
    if not name.startswith("Page_"):
        return _kind(schema)
    item = document["components"]["schemas"][name]["properties"]["data"]["items"]
    return f'`{{"data": [...], "next_cursor"}}` of {_kind(item)}'


def _model(name: str, schema: Json) -> str:
    text = schema.get("description", "").strip()
    lines = [f"### {name}", "", *([text, ""] if text else [])]
    if "enum" in schema:
        return "\n".join([*lines, _kind(schema), ""])
    required = set(schema.get("required", ()))
    for field, one in schema.get("properties", {}).items():
        default = "" if field in required else _default(one) or ", optional"
        told = _flat(one.get("description", ""))
        lines.append(f"- `{field}`: {_kind(one)}{default}{'. ' + told if told else ''}")
    return "\n".join(lines) + "\n"


def _kind(schema: Json) -> str:
    """A type in words."""
    kind = str(schema.get("type", "any"))
    if name := _name(schema):
        words = f"[{name}](#{name.lower()})"
    elif "anyOf" in schema:
        words = " or ".join(_kind(one) for one in schema["anyOf"])
    elif "enum" in schema:
        words = " | ".join(f"`{one}`" for one in schema["enum"])
    elif kind == "array":
        words = f"list of {_kind(schema.get('items', {}))}"
    elif kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        words = f"object of {_kind(schema['additionalProperties'])}"
    elif schema.get("format") == "date-time":
        words = "instant"
    else:
        words = _KINDS_OF_JSON.get(kind, kind) + _bounds(schema)
    return words


def _bounds(schema: Json) -> str:
    named = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    bounds = ", ".join(f"{words} {_number(schema[name])}" for name, words in named.items() if name in schema)
    return f" ({bounds})" if bounds else ""


def _number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else f"{value}"


def _default(schema: Json) -> str:
    if schema.get("default") is None:
        return ""
    value = schema["default"]
    return f", default `{str(value).lower() if isinstance(value, bool) else value}`"


def _name(schema: Json) -> str:
    return str(schema.get("$ref", "")).rpartition("/")[2]


def _cell(text: str) -> str:
    return _flat(text).replace("|", "\\|")


def _flat(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def _joined(parts: list[str]) -> str:
    return "\n".join(parts)


FILES = {"cli.md": render_cli, "api.md": render_api, "python.md": render_python}

if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, render in FILES.items():
        (FOLDER / name).write_text(render(), encoding="utf-8")
