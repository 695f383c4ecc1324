"""Drawn histories of projects with quotas in one pool: HiveD's promise, watched at every step.

In each, projects with quotas of whole nodes submit and end guaranteed jobs while spot jobs fill what is idle. Beside
the pool every project has a private cluster of its quota, packed by the same rule (`QuotaPool` for that project alone).
Watched: whatever fits there is granted in the pool, and nothing else; ending the spot jobs on the granted places makes
it fit, and all have gone within the grace; a bound node is of one project; no GPU is held twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from app.core.eviction import EvictionRule, GuaranteedNeed, NodeRoom, SpotJob, Victims, choose_victims
from app.core.eviction.cost import GrowingCost
from app.core.quotas import Admission, NodeQuota, PoolNode, QuotaPool

KIND, NODE_GPUS, GRACE_MS = "A", 8, 60_000


@dataclass(frozen=True, slots=True)
class QuotaHistory:
    """What a history came to. `breaches` says what was not kept; `longest_ms` is the longest wait for spot jobs."""

    seed: int
    granted: int
    refused: int
    ended: int
    longest_ms: int
    breaches: list[str] = field(default_factory=list)


def play_quota_history(seed: int, steps: int = 30) -> QuotaHistory:
    """The history of this seed, of so many submissions and ends."""
    play = _QuotaPlay(Random(seed))  # noqa: S311 - a simulation
    for step in range(steps):
        play.step(step)
    return QuotaHistory(seed, play.granted, play.refused, play.ended, play.longest_ms, play.breaches)


class _QuotaPlay:
    def __init__(self, chance: Random) -> None:
        self.granted = self.refused = self.ended = self.longest_ms = 0
        self.breaches: list[str] = []
        self._chance = chance
        nodes = [PoolNode(f"n{number}", KIND, NODE_GPUS) for number in range(chance.randint(2, 6))]
        self._node_ids = [node.node_id for node in nodes]
        left = len(nodes)
        quotas = []
        for number in range(chance.randint(1, 3)):
            share = chance.randint(0, left)
            left -= share
            quotas.append(NodeQuota(f"p{number}", KIND, share))
        self._pool = QuotaPool(nodes, quotas)
        self._private = {
            quota.project: QuotaPool([PoolNode(f"v{n}", KIND, NODE_GPUS) for n in range(quota.nodes)], [quota])
            for quota in quotas
        }
        self._live: dict[str, str] = {}
        self._spot: dict[str, tuple[str, int, int]] = {}  # node, GPUs, time that its end takes

    def step(self, number: int) -> None:
        """A submission or an end; then spot jobs fill some of what is idle."""
        chance = self._chance
        if self._live and chance.random() < 0.45:
            job_id = chance.choice(sorted(self._live))
            self._pool.give(job_id)
            self._private[self._live.pop(job_id)].give(job_id)
        else:
            self._submit(f"j{number}", chance.choice(sorted(self._private)))
        for node_id in self._node_ids:
            while (idle := self._idle(node_id)) and chance.random() < 0.8:
                gpus = chance.randint(1, idle)
                self._spot[f"s{number}-{len(self._spot)}-{node_id}"] = node_id, gpus, chance.randint(0, GRACE_MS)

    def _submit(self, job_id: str, project: str) -> None:
        gpus, parts = self._chance.choice((1, 2, 4, 8)), self._chance.choice((1, 1, 1, 2))
        alone = self._private[project].grant(project, KIND, gpus, parts)
        prefer = self._chance.sample(self._node_ids, len(self._node_ids))
        grant = self._pool.grant(project, KIND, gpus, parts, prefer)
        if grant.admission is not alone.admission:
            self.breaches.append(f"{job_id}: {grant.words}; its private cluster says {alone.admission}")
        if grant.admission is not Admission.GUARANTEED or alone.admission is not Admission.GUARANTEED:
            self.refused += 1
            return
        self.granted += 1
        self._reclaim(job_id, grant.places)
        self._pool.take(job_id, project, grant.places)
        self._private[project].take(job_id, project, alone.places)
        self._live[job_id] = project

    def _reclaim(self, job_id: str, places: Mapping[str, int]) -> None:
        """Spot jobs on the granted places go."""
        for node_id, gpus in places.items():
            room = NodeRoom(node_id, (self._idle(node_id),))
            jobs = [
                SpotJob(name, {node_id: (held,)}, held, 0, 0, GrowingCost(held))
                for name, (where, held, _) in self._spot.items()
                if where == node_id
            ]
            need = GuaranteedNeed(job_id, (gpus,))
            chosen = choose_victims(need, [room], jobs, EvictionRule.LOST_WORK, 0)
            if not isinstance(chosen, Victims):
                self.breaches.append(f"{job_id}: {chosen.words[0]}")
                continue
            for name in chosen.ended:
                self.longest_ms = max(self.longest_ms, self._spot.pop(name)[2])
                self.ended += 1
            if self._idle(node_id) < gpus:
                self.breaches.append(f"{job_id}: {node_id} has {self._idle(node_id)} idle GPUs, not {gpus}")

    def _idle(self, node_id: str) -> int:
        return self._pool.idle(node_id) - sum(gpus for where, gpus, _ in self._spot.values() if where == node_id)
