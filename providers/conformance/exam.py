"""The exam for whoever has pytest and nothing else: every question as a plain function, on an event loop of its own."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import wraps
from typing import Any

import pytest

from providers.conformance.harness import Harness
from providers.conformance.suite import ProviderConformance


class ProviderExam:
    """Subclass it as `Test...` and give it `open_harness`: everything else is here.

    Each question gets a harness of its own. With a plugin for asynchronous tests, take `ProviderConformance` and give
    it a `harness` fixture instead.
    """

    _runner: asyncio.Runner

    def open_harness(self) -> AbstractAsyncContextManager[Harness]:
        """The provider under test, with the other side of its wire; closed after each question."""
        raise NotImplementedError

    @pytest.fixture
    def harness(self) -> Iterator[Harness]:
        with asyncio.Runner() as self._runner:
            opened = self.open_harness()
            harness = self._runner.run(opened.__aenter__())
            try:
                yield harness
            finally:
                self._runner.run(opened.__aexit__(None, None, None))


def _asked(question: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @wraps(question)
    def ask(self: ProviderExam, **given: Any) -> None:
        async def answer() -> None:
            await question(self, **given)

        self._runner.run(answer())

    return ask


for _name, _question in inspect.getmembers(ProviderConformance, inspect.iscoroutinefunction):
    setattr(ProviderExam, _name, _asked(_question))
