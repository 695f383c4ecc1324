"""What is the same for all databases and all applications of a process of the tests is made once in it.

The service has one engine and one application; the tests have thousands of either. SQLAlchemy keeps compiled statements
with the engine that sent them, and FastAPI makes an application's routes ready when its first request looks for its
own: together they took more than half of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fastapi import routing
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
    """Let all engines and applications made from now on use one cache of each kind."""
    _share_statements(monkeypatch)
    monkeypatch.setattr(routing._IncludedRouter, "_build_effective_context", _remembering())


def _share_statements(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, begin = SharedCache(), Engine.__init__

    def begin_sharing(self: Engine, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        self._compiled_cache = cache

    monkeypatch.setattr(Engine, "__init__", begin_sharing)


def _remembering() -> Callable[[routing._IncludedRouter, Any], Any]:
    """Of the service's own routes, which every application includes alike. Others' hold what only one of them has."""
    made: dict[tuple[int, str, int | None], Any] = {}
    build = routing._IncludedRouter._build_effective_context

    def build_once(self: routing._IncludedRouter, route: Any) -> Any:
        if not getattr(getattr(route, "endpoint", None), "__module__", "").startswith("app.api."):
            return build(self, route)
        key = (id(route), self.include_context.prefix, self.include_context.max_body_size)
        if key not in made:
            made[key] = build(self, route)  # it holds the route, whose id is therefore nobody else's
        return made[key]

    return build_once
