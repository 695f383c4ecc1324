"""Looks that are bounded in time, as a decision waits for them: what one has left out comes first in the next."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def for_a_while(items: Iterable[T], most_s: float, clock: Callable[[], float] = time.monotonic) -> Iterator[T]:
    """The first, and one after the other until so many seconds have passed since."""
    since = clock()
    for item in items:
        yield item
        if clock() - since >= most_s:
            return


class LookingLine:
    """Who comes first, of whoever is to be looked at again and again: nobody waits while others come twice."""

    def __init__(self) -> None:
        self._line: dict[str, None] = {}  # whoever came last is its end

    def of(self, names: Collection[str], most_s: float, clock: Callable[[], float] = time.monotonic) -> Iterator[str]:
        """Of these, as many as that time allows. Who has not been among the names before comes last."""
        self._line = {name: None for name in self._line if name in names} | dict.fromkeys(names)
        for name in for_a_while(tuple(self._line), most_s, clock):
            self._line[name] = self._line.pop(name)
            yield name
