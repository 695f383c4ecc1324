"""A model's chat template: in which form it takes what a conversation says, and what it writes of it.

Runs on Python 3.9 with the standard library alone, and with whatever transformers there is.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

Message = Dict[str, Any]
Spans = Tuple[Tuple[int, int], ...]
Tools = Optional[List[Any]]
SAID = "qjxsaid"  # a word that is in no template
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
_ASKED, _TOLD = "qjxasked", "qjxtold"
_FUNCTION = {"name": "qjxname", "arguments": {"qjxkey": "qjxvalue"}}
_CALL = {"id": "qjx000001", "type": "function", "function": _FUNCTION}
_TALK: List[Message] = [{"role": "user", "content": _ASKED}, {"role": "assistant", "content": SAID}]


@dataclass(frozen=True)
class Form:
    """How a template takes what a message says: in `parts`, or as plain text; with a `system` turn, or without.
    `calls`: whether arguments are objects, and what an empty content is beside them; None where it writes no calls."""

    parts: bool = False
    system: bool = True
    calls: Optional[Tuple[bool, Optional[str]]] = (True, "")


class ChatTemplate:
    """The template of one tokenizer, which was asked with a conversation of our own what it can do.

    `tail`: what it ends an answer with. Raises ValueError for one that does not show what the assistant says."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._why = ""  # it last failed
        self._tells_day = "strftime_now" in str(tokenizer.chat_template)
        self.form = self._find_form()
        self.tail = (self._tried(_TALK) or "").rpartition(SAID)[2]

    def render(self, messages: List[Message], tools: Tools, *, asks: bool = False) -> str:
        """What it writes of messages in its form; with what the model is asked to go on from, if it `asks`."""
        told: Dict[str, Any] = {} if tools is None else {"tools": tools}
        if self._tells_day:
            told["chat_template"] = self._source(tools)
        shown = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=asks, **told)
        return str(shown)

    def placed(self, before: List[Message], tools: Tools) -> str:
        """As it is written after `before`, an answer without any thoughts."""
        text = self.render([*before, {"role": "assistant", "content": self.content(SAID)}], tools)
        if text.count(SAID) != 1:
            raise ValueError("the model's chat template does not show what the assistant says")
        return text

    def marks(self, whole: str, formed: List[Message], tools: Tools) -> Spans:
        """The spans that the template itself marks as what is generated; none where it marks nothing."""
        template = self._source(tools)
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

    def _find_form(self) -> Form:
        for parts in (False, True):
            self.form = Form(parts=parts)
            if SAID in (self._tried(_TALK) or ""):
                break
        else:
            raise ValueError(f"the model's chat template does not show what the assistant says{self._why}")
        system = _TOLD in (self._tried([{"role": "system", "content": _TOLD}, *_TALK]) or "")
        calls = [(as_object, empty) for as_object in (True, False) for empty in ("", None)]
        return Form(parts, system, next((one for one in calls if self._writes_calls(parts, one)), None))

    def _writes_calls(self, parts: bool, calls: Tuple[bool, Optional[str]]) -> bool:
        self.form = Form(parts=parts, calls=calls)
        text = self._tried([_TALK[0], {"role": "assistant", "content": "", "tool_calls": [_CALL]}]) or ""
        return all(word in text for word in ("qjxname", "qjxkey", "qjxvalue"))

    def _tried(self, messages: Sequence[Mapping[str, Any]]) -> Optional[str]:
        try:
            return self.render(self.formed(messages), None)
        except Exception as error:  # of whatever template
            self._why = f": {type(error).__name__}: {error}"
            return None

    def formed(self, messages: Sequence[Mapping[str, Any]]) -> List[Message]:
        """The messages in the form that the template takes."""
        formed = [self._message(one) for one in messages]
        if not self.form.system and [one["role"] for one in formed[:2]] == ["system", "user"]:
            told = "\n\n".join(said_in(one) for one in formed[:2])
            formed[:2] = [{**formed[1], "content": self.content(told)}]
        return formed

    def _message(self, message: Mapping[str, Any]) -> Message:
        formed = {name: value for name, value in message.items() if name != "weight"}
        formed["content"] = self.content(formed.get("content") or "")
        if formed.get("tool_calls") and self.form.calls is not None:
            as_object, empty = self.form.calls
            formed["content"] = formed["content"] or empty
            formed["tool_calls"] = [_call(one, as_object) for one in formed["tool_calls"]]
        return formed

    def content(self, text: str) -> Any:
        return [{"type": "text", "text": text}] if self.form.parts else text

    def _source(self, tools: Tools) -> str:
        template = str(self._tokenizer.get_chat_template(None, tools))
        return _ON_THAT_DAY + template if self._tells_day else template


def said_in(message: Mapping[str, Any]) -> str:
    """The words of a message, in whichever form."""
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
