"""What goes on beside a run's own life, so that `run.py` is read without it: the one list, and its hooks."""

from __future__ import annotations

import threading
from typing import Any, Dict, Mapping, Protocol, Sequence

from workers.agent.api import Writer
from workers.agent.gpus_wanted import GpusWanted
from workers.agent.machine import Machine
from workers.agent.process import Stoppable
from workers.agent.usage import UsageGauge
from workers.agent.watching import RowWatch
from workers.agent.workspace import Workspace


class Capability(Protocol):
    """No hook raises or waits: what takes time is done in a thread of its own, until the run is gone."""

    def tell(self, spec: Mapping[str, Any]) -> None:
        """What the server wants of the run, whenever it says so; from the sync threads, before the run does it."""

    def environ(self) -> Dict[str, str]:
        """Further variables of its process, right before that begins; from the run's thread, under the run's lock."""

    def begin(self, process: Stoppable) -> None:
        """The run's process has begun; from the run's thread, under no lock."""


def capabilities_of(
    spec: Mapping[str, Any],
    writer: Writer,
    machine: Machine,
    workspace: Workspace,
    gone: threading.Event,
    *,
    shares: bool,
) -> Sequence[Capability]:
    return (
        RowWatch(spec["project_id"], writer, machine, workspace, gone),
        UsageGauge(spec, writer, machine, gone),
        GpusWanted(spec, machine, workspace, shares=shares),
    )
