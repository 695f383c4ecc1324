"""How a model's chat template writes a conversation, and which parts of that text are answers that are learned.

A template is a program of the model's publisher, made to ask the model, and seldom to train it: it may drop or rewrite
what was said before, know no system turn, want its texts in another form, or end an answer with nothing. So it is first
asked with a conversation of our own what it can do. Then a row is written as one text, where that is what the model
will have read and said at each of its answers, and as one text for each answer otherwise.

Runs on Python 3.9 with the standard library alone, and with whatever transformers there is.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

Message = Dict[str, Any]
Spans = Tuple[Tuple[int, int], ...]
THOUGHTS = ("reasoning_content", "reasoning", "thinking")  # of a message, beside its content
_THOUGHTS_END = "</think>"
# What templates take for today's date, in the place of a function of that name: the day that Llama's tell where there
# is none. So the same rows are the same tokens on every day, and on the machine that goes on after midnight.
_DAY = {"%Y": "2024", "%y": "24", "%m": "07", "%B": "July", "%b": "Jul", "%d": "26", "%-d": "26", "%A": "Friday",
        "%a": "Fri", "%H": "00", "%M": "00", "%S": "00"}  # fmt: skip
_ON_THAT_DAY = (
    "{% macro strftime_now(format) %}{{ format"
    + "".join(f"|replace({directive!r}, {value!r})" for directive, value in _DAY.items())
    + " }}{% endmacro %}{{ '' }}"
)
_MARKS = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")  # around what the assistant says
_ASKED, _SAID, _TOLD = "qjxasked", "qjxsaid", "qjxtold"  # in no template
_FUNCTION = {"name": "qjxname", "arguments": {"qjxkey": "qjxvalue"}}
_CALL = {"id": "qjx000001", "type": "function", "function": _FUNCTION}
_TALK: List[Message] = [{"role": "user", "content": _ASKED}, {"role": "assistant", "content": _SAID}]


@dataclass(frozen=True)
class Written:
    """A text, and the spans of it that are learned. Unless it `ends`, the model's mark of the end is still to come."""

    text: str
    learned: Spans
    ends: bool


@dataclass(frozen=True)
class Form:
    """How a template takes what a message says: in `parts`, or as plain text; with a `system` turn, or without.
    `calls`: whether arguments are objects, and what an empty content is beside them; None where it writes no calls."""

    parts: bool = False
    system: bool = True
    calls: Optional[Tuple[bool, Optional[str]]] = (True, "")


