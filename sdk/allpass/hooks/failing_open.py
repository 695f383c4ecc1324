"""How a hook fails: it is told once, and the training goes on."""

from __future__ import annotations

from typing import Any, Callable, Set

from allpass.hooks.trainer import say


class FailingOpen:
    """Of one hook, by its name: "the Trainer's hook"."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._said: Set[str] = set()

    def __call__(self, act: "Callable[[], Any]", otherwise: Any) -> Any:
        """What it returns; `otherwise` where it fails, which is told, and tried again another time."""
        try:
            return act()
        except Exception as error:
            if repr(error) not in self._said:
                self._said.add(repr(error))
                say(f"{self._name} failed, and the training goes on: {error!r}")
            return otherwise
