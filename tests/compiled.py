"""Statements are compiled once in a process of the tests, not once for each of their databases.

SQLAlchemy keeps compiled statements with the engine that sent them. The service has one engine; the tests have
thousands, and compiled for more than a third of their time.
"""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.engine import Engine


class SharedCache(dict[Any, Any]):
    """SQLAlchemy's key begins with the engine's own dialect: all of the same class spell statements alike."""

    def get(self, key: Any, default: Any = None) -> Any:
        dialect, *statement = key
        return super().get((type(dialect), *statement), default)

    def __setitem__(self, key: Any, compiled: Any) -> None:
        dialect, *statement = key
        super().__setitem__((type(dialect), *statement), compiled)


def share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all engines made from now on use one cache."""
    cache, begin = SharedCache(), Engine.__init__

    def begin_sharing(self: Engine, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        self._compiled_cache = cache

    monkeypatch.setattr(Engine, "__init__", begin_sharing)
