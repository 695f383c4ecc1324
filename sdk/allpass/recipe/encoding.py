"""From rows of text to numbers, and which of those numbers the model is to learn.

On machines as where a job is submitted: there it says what the rows come to before anything is rented. Runs on
Python 3.9 with the standard library alone, and with whatever transformers there is.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any, List, Mapping, Optional, Sequence, Tuple

from allpass.recipe.chat import Chat, Written, common, is_learned
from allpass.recipe.chat_template import Spans

IGNORED = -100
PAIR = ("chosen", "rejected")  # the two sequences of a row that says which answer is the better one, in their order


@dataclass(frozen=True)
class Example:
    """One sequence. `targets`, of a causal model: as long as `ids`, with IGNORED where the token is given. Of a
    classifier: the number of the label, alone. `is_cut`: the row had more tokens."""

    ids: Tuple[int, ...]
    targets: Tuple[int, ...]
    is_cut: bool = False

    @property
    def counted(self) -> int:
        """How many predictions of it count: never a first token, which nothing precedes."""
        if len(self.targets) == 1:
            return 1
        return sum(one != IGNORED for one in self.targets[1:])


class Encoder:
    """Encodes rows of one shape; raises ValueError naming the row for what the tokenizer's chat template refuses."""

    def __init__(self, tokenizer: Any, shape: str, labels: Sequence[str], most_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._encode = {
            "prompt": self._completion,
            "messages": self._messages,
            "text": self._text,
            "labelled": self._labelled,
            "pair": self._pair,
            "pair_messages": self._pair_of_messages,
        }[shape]
        self.has_pairs = shape in ("pair", "pair_messages")
        self._numbers = {label: number for number, label in enumerate(labels)}
        self._most_tokens = most_tokens
        self._begin = _first_mark(tokenizer)
        self._chat: Optional[Chat] = (
            Chat(tokenizer) if shape in ("messages", "pair_messages") and tokenizer.chat_template else None
        )

    @property
    def left_out(self) -> "dict[str, int]":
        """What the model's chat template did not show of the rows so far: names, and how often."""
        return {} if self._chat is None else dict(sorted(self._chat.left_out.items()))

    def encode(self, row: Mapping[str, Any], name: str) -> "Tuple[Example, ...]":
        """Mostly one sequence; several where the model does not read earlier answers as it gave them; of a pair always
        two, the chosen one first. `name` tells the row in errors."""
        try:
            examples = self._encode(row)
        except Exception as error:  # of whatever template: it is a program of the model's publisher
            raise ValueError(f"{name} cannot be encoded: {type(error).__name__}: {error}") from error
        most = self._most_tokens
        if self._numbers or all(len(one.ids) <= most for one in examples):
            return tuple(examples)
        return tuple(Example(one.ids[:most], one.targets[:most], len(one.ids) > most) for one in examples)

    def _completion(self, row: Mapping[str, Any]) -> List[Example]:
        prompt, completion = row["prompt"], row["completion"]
        written = Written(prompt + completion, ((len(prompt), len(prompt) + len(completion)),), ends=False)
        return [self._joined([written], self._begin)]

    def _pair(self, row: Mapping[str, Any]) -> List[Example]:
        return [one for name in PAIR for one in self._completion({"prompt": row["prompt"], "completion": row[name]})]

    def _pair_of_messages(self, row: Mapping[str, Any]) -> List[Example]:
        found: List[Example] = []
        for name in PAIR:
            told = self._messages({"messages": [*row["prompt"], *row[name]], "tools": row.get("tools")})
            if len(told) != 1:
                raise ValueError(
                    f"{name} has {len(told)} answers, and the model's chat template does not show earlier ones as they "
                    "were given: leave one of them, or take another model"
                )
            found += told
        return found

    def _text(self, row: Mapping[str, Any]) -> List[Example]:
        return [self._joined([Written(row["text"], ((0, len(row["text"])),), ends=False)], self._begin)]

    def _labelled(self, row: Mapping[str, Any]) -> List[Example]:
        ids = self._tokenizer(row["text"], verbose=False)["input_ids"]
        is_cut = len(ids) > self._most_tokens
        if is_cut:
            ids = self._tokenizer(row["text"], truncation=True, max_length=self._most_tokens)["input_ids"]
        return [Example(tuple(ids), (self._numbers[row["label"]],), is_cut)]

    def _messages(self, row: Mapping[str, Any]) -> List[Example]:
        """What the assistant says is learned, the rest is given."""
        if self._chat is not None:
            return [self._joined([one], []) for one in self._chat.write(row["messages"], row.get("tools"))]
        return [self._joined(_untemplated(row), self._begin)]

    def _joined(self, texts: Sequence[Written], begin: Sequence[int]) -> Example:
        """Texts one after the other, each with the model's mark of the end unless it has one of its own."""
        ids, targets = list(begin), [IGNORED] * len(begin)
        for one in texts:
            tokens, counts = self._tokens(one.text, one.learned)
            tokens += [] if one.ends else self._end()
            counts += [bool(one.learned)] * (len(tokens) - len(counts))
            ids += tokens
            targets += [token if counts[place] else IGNORED for place, token in enumerate(tokens)]
        return Example(tuple(ids), tuple(targets))

    def _tokens(self, text: str, spans: Spans) -> "Tuple[List[int], List[bool]]":
        """The tokens of a text, and whether each has any of the spans in it."""
        if not getattr(self._tokenizer, "is_fast", False):
            return self._without_offsets(text, spans)
        found = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        return list(found["input_ids"]), _within(found["offset_mapping"], spans)

    def _without_offsets(self, text: str, spans: Spans) -> "Tuple[List[int], List[bool]]":
        """As `_tokens`, of a tokenizer that does not say where its tokens are: what begins a text alike is before."""
        ids = self._plain(text)
        learned = [False] * len(ids)
        for begin, end in spans:
            first, last = common(ids, self._plain(text[:begin])), common(ids, self._plain(text[:end]))
            learned[first:last] = [True] * (last - first)
        return ids, learned

    def _plain(self, text: str) -> List[int]:
        return list(self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def _end(self) -> List[int]:
        end = self._tokenizer.eos_token_id
        return [] if end is None else [end]


def _untemplated(row: Mapping[str, Any]) -> List[Written]:
    """For a model without a chat template: roles as words, and each answer ended by the model's mark of the end."""
    if row.get("tools") or any(one.get("tool_calls") for one in row["messages"]):
        raise ValueError("the model has no chat template to write tools and tool_calls by: take one that has")
    texts: List[Written] = []
    given = ""
    for message in row["messages"]:
        said = message["content"] or ""
        if message["role"] != "assistant":
            given += f"{message['role']}: {said}\n"
            continue
        given += "assistant: "
        spans = ((len(given), len(given) + len(said)),) if is_learned(message) else ()
        texts.append(Written(given + said, spans, ends=False))
        given = ""
    return texts


def _within(offsets: "Sequence[Tuple[int, int]]", spans: Spans) -> List[bool]:
    """Which tokens have any of the spans in them. Tokens of white space alone are told by some tokenizers as an empty
    place at their end: such a one begins where the one before it ended."""
    begins = [begin for begin, _ in spans]
    found: List[bool] = []
    done = 0
    for begin, end in offsets:
        first = begin if begin < end else min(done, begin)
        last = bisect_right(begins, end - 1) - 1  # of the spans that begin before its end
        found.append(last >= 0 and spans[last][1] > first)
        done = max(done, end)
    return found


def _first_mark(tokenizer: Any) -> List[int]:
    """The mark that this tokenizer begins a text with, if it does."""
    begin = tokenizer.bos_token_id
    return [begin] if begin is not None and list(tokenizer("x")["input_ids"])[:1] == [begin] else []
