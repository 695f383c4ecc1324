"""Two hosts with torch in memory, started together and only when a test needs them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.training.scripts import Host


@pytest.fixture(scope="session")
def hosts() -> Iterator[tuple[Host, Host]]:
    """Two "machines" whose processes order sets differently."""
    pair = (Host(hash_seed=1), Host(hash_seed=2))
    yield pair
    for host in pair:
        host.close()
