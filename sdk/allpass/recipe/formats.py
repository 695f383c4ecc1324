"""Rows as other tools have them: which format they are in, and the same as messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from allpass.errors import Problem
from allpass.recipe.messages import short


@dataclass(frozen=True)
class Format:
    """`shape`: what its rows are to the trainer. `fields`: all of them are in each row; `optional`: may be."""

    shape: str
    fields: tuple[str, ...]
    optional: tuple[str, ...] = ()


OWN = {
    "messages": Format("messages", ("messages",), ("tools",)),
    "prompt": Format("prompt", ("prompt", "completion")),
    "labelled": Format("labelled", ("text", "label")),
    "text": Format("text", ("text",)),
}
SHAREGPT = Format("messages", ("conversations",), ("system", "tools"))
ALPACA = Format("messages", ("instruction", "output"), ("input", "system", "history"))
TURNS = Format("messages", ("prompt", "completion"), ("tools",))  # lists of messages, of which the second is learned
_SPEAKERS = {
    "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant",
    "bing": "assistant", "bard": "assistant", "model": "assistant", "system": "system", "tool": "tool",
    "observation": "tool", "function_response": "tool", "function_call": "assistant",
}  # fmt: skip


def foreign(values: Mapping[str, Any]) -> Format | None:
    """The format of another tool, by one of its rows."""
    names = set(map(str, values))
    if isinstance(values.get("prompt"), list) and isinstance(values.get("completion"), list):
        return TURNS
    if "messages" in names:
        return None
    return next((one for one in (SHAREGPT, ALPACA) if set(one.fields) <= names), None)


def graded(values: Mapping[str, Any], place: str) -> Problem | None:
    """Rows that say of one answer whether it is good are not what the recipe learns from."""
    names = set(map(str, values))
    if isinstance(values.get("label"), bool) and {"prompt", "completion"} <= names:
        what = "has a completion with a label of good or bad: the recipe would learn the bad ones as well"
        return Problem(place, what, "only the good ones, without the label")
    return None


def as_messages(values: Mapping[str, Any], format_: Format, place: str) -> tuple[list[Problem], Any]:
    """What a row of another tool says, as messages; they are yet to be checked."""
    if format_ == ALPACA:
        return _alpaca(values, place)
    if format_ == SHAREGPT:
        return _sharegpt(values, place)
    for name in TURNS.fields:
        if not isinstance(values[name], list):
            where = f'{place}, field "{name}"'
            return [Problem(where, f"{short(values[name])} is not a list of messages, as in the first row")], None
    given = [{**one, "weight": 0} if _is_answer(one) else one for one in values["prompt"]]
    return [], [*given, *values["completion"]]


def _is_answer(message: Any) -> bool:
    return isinstance(message, Mapping) and message.get("role") == "assistant"


def _alpaca(values: Mapping[str, Any], place: str) -> tuple[list[Problem], Any]:
    problems = [
        Problem(f'{place}, field "{name}"', f"{short(values[name])} is not text")
        for name in ("instruction", "input", "output", "system")
        if not isinstance(values.get(name) or "", str)
    ]
    if not str(values["instruction"] or "").strip() and not str(values.get("input") or "").strip():
        problems.append(Problem(f'{place}, field "instruction"', "is empty"))
    if not str(values["output"] or "").strip():
        problems.append(Problem(f'{place}, field "output"', "is empty"))
    turns = values.get("history") or []
    if not isinstance(turns, list) or not all(isinstance(one, (list, tuple)) and len(one) == 2 for one in turns):
        problems.append(Problem(f'{place}, field "history"', "is not a list of pairs", '[["asked", "answered"]]'))
    if problems:
        return problems, None
    asked = "\n\n".join(text for text in (values["instruction"], values.get("input")) if text and text.strip())
    pairs = [*turns, (asked, values["output"])]
    talk = [{"role": role, "content": text} for pair in pairs for role, text in zip(("user", "assistant"), pair)]  # noqa: B905 - pairs
    return [], [*_system(values), *talk]


def _sharegpt(values: Mapping[str, Any], place: str) -> tuple[list[Problem], Any]:
    turns = values["conversations"]
    where = f'{place}, field "conversations"'
    if not isinstance(turns, list) or not turns:
        return [Problem(where, f"{short(turns)} is not a list of turns", '[{"from": "human", "value": "..."}]')], None
    problems: list[Problem] = []
    talk: list[Any] = []
    for number, turn in enumerate(turns, 1):
        if not isinstance(turn, Mapping) or "from" not in turn:
            talk.append(turn)  # as messages have it, or to be refused as one
            continue
        role = _SPEAKERS.get(str(turn["from"]).lower())
        if role is None:
            known = ", ".join(_SPEAKERS)
            problems.append(Problem(f"{where}, message {number}, from", f"{short(turn['from'])} is not one of {known}"))
            continue
        rest = {name: value for name, value in turn.items() if name not in ("from", "value")}
        talk.append({"role": role, **_said(turn), **rest})
    return problems, [*_system(values), *talk]


def _said(turn: Mapping[str, Any]) -> dict[str, Any]:
    """A call of tools is the JSON of one call, or of a list of them."""
    if turn["from"] != "function_call" or not isinstance(turn.get("value"), str):
        return {"content": turn.get("value")}
    try:
        calls = json.loads(turn["value"])
    except (ValueError, RecursionError):
        return {"content": "", "tool_calls": turn["value"]}  # refused as no list of calls
    return {"content": "", "tool_calls": calls if isinstance(calls, list) else [calls]}


def _system(values: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
    return [{"role": "system", "content": values["system"]}] if values.get("system") else []
