"""How an emulator behaves until told otherwise: named switches with defaults, set by a test or on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Value = bool | int | str


class Switches:
    """Each keeps the type of its default."""

    def __init__(self, defaults: Mapping[str, Value]) -> None:
        self._defaults = dict(defaults)
        self._values = dict(defaults)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def all(self) -> dict[str, Value]:
        return dict(self._values)

    def set(self, wanted: Mapping[str, Any]) -> None:
        """All of them or none: raises ValueError naming the first that is unknown or of the wrong type."""
        for name, value in wanted.items():
            if name not in self._defaults:
                known = ", ".join(sorted(self._defaults)) or "none"
                raise ValueError(f"{name} is not a switch; they are: {known}")
            kind = type(self._defaults[name])
            if type(value) is not kind or (isinstance(value, int) and value < 0):
                raise ValueError(f"{name} is {value!r}; it must be {_WORDS[kind]}")
        self._values.update(wanted)

    def set_text(self, text: str) -> None:
        """From a command line, `name=value`. Raises ValueError."""
        name, equals, value = text.partition("=")
        if not equals or name not in self._defaults:
            raise ValueError(f"{text!r} is not NAME=VALUE with one of: {', '.join(sorted(self._defaults))}")
        default = self._defaults[name]
        meant: Value = value
        if isinstance(default, bool):
            meant = {"true": True, "false": False}.get(value, value)
        elif isinstance(default, int) and value.isdecimal():
            meant = int(value)
        self.set({name: meant})

    def reset(self) -> None:
        """Back to the defaults."""
        self._values = dict(self._defaults)


_WORDS: Mapping[type, str] = {bool: "true or false", int: "a whole number of at least 0", str: "a text"}
