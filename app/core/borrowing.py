"""Which guaranteed jobs have what their project is sure of in a pool, and which have borrowed it (ADR 0091). Pure.

In a pool with quotas a project is sure of so many GPUs, or of whole hosts (`app.core.reserving`), which count for
nobody here. The runs of its guaranteed jobs that have been there longest are within that; what it has beyond is
borrowed, as all is that a project without a quota has. In a pool without quotas nothing is borrowed.

A quota is of a number of GPUs, not of certain ones. So a run that was there before its host became another project's
quota has borrowed it whatever its own project's quota is, which it uses nothing of: its job is sure of as many
elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from app.core.model.pool import Pool


@dataclass(frozen=True, slots=True)
class PoolUse:
    """GPUs of a pool that a guaranteed job of a project has, or is about to begin on (`run_id` empty).
    `is_on_others_hosts`: of hosts that are another project's quota."""

    pool: str
    project_id: str
    gpus: int
    run_id: str = ""
    since_ms: int = 0
    is_on_others_hosts: bool = False


@dataclass(slots=True)
class PoolQuotas:
    """What is left of each quota, and which runs are beyond theirs."""

    _quotas: Mapping[str, Mapping[str, int]]
    _used: defaultdict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    borrowed: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, pools: Iterable[Pool], uses: Sequence[PoolUse]) -> PoolQuotas:
        found = cls({pool.name: dict(pool.quotas) for pool in pools if pool.has_quotas})
        for use in sorted(uses, key=lambda one: (not one.run_id, one.since_ms, one.run_id)):
            if use.pool not in found._quotas:
                continue
            if use.run_id and (use.is_on_others_hosts or not found.is_sure(use.pool, use.project_id, use.gpus)):
                found.borrowed.add(use.run_id)
            else:
                found.take(use.pool, use.project_id, use.gpus)
        return found

    def is_sure(self, pool: str, project_id: str, gpus: int) -> bool:
        """Whether the project may have others leave for so many GPUs more."""
        quotas = self._quotas.get(pool)
        return quotas is None or self._used[pool, project_id] + gpus <= quotas.get(project_id, 0)

    @property
    def pools(self) -> Collection[str]:
        """Those that have quotas."""
        return self._quotas.keys()

    def is_promised(self, pool: str, project_id: str, gpus: int) -> bool:
        """Whether so many GPUs more are within a quota that somebody has stated."""
        return pool in self._quotas and self.is_sure(pool, project_id, gpus)

    def words(self, pool: str, project_id: str) -> str | None:
        """How much of its quota the project uses; None in a pool without quotas."""
        quotas = self._quotas.get(pool)
        if quotas is None:
            return None
        used, sure = self._used[pool, project_id], quotas.get(project_id, 0)
        return f"its project has {used} of the {sure} GPUs of {pool} that it is sure of"

    def take(self, pool: str, project_id: str, gpus: int) -> None:
        """A job of the project is about to begin there."""
        self._used[pool, project_id] += gpus
