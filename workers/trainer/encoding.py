"""From rows of text to numbers, and which of those numbers the model is to learn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

IGNORED = -100


@dataclass(frozen=True)
class Example:
    """`targets`, of a causal model: as long as `ids`, with IGNORED where the token is given. Of a classifier: the
    number of the label, alone."""

    ids: tuple[int, ...]
    targets: tuple[int, ...]

    @property
    def counted(self) -> int:
        """How many predictions of it count: never a first token, which nothing precedes."""
        if len(self.targets) == 1:
            return 1
        return sum(one != IGNORED for one in self.targets[1:])


class Encoder:
    """Encodes rows of one shape; raises ValueError naming the row for what the tokenizer's chat template refuses."""

    def __init__(self, tokenizer: Any, shape: str, labels: tuple[str, ...], most_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._encode = {
            "prompt": self._completion,
            "messages": self._messages,
            "text": self._text,
            "labelled": self._labelled,
        }[shape]
        self._numbers = {label: number for number, label in enumerate(labels)}
        self._most_tokens = most_tokens
        self._begin = _first_mark(tokenizer)

    def encode(self, row: Mapping[str, Any], name: str) -> Example:
        """`name` tells the row in errors."""
        try:
            example = self._encode(row)
        except Exception as error:  # of whatever template: it is a program of the model's publisher
            raise ValueError(f"{name} cannot be encoded: {type(error).__name__}: {error}") from error
        if self._numbers:
            return example
        return Example(example.ids[: self._most_tokens], example.targets[: self._most_tokens])

    def _completion(self, row: Mapping[str, Any]) -> Example:
        given = [*self._begin, *self._plain(row["prompt"])]
        return _joined([(given, False), ([*self._plain(row["completion"]), *self._end()], True)])

    def _text(self, row: Mapping[str, Any]) -> Example:
        return _joined([(self._begin, False), ([*self._plain(row["text"]), *self._end()], True)])

    def _labelled(self, row: Mapping[str, Any]) -> Example:
        encoded = self._tokenizer(row["text"], truncation=True, max_length=self._most_tokens)
        return Example(tuple(encoded["input_ids"]), (self._numbers[row["label"]],))

    def _messages(self, row: Mapping[str, Any]) -> Example:
        """What the assistant says is learned, the rest is given."""
        if self._tokenizer.chat_template:
            return self._templated(row["messages"])
        parts: list[tuple[list[int], bool]] = [(self._begin, False)]
        for message in row["messages"]:
            said = self._plain(message["content"])
            if message["role"] == "assistant":
                parts += [(self._plain("assistant: "), False), ([*said, *self._end()], True)]
            else:
                parts.append((self._plain(f"{message['role']}: {message['content']}\n"), False))
        return _joined(parts)

    def _templated(self, messages: list[Mapping[str, str]]) -> Example:
        """By the model's own chat template: each answer, with what the template ends it with, is learned."""
        parts: list[tuple[list[int], bool]] = []
        done = ""
        for number, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = self._chat(messages[:number], add_generation_prompt=True)
            after = self._chat(messages[: number + 1])
            if not before.startswith(done) or not after.startswith(before):
                raise ValueError("the model's chat template changes earlier turns when one is added: give one answer")
            given, learned = before[len(done) :], after[len(before) :]
            parts += [(self._plain(given), False), (self._plain(learned), True)]
            done = after
        return _joined(parts)

    def _chat(self, messages: list[Mapping[str, str]], **options: Any) -> str:
        return str(self._tokenizer.apply_chat_template(list(messages), tokenize=False, **options))

    def _plain(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _end(self) -> list[int]:
        end = self._tokenizer.eos_token_id
        return [] if end is None else [end]


def _first_mark(tokenizer: Any) -> list[int]:
    """The mark that this tokenizer begins a text with, if it does."""
    begin = tokenizer.bos_token_id
    return [begin] if begin is not None and list(tokenizer("x")["input_ids"])[:1] == [begin] else []


def _joined(parts: list[tuple[list[int], bool]]) -> Example:
    ids = [token for tokens, _ in parts for token in tokens]
    targets = [token if is_learned else IGNORED for tokens, is_learned in parts for token in tokens]
    return Example(tuple(ids), tuple(targets))
