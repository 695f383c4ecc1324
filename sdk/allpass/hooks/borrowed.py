"""Arguments of a training that are other than the script has them, for a while."""

from __future__ import annotations

from typing import Any, Dict


class Borrowed:
    """Those of `trainer`, whose release may know some of the names or none."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._before: "Dict[str, Any]" = {}

    def set(self, name: str, value: Any) -> None:
        arguments = self._trainer.args
        if hasattr(arguments, name) and name not in self._before:
            self._before[name] = getattr(arguments, name)
            setattr(arguments, name, value)

    def give_back(self) -> None:
        for name, value in self._before.items():
            setattr(self._trainer.args, name, value)
        self._before = {}
