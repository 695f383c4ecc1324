"""The program that rented machines fetch from us and run."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache

from workers.agent.build import packed_agent


@dataclass(frozen=True, slots=True)
class AgentProgram:
    """The agent as one file, and the hash that a machine holds it against."""

    data: bytes
    sha256: str


@cache
def agent_program() -> AgentProgram:
    """Built from the sources of this very installation, once in a process. Takes a moment: not for an event loop.

    Processes of the same release and the same Python build the same bytes, so any of them may serve what another
    has announced.
    """
    data = packed_agent()
    return AgentProgram(data, hashlib.sha256(data).hexdigest())
