"""What is sent to the database: counted, so that a test can say what must not grow with the rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine, event


@dataclass
class Statements:
    """Each with its parameters, in the order in which they were sent. One that is sent many times counts as often."""

    sent: list[tuple[str, Any]] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.sent)

    @property
    def most_parameters(self) -> int:
        return max((len(given) for _, given in self.sent), default=0)


@contextmanager
def counted() -> Iterator[Statements]:
    """All that any engine of this process sends meanwhile."""
    seen = Statements()

    def note(_connection: Any, _cursor: Any, statement: str, given: Any, _context: Any, many: bool) -> None:
        seen.sent.extend((statement, one) for one in (given if many else [given]))

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(Engine, "before_cursor_execute", note)
