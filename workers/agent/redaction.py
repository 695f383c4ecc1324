"""Keeps the values of secrets out of what leaves this machine as text.

Every place where a value, or a common encoding of it, stands in the text is masked, also where places overlap, and
however the text is cut into pieces: a piece is held back for as long as its end could be the beginning of a value.
What code does on purpose to hide a value from this (reversing it, encrypting it) cannot be found.
"""

from __future__ import annotations

from typing import Iterable, List, Sequence, Set, Tuple

MASK = b"***"
SHORTEST = 6  # bytes; anything shorter is too likely to stand in ordinary text
_LEAST_LINE = 12  # a line of a value with several is hidden on its own from this length on


class Redactor:
    """Knows the values. `stream` is for output that comes in pieces, `text` for text that is whole."""

    def __init__(self, values: Iterable[str]) -> None:
        found = {form for value in values for form in forms_of(value)}
        self._forms = sorted(found, key=lambda form: (-len(form), form))

    def stream(self) -> RedactedStream:
        return RedactedStream(self._forms)

    def text(self, text: str) -> str:
        """The text with every value masked."""
        if not self._forms:
            return text
        stream = self.stream()
        data = text.encode("utf-8", "replace")
        return (stream.feed(data) + stream.finish()).decode("utf-8", "replace")


class RedactedStream:
    """What comes out, joined, does not depend on how the input was cut."""

    def __init__(self, forms: Sequence[bytes]) -> None:
        self._forms = forms
        self._held = b""  # may be the beginning of a value
        self._covered = 0  # so many bytes of it belong to a value that began before it
        self._in_mask = False  # the last byte that was decided was masked: the mask goes on, it is not repeated

    def feed(self, data: bytes) -> bytes:
        """As much of the text as is decided."""
        if not self._forms:
            return data
        text = self._held + data
        return self._decide(text, self._undecided_from(text), self._places(text))

    def finish(self) -> bytes:
        """The rest. What it ends with is masked when it is a good part of a value: the output was cut off in it."""
        text, places = self._held, self._places(self._held)
        begun = self._undecided_from(text)
        if len(text) - begun >= SHORTEST:
            places.append((begun, len(text)))
        return self._decide(text, len(text), places)

    def _decide(self, text: bytes, end: int, places: List[Tuple[int, int]]) -> bytes:
        """`text` up to `end`, masked; the rest is held."""
        pieces: List[bytes] = []
        reach = self._covered  # up to here everything is written or masked
        for start, stop in [*sorted(place for place in places if place[0] < end), (end, end)]:
            if start > reach:
                pieces.append(text[reach:start])
                self._in_mask = False
            if start < end and not self._in_mask:
                pieces.append(MASK)
                self._in_mask = True
            reach = max(reach, stop)
        self._held = text[end:]
        self._covered = reach - end
        return b"".join(pieces)

    def _places(self, text: bytes) -> List[Tuple[int, int]]:
        """Where values stand, from and to; all of them, also inside each other."""
        places = []
        for form in self._forms:
            at = text.find(form)
            while at != -1:
                places.append((at, at + len(form)))
                at = text.find(form, at + 1)
        return places

    def _undecided_from(self, text: bytes) -> int:
        """Where the longest end of `text` begins that is the beginning of a value, but not all of it."""
        first = len(text)
        for form in self._forms:
            first = min(first, _begins_at(text, form, first))
        return first


def _begins_at(text: bytes, form: bytes, before: int) -> int:
    size = len(text)
    start = max(0, size - len(form) + 1)
    head, seen, wanted = form[:SHORTEST], memoryview(text), memoryview(form)
    at = text.find(head, start)
    while at != -1 and at < before:
        if seen[at:] == wanted[: size - at]:
            return at
        at = text.find(head, at + 1)
    for at in range(max(start, size - SHORTEST + 1), min(before, size)):
        if form.startswith(text[at:]):
            return at
    return size


def forms_of(value: str) -> Set[bytes]:
    """The value as it is likely to be written: itself, its lines, quoted for JSON, Python and URLs, base64, hex."""
    import json
    from urllib.parse import quote, quote_plus

    texts = {value, value.strip(), value.replace("\r\n", "\n"), value.replace("\n", "\r\n")}
    texts |= {line.strip() for line in value.splitlines() if len(line.strip()) >= _LEAST_LINE}
    for text in sorted(texts):
        texts |= {json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], repr(text)[1:-1]}
        quoted = {quote(text), quote(text, safe=""), quote(text, safe="!'()*~"), quote_plus(text)}
        texts |= quoted | {_lower_escapes(one) for one in quoted}
    forms = {text.encode("utf-8", "surrogatepass") for text in texts}
    raw = value.encode("utf-8", "surrogatepass")
    forms |= {raw.hex().encode(), raw.hex().upper().encode()}
    for content in {raw, value.strip().encode("utf-8", "surrogatepass")}:
        forms |= _base64_forms(content)
    return {form for form in forms if len(form) >= SHORTEST}


def _lower_escapes(quoted: str) -> str:
    head, *rest = quoted.split("%")
    return "%".join([head, *(part[:2].lower() + part[2:] for part in rest)])


def _base64_forms(content: bytes) -> Set[bytes]:
    """Both alphabets, alone and inside something longer, where the value begins at any of three places of a group.
    The characters that it shares with its neighbours are not part of the form."""
    from base64 import b64encode, urlsafe_b64encode

    forms = set()
    for encode in (b64encode, urlsafe_b64encode):
        forms |= {encode(content), encode(content).rstrip(b"=")}
        for before in range(3):
            whole = encode(b"\0" * before + content).rstrip(b"=")
            last_is_shared = (before + len(content)) % 3 != 0
            forms.add(whole[(0, 2, 3)[before] : len(whole) - last_is_shared])
    return forms
