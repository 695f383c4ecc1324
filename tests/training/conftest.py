"""Pairs of hosts with torch in memory, started together and only when a test needs them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.training.forking import forks
from tests.training.scripts import HOOKED, Host


@pytest.fixture(scope="session")
def hosts() -> Iterator[tuple[Host, Host]]:
    """Two "machines" whose processes order sets differently."""
    pair = (Host(hash_seed=1), Host(hash_seed=2))
    yield pair
    for host in pair:
        host.close()


@pytest.fixture(scope="session")
def hooked_hosts() -> Iterator[tuple[Host, Host]]:
    """Two "machines" that have imported the libraries as a job does on an agent's machine."""
    pair = (Host(1, HOOKED), Host(2, HOOKED))
    yield pair
    for host in pair:
        host.close()


@pytest.fixture(scope="session")
def followers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where processes of a training on several GPUs are forked, rather than started."""
    with forks("tests.training.followers", tmp_path_factory.mktemp("followers")) as path:
        yield path
