"""Runs on rented nodes whose jobs may have GPUs of other speeds, by what could make another node the better one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from app.core.gpu_speeds import SAME, GpuSpeeds, time_permille


class SpeedGroup(NamedTuple):
    """What the runs of one group have in common: how fast which GPUs train their jobs, and what one of their GPUs costs
    per hour, in micro-dollars."""

    speeds: GpuSpeeds
    gpu_type: str
    gpu_micros: int

    def work_micros(self) -> int:
        """What an hour of the job's work costs there, on one GPU."""
        return self.gpu_micros * time_permille(self.speeds, self.gpu_type) // SAME


class RunsBySpeed:
    """Kept up to date, so that a decision looks at groups and not at each run."""

    def __init__(self) -> None:
        self._groups: dict[SpeedGroup, set[str]] = {}
        self._group_of: dict[str, SpeedGroup] = {}

    def put(self, run_id: str, group: SpeedGroup | None) -> None:
        """None: it is in no group, or no more."""
        before = self._group_of.get(run_id)
        if before == group:
            return
        if before is not None:
            del self._group_of[run_id]
            self._groups[before].discard(run_id)
            if not self._groups[before]:
                del self._groups[before]
        if group is not None:
            self._group_of[run_id] = group
            self._groups.setdefault(group, set()).add(run_id)

    def groups(self) -> Iterator[tuple[SpeedGroup, frozenset[str]]]:
        """Each with its runs, by id."""
        return ((group, frozenset(run_ids)) for group, run_ids in self._groups.items())
