"""Encoded rows as a file beside the rows, so that no GPU waits for them to be encoded, at its start and at every move.

They are bound to all that decided them. A machine takes them only where its own tokenizer is the very same, where they
are whole and within what the model reads, and where some rows that it encodes itself come out alike; else it encodes
all, and says why. Runs on Python 3.9 with the standard library alone.

The file is a line of JSON, then for training and held-out rows: sequences of each row, tokens of each sequence, all
tokens; then which are learned, as lengths of given and learned runs in turn, or the number of each one's label. Whole
numbers without sign, the lowest byte first, of four bytes; tokens of two where those are enough.
"""

from __future__ import annotations

import hashlib
import json
import sys
from array import array
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Iterable, List, Mapping, Optional, Sequence, Tuple

from allpass.recipe.encoded import Encoded
from allpass.recipe.encoding import IGNORED, Example

ENCODED_NAME = "encoded.rows"
WAY = 1  # of encoding; another one with whatever changes what a row becomes
_PARTS = ("training", "held-out")
_WIDE, _NARROW = "I", "H"
_LONGEST_HEAD = 16 * 2**20


class Unusable(ValueError):
    """Why encoded rows are not taken."""


@dataclass(frozen=True)
class Bound:
    """What encoded rows have to agree with. `tokens`: how many the model knows; `most_tokens`: of a row that are read;
    `labels`: how many there are, 0 for a causal model; `rows`: of training, and held out; `pairs`: whether
    each is two answers."""

    tokenizer: Optional[str]
    most_tokens: int
    labels: int
    rows: Tuple[int, int]
    tokens: int = 2**32
    pairs: bool = False


def fingerprint(tokenizer: Any) -> Optional[str]:
    """Of all that decides what it makes of a text or a conversation; None of one that cannot tell it. What fills up
    and cuts rows is said with each call, and no part of it."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    backend.no_truncation()
    backend.no_padding()
    marks = {name: str(one) for name, one in tokenizer.special_tokens_map.items() if name != "pad_token"}
    around = [tokenizer.chat_template, marks, tokenizer.bos_token_id, tokenizer.eos_token_id]
    digest = hashlib.sha256(backend.to_str().encode())
    digest.update(json.dumps(around, sort_keys=True, default=str).encode())
    return digest.hexdigest()


def written(bound: Bound, train: Encoded, held_out: Encoded) -> bytes:
    """The file's bytes: the same for the same rows."""
    parts = [_part(one, is_labelled=bound.labels > 0) for one in (train, held_out)]
    head = {
        "way": WAY,
        "tokenizer": bound.tokenizer,
        "most_tokens": bound.most_tokens,
        **{name: told for name, (told, _) in zip(_PARTS, parts)},  # noqa: B905 - not in Python 3.9
    }
    line = json.dumps(head, ensure_ascii=False, sort_keys=True).encode() + b"\n"
    return b"".join([line, *(content for _, content in parts)])


def read(content: bytes, bound: Bound) -> Tuple[Encoded, Encoded]:
    """Raises Unusable for rows that were encoded in another way, and for what is no such file."""
    line, _, rest = content.partition(b"\n")
    head = _head(line)
    for name, expected, what in (
        ("way", WAY, "by another version of Allpass"),
        ("tokenizer", bound.tokenizer, "by another tokenizer than this machine's"),
        ("most_tokens", bound.most_tokens, f"to another length than the {bound.most_tokens:,} tokens read here"),
    ):
        if head.get(name) != expected or expected is None:
            raise Unusable(f"they were encoded {what}")
    reader = _Reader(rest)
    train, held_out = (_read_part(reader, head.get(name), bound, part) for part, name in enumerate(_PARTS))
    reader.end()
    return train, held_out


def _part(found: Encoded, *, is_labelled: bool) -> "Tuple[dict[str, Any], bytes]":
    sequences = [one for row in found.rows for one in row]
    counts = [len(row) for row in found.rows]
    for number in found.lost_at:  # ascending: each is put where it was
        counts.insert(number, 0)
    narrow = all(max(one.ids) <= 0xFFFF for one in sequences)
    ids: "array[int]" = array(_NARROW if narrow else _WIDE)
    for one in sequences:
        ids.extend(one.ids)
    runs = [[one.targets[0]] if is_labelled else _runs(one) for one in sequences]
    told = {
        "sequences": len(sequences),
        "tokens": len(ids),
        "narrow": narrow,
        "runs": sum(map(len, runs)),
        "cut": found.cut,
        "lost": list(found.lost),
        "left_out": dict(found.left_out),
    }
    numbers = [counts, [len(one.ids) for one in sequences], [len(each) for each in runs]]
    ends = [run for each in runs for run in each]
    return told, b"".join([*map(_wide, numbers), _wide(ends), _bytes(ids)])


def _runs(example: Example) -> List[int]:
    """Lengths of what is given and learned in turn, given first."""
    runs = [0]
    is_learned = False
    for target in example.targets:
        if (target != IGNORED) != is_learned:
            is_learned = not is_learned
            runs.append(0)
        runs[-1] += 1
    return runs


