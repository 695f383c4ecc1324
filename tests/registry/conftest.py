"""A registry on loopback for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.registry.emulated import EmulatedRegistry

PYTHON = {
    "architecture": "amd64",
    "os": "linux",
    "config": {
        "Env": ["PATH=/usr/local/bin:/usr/bin", "PYTHON_VERSION=3.11.9", "CUDA_VERSION=13.0.2", "ODD"],
        "Cmd": ["python3"],
    },
    "history": [{"created_by": "/bin/sh -c pip install torch"}, {"created_by": "ENV PYTHON_VERSION=3.11.9"}],
}


@pytest.fixture
def registry() -> Iterator[EmulatedRegistry]:
    """It has team/node:1 for two platforms."""
    emulated = EmulatedRegistry()
    amd = emulated.put("team/node", PYTHON, layers=(3_000_000_000, 500_000_000))
    arm = emulated.put("team/node", {**PYTHON, "architecture": "arm64"}, layers=(1,))
    attestation = emulated.put("team/node", {"architecture": "unknown"}, layers=())
    emulated.put_index("team/node", "1", {"unknown/unknown": attestation, "linux/arm64": arm, "linux/amd64": amd})
    server = emulated.start()
    yield emulated
    server.shutdown()
    server.server_close()
