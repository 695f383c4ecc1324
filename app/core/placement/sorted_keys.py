"""Keys in order, with the first and the last at hand: blocks of a few hundred, so that no change touches them all."""

from __future__ import annotations

from bisect import bisect_left, insort

Key = tuple[int, str]  # price, node id
_BLOCK = 512


class SortedKeys:
    """Distinct keys, ascending. Empty shelves are falsy."""

    __slots__ = ("_blocks", "_highest")

    def __init__(self) -> None:
        self._blocks: list[list[Key]] = []
        self._highest: list[Key] = []  # of each block

    def __bool__(self) -> bool:
        return bool(self._blocks)

    @property
    def first(self) -> Key:
        return self._blocks[0][0]

    @property
    def last(self) -> Key:
        return self._highest[-1]

    def add(self, key: Key) -> None:
        """Put a key that is not there yet into its place."""
        if not self._blocks:
            self._blocks.append([key])
            self._highest.append(key)
            return
        place = min(bisect_left(self._highest, key), len(self._blocks) - 1)
        block = self._blocks[place]
        insort(block, key)
        if len(block) > 2 * _BLOCK:
            self._blocks.insert(place + 1, block[_BLOCK:])
            del block[_BLOCK:]
            self._highest.insert(place, block[-1])
        self._highest[place] = block[-1]
        if len(self._highest) > place + 1:
            self._highest[place + 1] = self._blocks[place + 1][-1]

    def remove(self, key: Key) -> None:
        """Take out a key that is there. Raises KeyError when it is not."""
        place = bisect_left(self._highest, key)
        block = self._blocks[place] if place < len(self._blocks) else []
        within = bisect_left(block, key)
        if within == len(block) or block[within] != key:
            raise KeyError(key)
        del block[within]
        if block:
            self._highest[place] = block[-1]
        else:
            del self._blocks[place], self._highest[place]