def _wide(numbers: Iterable[int]) -> bytes:
    return _bytes(array(_WIDE, numbers))


def _bytes(numbers: "array[int]") -> bytes:
    if sys.byteorder == "big":
        numbers = array(numbers.typecode, numbers)
        numbers.byteswap()
    return numbers.tobytes()


def _head(line: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(line) if len(line) <= _LONGEST_HEAD else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Unusable("their file is damaged")
    return found


class _Reader:
    """What is left to read."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = memoryview(content), 0

    def take(self, count: int, kind: str = _WIDE) -> "array[int]":
        found: "array[int]" = array(kind)
        end = self._at + count * found.itemsize
        if end > len(self._content):
            raise Unusable("their file ends too early")
        found.frombytes(self._content[self._at : end])
        if sys.byteorder == "big":
            found.byteswap()
        self._at = end
        return found

    def end(self) -> None:
        if self._at != len(self._content):
            raise Unusable("their file has more than it tells of")


def _read_part(reader: _Reader, told: Any, bound: Bound, part: int) -> Encoded:
    told = told if isinstance(told, dict) else {}
    sequences, tokens, all_runs, cut = (_whole(told, name) for name in ("sequences", "tokens", "runs", "cut"))
    counts, lengths, runs_of = (reader.take(count) for count in (bound.rows[part], sequences, sequences))
    runs = reader.take(all_runs)
    ids = reader.take(tokens, _NARROW if told.get("narrow") is True else _WIDE)
    lost, left_out = _texts(told.get("lost")), _counted(told.get("left_out"))
    if sum(counts) != sequences or sum(lengths) != tokens or sum(runs_of) != all_runs or counts.count(0) != len(lost):
        raise Unusable("their lengths disagree")
    if bound.pairs and not {0, 2}.issuperset(counts):
        raise Unusable("a row is not two answers")
    if lengths and not 0 < min(lengths) <= max(lengths) <= bound.most_tokens:
        raise Unusable("some are longer than what is read of a row, or empty")
    if ids and max(ids) >= bound.tokens:
        raise Unusable(f"token {max(ids)} is none of the {bound.tokens:,} that the model knows")
    examples = list(_examples(ids, lengths, runs, runs_of, bound.labels))
    ends = [*accumulate(counts)]
    return Encoded(
        rows=tuple(tuple(examples[ends[n] - count : ends[n]]) for n, count in enumerate(counts) if count),
        lost=lost,
        cut=cut,
        tokens=tokens,
        learned=len(examples) if bound.labels else _learned_of_all(runs, runs_of),
        left_out=left_out,
        pairs=bound.pairs,
        lost_at=tuple(number for number, count in enumerate(counts) if not count),
    )


def _examples(
    ids: Sequence[int], lengths: Sequence[int], runs: Sequence[int], runs_of: Sequence[int], labels: int
) -> "Iterable[Example]":
    end = last = 0
    for number, length in enumerate(lengths):
        count = runs_of[number]
        begin, first = end, last
        end, last = end + length, last + count
        own, ends = tuple(ids[begin:end]), runs[first:last]
        if labels:
            if count != 1 or ends[0] >= labels:
                raise Unusable("a label is none of those that there are")
            yield Example(own, (ends[0],))
            continue
        if sum(ends) != length:
            raise Unusable("their lengths disagree")
        if not _learned(ends):
            raise Unusable("some have nothing to learn")
        yield Example(own, _targets(own, ends))


def _learned(runs: Sequence[int]) -> int:
    """How many tokens: never a first one, which nothing precedes."""
    return sum(runs[1::2]) - (len(runs) > 1 and runs[0] == 0)


def _learned_of_all(runs: Sequence[int], runs_of: Sequence[int]) -> int:
    ends = [*accumulate(runs_of)]
    return sum(_learned(runs[end - count : end]) for end, count in zip(ends, runs_of))  # noqa: B905 - Python 3.9


def _targets(ids: "Tuple[int, ...]", runs: Sequence[int]) -> "Tuple[int, ...]":
    targets: List[int] = []
    for number, length in enumerate(runs):
        begin = len(targets)
        targets += ids[begin : begin + length] if number % 2 else [IGNORED] * length
    return tuple(targets)


def _whole(told: Mapping[str, Any], name: str) -> int:
    value = told.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**40:
        raise Unusable(f"{name}: {str(value)[:50]} is no number of them")
    return value


def _texts(told: Any) -> "Tuple[str, ...]":
    if not isinstance(told, list) or not all(isinstance(one, str) for one in told):
        raise Unusable("which rows have nothing to learn is not told")
    return tuple(told)


def _counted(told: Any) -> "dict[str, int]":
    if not isinstance(told, dict) or not all(type(count) is int for count in told.values()):
        raise Unusable("what the chat template left out is not told")
    return dict(told)
