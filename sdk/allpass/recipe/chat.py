"""How a model's chat template writes a conversation, and which parts of that text are answers that are learned.

A template is a program of the model's publisher, made to ask the model, and seldom to train it: it may drop or rewrite
what was said before, know no system turn, want its texts in another form, or end an answer with nothing. So it is first
asked with a conversation of our own what it can do. Then a row is written as one text, where that is what the model
will have read and said at each of its answers, and as one text for each answer otherwise.

Runs on Python 3.9 with the standard library alone, and with whatever transformers there is.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any, Iterator, List, Mapping, Optional, Sequence, Tuple

from allpass.recipe.chat_template import SAID, ChatTemplate, Message, Spans, Tools, said_in

THOUGHTS = ("reasoning_content", "reasoning", "thinking")  # of a message, beside its content
_THOUGHTS_END = "</think>"


@dataclass(frozen=True)
class Written:
    """A text, and the spans of it that are learned. Unless it `ends`, the model's mark of the end is still to come."""

    text: str
    learned: Spans
    ends: bool


class Chat:
    """Writes conversations by the template of one tokenizer. `left_out` counts what it did not show, by name.

    Raises ValueError for a template that does not show what the assistant says."""

    def __init__(self, tokenizer: Any) -> None:
        self._eos = tokenizer.eos_token or ""
        self._template = ChatTemplate(tokenizer)
        self._ends = bool(self._template.tail.strip()) or not self._eos
        self.left_out: "Counter[str]" = Counter()

    def write(self, messages: Sequence[Mapping[str, Any]], tools: Tools = None) -> List[Written]:
        """The texts of a row. Raises ValueError for what the template cannot show; whatever the template raises."""
        asked_for = [number for number, one in enumerate(messages) if is_learned(one)]
        told = messages[: asked_for[-1] + 1]
        if self._template.form.calls is None and any(one.get("tool_calls") for one in told):
            raise ValueError(
                "the model's chat template shows no tool_calls: leave such rows out, or take another model"
            )
        formed = self._template.formed(told)
        earlier = len(told) - len(formed)  # a system turn that went into the one after it
        whole = self._template.render(formed, tools)
        self._note(whole, told, tools)
        marks = self._template.marks(whole, formed, tools)
        is_all = len(asked_for) == sum(one["role"] == "assistant" for one in told)
        if marks and is_all and self._ends and _shows_each(whole, [told[number] for number in asked_for]):
            return [Written(whole, marks, ends=True)]
        answers = [self._answer(formed, number - earlier, tools) for number in asked_for]
        ends = [self._end_within(whole, text) for text, _ in answers]
        if self._ends and len(answers) > 1 and None not in ends:
            spans = tuple((answers[number][1], end) for number, end in enumerate(ends) if end is not None)
            return [Written(whole, _both(spans, marks) if marks else spans, ends=True)]
        return [Written(text, ((begin, len(text)),), self._ends) for text, begin in answers]

    def _answer(self, formed: List[Message], number: int, tools: Tools) -> Tuple[str, int]:
        """What the model has read and said once this answer is given, and where the answer begins in it."""
        before, answer = formed[:number], formed[number]
        text = self._template.render([*before, answer], tools)
        placed = ""
        if not _shows(text, said_in(answer)):  # as templates do that keep no thoughts
            placed = self._template.placed(before, tools)
            text = placed.replace(SAID, said_in(answer))
        _check_calls(text, answer)
        for name in THOUGHTS:
            self._note_one(text, name, answer.get(name))
        if not before:  # there is no asking
            placed = placed or self._template.placed(before, tools)
            return text, min(placed.index(SAID), common(text, placed))
        asked = self._template.render(before, tools, asks=True)
        if text.startswith(asked):
            return text, len(asked)
        begin = min(common(asked, placed or self._template.placed(before, tools)), common(asked, text))
        if begin >= len(self._template.render(before, tools).removesuffix(self._eos)):
            return text, begin
        if answer.get("tool_calls"):
            raise ValueError("the model's chat template changes earlier turns when a call of tools is added")
        return asked + said_in(answer) + self._template.tail, len(asked)

    def _end_within(self, whole: str, text: str) -> Optional[int]:
        """Where an answer ends in the text of all; None where that has other words up to there."""
        if whole.startswith(text):
            return len(text)
        shorter = text.removesuffix(self._eos)  # some templates end the whole with it, and not each answer
        return len(shorter) if whole.startswith(shorter) else None

    def _note(self, whole: str, told: Sequence[Mapping[str, Any]], tools: Tools) -> None:
        """Count what is given and not shown."""
        for one in told:
            said = said_in(one)
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


def is_learned(message: Mapping[str, Any]) -> bool:
    """Whether the model is to learn to say it."""
    return bool(message["role"] == "assistant" and message.get("weight", 1) != 0)


def common(some: Sequence[Any], others: Sequence[Any]) -> int:
    """How far two sequences are alike from their beginning."""
    count, most = 0, min(len(some), len(others))
    while count < most and some[count] == others[count]:
        count += 1
    return count


def _shows_each(text: str, answers: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a text has all answers one after the other, word for word, each with what was thought before."""
    done = 0
    for one in answers:
        for said in (*(one.get(name) for name in THOUGHTS), said_in(one)):
            begin = text.find((said or "").strip(), done)
            if begin < 0:
                return False
            done = begin + len((said or "").strip())
    return True


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