class Chat:
    """Writes conversations by the template of one tokenizer. `left_out` counts what it did not show, by name.

    Raises ValueError for a template that does not show what the assistant says."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._eos = tokenizer.eos_token or ""
        self._why = ""  # it last failed
        self._tells_day = "strftime_now" in str(tokenizer.chat_template)
        self._form = self._find_form()
        self._tail = (self._tried(_TALK) or "").rpartition(_SAID)[2]  # what an answer ends with
        self._ends = bool(self._tail.strip()) or not self._eos
        self.left_out: "Counter[str]" = Counter()

    def write(self, messages: Sequence[Mapping[str, Any]], tools: Optional[List[Any]] = None) -> List[Written]:
        """The texts of a row. Raises ValueError for what the template cannot show; whatever the template raises."""
        asked_for = [number for number, one in enumerate(messages) if is_learned(one)]
        told = messages[: asked_for[-1] + 1]
        if self._form.calls is None and any(one.get("tool_calls") for one in told):
            raise ValueError(
                "the model's chat template shows no tool_calls: leave such rows out, or take another model"
            )
        formed = self._formed(told)
        earlier = len(told) - len(formed)  # a system turn that went into the one after it
        whole = self._render(formed, tools)
        self._note(whole, told, tools)
        marks = self._marks(whole, formed, tools)
        is_all = len(asked_for) == sum(one["role"] == "assistant" for one in told)
        if marks and is_all and self._ends and all(_shows(whole, _said(told[number])) for number in asked_for):
            return [Written(whole, marks, ends=True)]
        answers = [self._answer(formed, number - earlier, tools) for number in asked_for]
        ends = [self._end_within(whole, text) for text, _ in answers]
        if self._ends and len(answers) > 1 and None not in ends:
            spans = tuple((answers[number][1], end) for number, end in enumerate(ends) if end is not None)
            return [Written(whole, _both(spans, marks) if marks else spans, ends=True)]
        return [Written(text, ((begin, len(text)),), self._ends) for text, begin in answers]

    def _answer(self, formed: List[Message], number: int, tools: Optional[List[Any]]) -> Tuple[str, int]:
        """What the model has read and said once this answer is given, and where the answer begins in it."""
        before, answer = formed[:number], formed[number]
        text = self._render([*before, answer], tools)
        _check_calls(text, answer)
        for name in THOUGHTS:
            self._note_one(text, name, answer.get(name))
        if not before:  # there is no asking: what differs between any two answers is what is said
            other = self._render([{**answer, "content": self._content(_SAID)}], tools)
            return text, min(len(other.partition(_SAID)[0]), common(text, other))
        asked = self._render(before, tools, asks=True)
        placed = ""
        if not _shows(text, _said(answer)):  # as templates do that keep no thoughts
            placed = self._placed(before, tools)
            text = placed.replace(_SAID, _said(answer))
        if text.startswith(asked):
            return text, len(asked)
        begin = common(asked, placed or self._placed(before, tools))
        begin = min(begin, common(asked, text))
        if begin >= len(self._render(before, tools).removesuffix(self._eos)):
            return text, begin
        if answer.get("tool_calls"):
            raise ValueError("the model's chat template changes earlier turns when a call of tools is added")
        return asked + _said(answer) + self._tail, len(asked)

    def _placed(self, before: List[Message], tools: Optional[List[Any]]) -> str:
        """As it is written after `before`, an answer without any thoughts."""
        text = self._render([*before, {"role": "assistant", "content": self._content(_SAID)}], tools)
        if text.count(_SAID) != 1:
            raise ValueError("the model's chat template does not show what the assistant says")
        return text

    def _end_within(self, whole: str, text: str) -> Optional[int]:
        """Where an answer ends in the text of all; None where that has other words up to there."""
        if whole.startswith(text):
            return len(text)
        shorter = text.removesuffix(self._eos)  # some templates end the whole with it, and not each answer
        return len(shorter) if whole.startswith(shorter) else None

    def _marks(self, whole: str, formed: List[Message], tools: Optional[List[Any]]) -> Spans:
        """The spans that the template itself marks as what is generated; none where it marks nothing."""
        template = self._template(tools)
        if _MARKS.search(template) is None:
            return ()
        try:
            from transformers.utils.chat_template_utils import render_jinja_template
        except ImportError:
            return ()
        rendered: Any = render_jinja_template(
            conversations=[formed],
            tools=tools,
            chat_template=template,
            return_assistant_tokens_mask=True,
            **self._tokenizer.special_tokens_map,
        )
        (text,), (marks,) = rendered
        return tuple((begin, end) for begin, end in marks) if text == whole else ()

    def _note(self, whole: str, told: Sequence[Mapping[str, Any]], tools: Optional[List[Any]]) -> None:
        """Count what is given and not shown."""
        for one in told:
            said = _said(one)
            if one["role"] == "assistant":
                said = said.rpartition(_THOUGHTS_END)[2]
                if not is_learned(one):
                    _check_calls(whole, one)
            if one["role"] != "assistant" or not is_learned(one):
                self._note_one(whole, f"messages of the {one['role']}", said)
            for name in ("name", "tool_call_id"):
                self._note_one(whole, name, one.get(name))
        for tool in tools or ():
            self._note_one(whole, "tools", tool.get("function", tool).get("name"))

    def _note_one(self, text: str, name: str, value: Any) -> None:
        if isinstance(value, str) and not _shows(text, value):
            self.left_out[name] += 1

    def _find_form(self) -> Form:
        for parts in (False, True):
            self._form = Form(parts=parts)
            if _SAID in (self._tried(_TALK) or ""):
                break
        else:
            raise ValueError(f"the model's chat template does not show what the assistant says{self._why}")
        system = _TOLD in (self._tried([{"role": "system", "content": _TOLD}, *_TALK]) or "")
        calls = [(as_object, empty) for as_object in (True, False) for empty in ("", None)]
        return Form(parts, system, next((one for one in calls if self._writes_calls(parts, one)), None))

    def _writes_calls(self, parts: bool, calls: Tuple[bool, Optional[str]]) -> bool:
        self._form = Form(parts=parts, calls=calls)
        text = self._tried([_TALK[0], {"role": "assistant", "content": "", "tool_calls": [_CALL]}]) or ""
        return all(word in text for word in ("qjxname", "qjxkey", "qjxvalue"))

    def _tried(self, messages: Sequence[Mapping[str, Any]]) -> Optional[str]:
        try:
            return self._render(self._formed(messages), None)
        except Exception as error:  # of whatever template
            self._why = f": {type(error).__name__}: {error}"
            return None

    def _formed(self, messages: Sequence[Mapping[str, Any]]) -> List[Message]:
        """The messages in the form that the template takes."""
        formed = [self._message(one) for one in messages]
        if not self._form.system and [one["role"] for one in formed[:2]] == ["system", "user"]:
            told = "\n\n".join(_said(one) for one in formed[:2])
            formed[:2] = [{**formed[1], "content": self._content(told)}]
        return formed

    def _message(self, message: Mapping[str, Any]) -> Message:
        formed = {name: value for name, value in message.items() if name != "weight"}
        formed["content"] = self._content(formed.get("content") or "")
        if formed.get("tool_calls") and self._form.calls is not None:
            as_object, empty = self._form.calls
            formed["content"] = formed["content"] or empty
            formed["tool_calls"] = [_call(one, as_object) for one in formed["tool_calls"]]
        return formed

    def _content(self, text: str) -> Any:
        return [{"type": "text", "text": text}] if self._form.parts else text

    def _render(self, messages: List[Message], tools: Optional[List[Any]], *, asks: bool = False) -> str:
        told: Dict[str, Any] = {} if tools is None else {"tools": tools}
        if self._tells_day:
            told["chat_template"] = self._template(tools)
        shown = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=asks, **told)
        return str(shown)

    def _template(self, tools: Optional[List[Any]]) -> str:
        template = str(self._tokenizer.get_chat_template(None, tools))
        return _ON_THAT_DAY + template if self._tells_day else template


def is_learned(message: Mapping[str, Any]) -> bool:
    """Whether the model is to learn to say it."""
    return bool(message["role"] == "assistant" and message.get("weight", 1) != 0)


def common(some: Sequence[Any], others: Sequence[Any]) -> int:
    """How far two sequences are alike from their beginning."""
    count, most = 0, min(len(some), len(others))
    while count < most and some[count] == others[count]:
        count += 1
    return count


def _said(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _call(call: Mapping[str, Any], as_object: bool) -> Dict[str, Any]:
    """Arguments come as an object or as its JSON, and templates take the one or the other."""
    arguments = call["function"].get("arguments", {})
    if as_object and isinstance(arguments, str):
        arguments = json.loads(arguments or "{}")
    elif not as_object and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {"type": "function", **call, "function": {**call["function"], "arguments": arguments}}


def _check_calls(text: str, message: Mapping[str, Any]) -> None:
    for call in message.get("tool_calls") or ():
        arguments = call["function"].get("arguments")
        values = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
        for word in (call["function"]["name"], *_words(values)):
            if not _shows(text, word):
                raise ValueError(f"the model's chat template leaves {word!r} out of a call of tools")


def _words(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield str(key)
            yield from _words(one)
    elif isinstance(value, list):
        for one in value:
            yield from _words(one)


def _shows(text: str, said: str) -> bool:
    """Whether a text has these words in it, however the template spaces or quotes them."""
    said = said.strip()
    if said in text or json.dumps(said, ensure_ascii=False)[1:-1] in text or json.dumps(said)[1:-1] in text:
        return True
    return "".join(said.split()) in "".join(text.split())


def _both(some: Spans, others: Spans) -> Spans:
    """What is in spans of both."""
    cut = ((max(begin, from_), min(end, to)) for begin, end in some for from_, to in others)
    return tuple((begin, end) for begin, end in cut if begin < end)
