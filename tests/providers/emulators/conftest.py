"""Fixtures of the emulators' shared parts."""

from __future__ import annotations

import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from providers.emulators.estate import Estate, EstateOptions
from tests.providers.cloud_process import processes_under
from workers.machines.processes import send_signal

OpenEstate = Callable[..., Awaitable[Estate]]


@pytest.fixture
async def open_estate(tmp_path: Path) -> AsyncIterator[OpenEstate]:
    """Opens estates on one data directory, one after the other; whatever they leave behind is ended."""
    opened: list[Estate] = []

    async def open_one(*, die_with_us: bool = True, **options_of: Any) -> Estate:
        folder = tmp_path / "estate"
        folder.mkdir(exist_ok=True)
        options = EstateOptions(folder, die_with_us=die_with_us, **options_of)
        opened.append(Estate(options, lambda: time.time_ns() // 1_000_000))
        await opened[-1].open()
        return opened[-1]

    yield open_one
    for estate in opened:
        await estate.close()
    for identity in processes_under(tmp_path):
        send_signal(identity, signal.SIGKILL)


@pytest.fixture
async def estate(open_estate: OpenEstate) -> Estate:
    return await open_estate()
