"""Server-sent events, from bytes: the parser of the format that browsers read as `EventSource`."""

from __future__ import annotations

from dataclasses import dataclass

from allpass.errors import UnexpectedReply

LONGEST_EVENT_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class ServerSentEvent:
    """`kind` is "message" unless the server named another; `event_id` is the last one that was told."""

    kind: str
    data: str
    event_id: str

    @property
    def number(self) -> int:
        """The id as a position; 0 if it is none."""
        return int(self.event_id) if self.event_id.isascii() and self.event_id.isdigit() else 0


class EventReader:
    """Takes bytes in any pieces, and gives the events that are complete. Comments and what is unknown are ignored."""

    def __init__(self) -> None:
        self._rest = b""
        self._held_bytes = 0
        self._kind = ""
        self._data: list[str] = []
        self._last_id = ""
        self._begun = False

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """The events that these bytes complete. Raises UnexpectedReply for one that never ends."""
        text = self._rest + chunk
        ends_in_cr = text.endswith(b"\r")  # its \n may be in the next piece
        lines = text.replace(b"\r\n", b"\n")
        if ends_in_cr:
            lines = lines[:-1]
        *complete, rest = lines.replace(b"\r", b"\n").split(b"\n")
        self._rest = rest + b"\r" if ends_in_cr else rest
        events = [event for line in complete if (event := self._line(line)) is not None]
        if len(self._rest) + self._held_bytes > LONGEST_EVENT_BYTES:
            raise UnexpectedReply(f"the stream sends an event of more than {LONGEST_EVENT_BYTES} bytes")
        return events

    def _line(self, line: bytes) -> ServerSentEvent | None:
        if not self._begun:
            self._begun, line = True, line.removeprefix(b"\xef\xbb\xbf")
        if not line:
            return self._complete()
        name, _, value = line.decode("utf-8", "replace").partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
            self._held_bytes += len(line)
        elif name == "event":
            self._kind = value
        elif name == "id" and "\0" not in value:
            self._last_id = value
        return None

    def _complete(self) -> ServerSentEvent | None:
        kind, data = self._kind or "message", self._data
        self._kind, self._data, self._held_bytes = "", [], 0
        return ServerSentEvent(kind, "\n".join(data), self._last_id) if data else None
