"""Fixtures: the fake control plane, and agents that end with the test."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.workers.agents import AgentProcess
from tests.workers.plane import Plane, serve
from workers.agent.build import build_zipapp


@pytest.fixture(scope="session")
def zipapp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("agent") / "allpass-agent.pyz"
    build_zipapp(target)
    return target


@pytest.fixture
def plane() -> Iterator[Plane]:
    plane = Plane()
    server = serve(plane)
    yield plane
    plane.let_go()
    server.shutdown()
    server.server_close()
    assert plane.problems == [], "the agent sent something that the contract does not allow"


@pytest.fixture
def start_agent(zipapp: Path, plane: Plane, tmp_path: Path, open_folder: Path) -> Iterator[Callable[..., AgentProcess]]:
    """Starts agents; the end of the test ends them, before `open_folder` goes. Extra variables as keyword arguments."""
    agents: list[AgentProcess] = []

    def start(root: Path | None = None, **environ: str) -> AgentProcess:
        agent = AgentProcess(zipapp, plane, root or tmp_path / f"machine-{len(agents)}", environ)
        agents.append(agent)
        return agent

    yield start
    left = [agent for agent in agents if agent.process.poll() is None]
    for agent in left:
        agent.terminate()
        agent.terminate()
    stuck = [agent.pid for agent in left if not _leaves(agent)]
    assert stuck == [], "an agent that was told twice to leave did not"


def _leaves(agent: AgentProcess) -> bool:
    """Whether it ends by itself. If not, it is ended."""
    try:
        agent.wait()
    except subprocess.TimeoutExpired:
        agent.kill()
        return False
    return True
