"""Which types of GPU one search asks for together: an answer is cut at a limit, the dearest offers first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

SEARCHES_AT_ONCE = 3  # for one listing: ten a minute are allowed, and a machine's price is read by one, too
_NEVER_MS = -1
_KEPT_MS = 1_200_000  # what an answer said is believed no longer, should its turn not come again

Ask = Callable[[tuple[str, ...]], Awaitable[list[Any]]]


@dataclass(eq=False)
class SearchGroup:
    """Types that are searched for together, with the rows of the newest answer about them."""

    kinds: tuple[str, ...]
    rows: list[Any] = field(default_factory=list)
    asked_ms: int = _NEVER_MS

    def is_believed(self, now_ms: int) -> bool:
        return self.asked_ms == _NEVER_MS or now_ms - self.asked_ms <= _KEPT_MS


class Kinds:
    """All types of GPU that are wanted, in as few groups as their answers allow.

    Cheapest first, and cut at a limit: one search for all of them shows hundreds of small GPUs, and no H100. A group
    whose answer reaches the limit is asked for in halves from then on; where all of them together stay well below it,
    they are one again. Each listing asks for the group whose answer is oldest; the other answers stand meanwhile.
    Searches have a limit by the day, too, so there are no more of them than listings, but for those that are cut.
    """

    def __init__(self, kinds: Sequence[str], limit: int) -> None:
        """`kinds`: none stands for every type, which cannot be divided."""
        self._all, self._limit = tuple(kinds), limit
        self._groups = [SearchGroup(self._all)]

    async def search(self, ask: Ask, *, now_ms: int, most: int = SEARCHES_AT_ONCE) -> list[Any]:
        """The rows of all groups, newest answers first, after at most so many searches. What `ask` raises ends the
        listing; what it got is kept."""
        for _ in range(most):
            group = min(self._groups, key=lambda each: each.asked_ms)
            rows = await ask(group.kinds)
            if len(rows) < self._limit or len(group.kinds) <= 1:
                group.rows, group.asked_ms = rows, now_ms
                break
            self._divide(group, rows)
        self._join()
        return self.believed(now_ms)

    def believed(self, now_ms: int) -> list[Any]:
        """What earlier answers said, as far as it is believed still."""
        newest = sorted(self._groups, key=lambda each: -each.asked_ms)
        return [row for group in newest if group.is_believed(now_ms) for row in group.rows]

    def _divide(self, group: SearchGroup, rows: list[Any]) -> None:
        """What was seen stays until the halves are asked for, which are next."""
        middle = len(group.kinds) // 2
        place = self._groups.index(group)
        self._groups[place : place + 1] = [SearchGroup(group.kinds[:middle], rows), SearchGroup(group.kinds[middle:])]

    def _join(self) -> None:
        oldest_ms = min(group.asked_ms for group in self._groups)
        rows = [row for group in self._groups for row in group.rows]
        if len(self._groups) > 1 and oldest_ms != _NEVER_MS and len(rows) < self._limit // 2:
            self._groups = [SearchGroup(self._all, rows, oldest_ms)]
