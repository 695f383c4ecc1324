"""What an object of the script's has in the place of something of its own, until that is put back."""

from __future__ import annotations

from typing import Any, Dict

_NOTHING = object()


class Instead:
    """Attributes of one object."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner
        self._before: Dict[str, Any] = {}

    def put(self, name: str, value: Any) -> None:
        self._before[name] = self._owner.__dict__.get(name, _NOTHING)
        setattr(self._owner, name, value)

    def take_back(self) -> None:
        """Calling it twice is harmless."""
        while self._before:
            name, value = self._before.popitem()
            if value is _NOTHING:
                self._owner.__dict__.pop(name, None)
            else:
                setattr(self._owner, name, value)
