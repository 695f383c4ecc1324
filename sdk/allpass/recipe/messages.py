"""Conversations, message by message: what is kept of each, checked before anything is sent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from allpass.errors import Problem
from allpass.recipe.chat import THOUGHTS, is_learned

ROLES = ("system", "user", "assistant", "tool")
_KEPT = ("name", "tool_call_id", "tool_calls", "weight", *THOUGHTS)
_EXAMPLE = '[{"role": "user", "content": "..."}]'
_CALL_EXAMPLE = '{"type": "function", "function": {"name": "...", "arguments": {}}}'
_TOOL_EXAMPLE = '{"type": "function", "function": {"name": "...", "parameters": {}}}'
Found = tuple[list[Problem], Any]


def check_messages(value: Any, where: str) -> tuple[list[Problem], list[dict[str, Any]]]:
    """What is wrong with them, and what is kept: role and content first, then what else templates know of."""
    if not isinstance(value, list) or not value:
        return [Problem(where, f"{short(value)} is not a list of messages", _EXAMPLE)], []
    problems: list[Problem] = []
    kept: list[dict[str, Any]] = []
    for number, message in enumerate(value, 1):
        found, one = _check_message(message, f"{where}, message {number}")
        problems += found
        if one is not None:
            kept.append(one)
    if not problems and (not kept or kept[-1]["role"] != "assistant"):
        problems.append(Problem(where, "does not end with a message of the assistant, which is what is learned"))
    if not problems and not any(is_learned(one) for one in kept):
        problems.append(Problem(where, "has no answer with a weight of 1: there is nothing to learn"))
    return problems, kept


def unknown_fields(messages: Any) -> set[str]:
    """What messages say that nothing is done with."""
    told = messages if isinstance(messages, list) else []
    names = {str(name) for one in told if isinstance(one, Mapping) for name, value in one.items() if value is not None}
    return names - {"role", "content", "from", "value", *_KEPT}


def check_tools(value: Any, where: str) -> Found:
    """Descriptions of tools, or the JSON of their list, as tables have it. None where there are none."""
    if isinstance(value, str):
        try:
            value = json.loads(value or "[]")
        except (ValueError, RecursionError):
            return [Problem(where, f"{short(value)} is not the JSON of a list", f"[{_TOOL_EXAMPLE}]")], None
    if not value:
        return [], None
    if not isinstance(value, list):
        return [Problem(where, f"{short(value)} is not a list of tools", f"[{_TOOL_EXAMPLE}]")], None
    kept = []
    for number, tool in enumerate(value, 1):
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            return [Problem(f"{where}, tool {number}", f"{short(tool)} has no name", _TOOL_EXAMPLE)], None
        kept.append({**tool} if "function" in tool else {"type": "function", "function": {**tool}})
    return writable(kept, where), kept


def check_text(value: Any, where: str) -> tuple[list[Problem], str]:
    if not isinstance(value, str):
        return [Problem(where, f"{short(value)} is not text")], ""
    if not value.strip():
        return [Problem(where, "is empty")], ""
    return writable(value, where), value


def writable(value: Any, where: str) -> list[Problem]:
    """Whether it can be sent as JSON in UTF-8."""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return [Problem(where, "has half of a character (a lone surrogate)")]
    except (TypeError, ValueError, RecursionError) as error:
        return [Problem(where, f"cannot be written as JSON: {error}")]
    return []


def short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _check_message(message: Any, where: str) -> tuple[list[Problem], dict[str, Any] | None]:
    """None for a system turn that says nothing."""
    if not isinstance(message, Mapping) or "role" not in message:
        return [Problem(where, "has no role and content", '{"role": "user", "content": "..."}')], None
    told = {name: message[name] for name in _KEPT if message.get(name) is not None and message[name] != []}
    if "content" not in message and "tool_calls" not in told:
        return [Problem(where, "has no role and content", '{"role": "user", "content": "..."}')], None
    role = message["role"]
    if role not in ROLES:
        return [Problem(f"{where}, role", f"{short(role)} is not one of {', '.join(ROLES)}")], None
    if role == "system" and message.get("content") in ("", None, []):
        return [], None
    is_short = role == "tool" or (role == "assistant" and "tool_calls" in told)
    problems, content = _check_content(message.get("content"), f"{where}, content", may_be_empty=is_short)
    for name, value in told.items():
        found, told[name] = _check_field(role, name, value, f"{where}, {name}")
        problems += found
    return problems, {"role": role, "content": content, **told}


def _check_content(value: Any, where: str, *, may_be_empty: bool) -> tuple[list[Problem], str]:
    """Text, or a list of parts that are all text."""
    if isinstance(value, list):
        for part in value:
            kind = part.get("type", "text") if isinstance(part, Mapping) else None
            if kind != "text" or not isinstance(part.get("text"), str):
                return [Problem(where, f"{short(part)} is not text, which is all that the recipe trains on")], ""
        value = "".join(part["text"] for part in value)
    if may_be_empty and (value is None or (isinstance(value, str) and not value.strip())):
        return [], ""
    return check_text(value, where)


def _check_field(role: str, name: str, value: Any, where: str) -> Found:
    if name == "weight":
        return _check_weight(role, value, where)
    if name == "tool_calls":
        return _check_calls(role, value, where)
    if not isinstance(value, str):
        return [Problem(where, f"{short(value)} is not text")], ""
    return writable(value, where), value


def _check_weight(role: str, value: Any, where: str) -> Found:
    if value not in (0, 1):
        return [Problem(where, f"{short(value)} is neither 0 nor 1", '"weight": 0')], 1
    if role != "assistant" and value == 1:
        return [Problem(where, "only what the assistant says is learned", "leave it out")], 0
    return [], int(value)


def _check_calls(role: str, value: Any, where: str) -> Found:
    if role != "assistant" or not isinstance(value, list):
        what = "is not a list of calls" if role == "assistant" else f"is said by the {role}: only the assistant calls"
        return [Problem(where, f"{short(value)} {what}", f"[{_CALL_EXAMPLE}]")], []
    kept = []
    for number, call in enumerate(value, 1):
        place = f"{where}, call {number}"
        function = call.get("function", call) if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            return [Problem(place, f"{short(call)} has no function with a name", _CALL_EXAMPLE)], []
        arguments = function.get("arguments")
        if not _is_object(arguments):
            return [Problem(place, f"its arguments, {short(arguments)}, are no JSON object", _CALL_EXAMPLE)], []
        more = {key: call[key] for key in ("id",) if call.get(key) is not None}
        told = {"name": function["name"], "arguments": arguments or {}}
        kept.append({**more, "type": "function", "function": told})
    return writable(kept, where), kept


def _is_object(arguments: Any) -> bool:
    if isinstance(arguments, str) and arguments:
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return False
    return not arguments or isinstance(arguments, Mapping)
