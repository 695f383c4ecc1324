"""Rows that say which of two answers is the better one: what is asked, with a `chosen` and a `rejected` answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from allpass.errors import Problem
from allpass.recipe.chat import common
from allpass.recipe.encoding import PAIR as ANSWERS
from allpass.recipe.formats import Format
from allpass.recipe.messages import check_messages, check_text, check_tools, short

TEXTS = Format("pair", ANSWERS, ("prompt",))
TALKS = Format("pair_messages", ANSWERS, ("prompt", "tools"))
SHAPES = (TEXTS.shape, TALKS.shape)
_QUESTIONS = ("question", "instruction", "input", "query")  # what others call a prompt
EXAMPLE = '{"prompt": "...", "chosen": "...", "rejected": "..."}'
Found = tuple[list[Problem], dict[str, Any]]


def has_pair(values: Mapping[str, Any]) -> bool:
    """Whether a row says which of two answers is the better one."""
    return set(ANSWERS) <= set(map(str, values))


def format_of(values: Mapping[str, Any]) -> Format:
    """Of texts, or of messages, by the first row."""
    is_talk = any(not isinstance(values.get(name) or "", str) for name in ("prompt", *ANSWERS))
    return TALKS if is_talk else TEXTS


def check_pair(values: Mapping[str, Any], format_: Format, place: str) -> Found:
    """What is wrong with a row, and what is kept: `prompt`, and after it each of the two answers.

    A prompt that is not told apart is what both answers begin with, as TRL has it.
    """
    renamed = next((name for name in _QUESTIONS if isinstance(values.get(name), str) and values[name]), None)
    if not values.get("prompt") and renamed is not None:
        where = f'{place}, field "{renamed}"'
        return [Problem(where, "would not be read: what was asked is the prompt", f"call {renamed!r} 'prompt'")], {}
    missing = [Problem(f'{place}, field "{name}"', "is missing", EXAMPLE) for name in ANSWERS if name not in values]
    if missing:
        return missing, {}
    return _texts(values, place) if format_ == TEXTS else _talks(values, place)


def _texts(values: Mapping[str, Any], place: str) -> Found:
    problems: list[Problem] = []
    kept: dict[str, Any] = {}
    for name in ANSWERS:
        found, kept[name] = check_text(values[name], f'{place}, field "{name}"')
        problems += found
    prompt = values.get("prompt")
    if prompt not in (None, ""):  # which tables have where there is none
        found, kept["prompt"] = check_text(prompt, f'{place}, field "prompt"')
        return problems + found, kept
    if problems:
        return problems, kept
    chosen, rejected = kept["chosen"], kept["rejected"]
    begin = common(chosen, rejected)
    if begin and begin < min(len(chosen), len(rejected)) and chosen[begin - 1] == " ":
        begin -= 1  # which tokens of words begin with
    return [], {"prompt": chosen[:begin], "chosen": chosen[begin:], "rejected": rejected[begin:]}


def _talks(values: Mapping[str, Any], place: str) -> Found:
    problems: list[Problem] = []
    talks: list[list[dict[str, Any]]] = []
    for name in ANSWERS:
        where = f'{place}, field "{name}"'
        answer = _as_messages(values[name])
        if answer is None:
            problems.append(Problem(where, f"{short(values[name])} is not a list of messages, as in the first row"))
            continue
        asked = _asked(values.get("prompt"), answer)
        if asked is None:
            what = f"{short(values['prompt'])} is neither text nor a list of messages"
            problems.append(Problem(f'{place}, field "prompt"', what))
            break
        found, kept = check_messages([*asked, *answer], where)
        problems += found
        talks.append(kept)
    found, tools = check_tools(values.get("tools"), f'{place}, field "tools"')
    problems += found
    if problems:
        return problems, {}
    begin = min(common(*talks), *(len(talk) - 1 for talk in talks))
    prompt = [_unlearned(one) for one in talks[0][:begin]]
    chosen, rejected = (talk[begin:] for talk in talks)
    return [], {"prompt": prompt, "chosen": chosen, "rejected": rejected, **({} if tools is None else {"tools": tools})}


def _as_messages(answer: Any) -> list[Any] | None:
    """An answer of a conversation may be told as a text, or as one message."""
    if isinstance(answer, str):
        return [{"role": "assistant", "content": answer}]
    if isinstance(answer, Mapping):
        return [answer]
    return answer if isinstance(answer, list) and answer else None


def _asked(prompt: Any, answer: Sequence[Any]) -> list[Any] | None:
    """What comes before an answer. A text beside whole conversations is what these begin with, once more."""
    if prompt is None or prompt == []:
        return []
    if isinstance(prompt, str):
        is_whole = isinstance(answer[0], Mapping) and answer[0].get("role") != "assistant"
        return [] if is_whole else [{"role": "user", "content": prompt}]
    return [_unlearned(one) for one in prompt] if isinstance(prompt, list) else None


def _unlearned(message: Any) -> Any:
    is_answer = isinstance(message, Mapping) and message.get("role") == "assistant"
    return {**message, "weight": 0} if is_answer else message
