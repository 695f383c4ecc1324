"""The Slurm adapter sits the exam of all providers, against a real Slurm on this host."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from app.core.model.money import Money
from app.core.model.node import Tier
from app.errors import RateLimited
from app.ports.provider import Provider
from providers.conformance.harness import TROUBLE_RETRY_AFTER_MS, BillLine, Trouble, Ways
from providers.conformance.suite import ProviderConformance, new_label
from tests.providers.cloud_process import PATIENCE_S, eventually
from tests.providers.slurm.account import adapter, job_of
from tests.slurm_cluster import SlurmCluster

_DOWN = 'echo "Unable to contact slurm controller (connect failure)" >&2; exit 1\n'
_TIMED_OUT = 'echo "error: Socket timed out on send/recv operation" >&2; exit 1\n'
_REAL = '{real} "$@" >/dev/null 2>&1\n'
FAULTS: dict[Trouble, tuple[str, str]] = {
    Trouble.CREATE_REPLY_LOST: ("sbatch", _REAL + "kill -9 $$\n"),
    Trouble.CREATE_ERROR_AFTER_EFFECT: ("sbatch", _REAL + _TIMED_OUT),
    Trouble.CREATE_TOO_SLOW: ("sbatch", _REAL + "exec sleep 60\n"),
    Trouble.CREATE_DROPPED_BEFORE_EFFECT: ("sbatch", "kill -9 $$\n"),
    Trouble.CREATE_ERROR_BEFORE_EFFECT: ("sbatch", _TIMED_OUT),
    Trouble.CREATE_NO_CAPACITY: (
        "sbatch",
        'echo "sbatch: error: Batch job submission failed: Requested nodes are busy" >&2; exit 1\n',
    ),
    Trouble.CREATE_OFFER_GONE: (
        "sbatch",
        'echo "sbatch: error: Batch job submission failed: Invalid partition name specified" >&2; exit 1\n',
    ),
    Trouble.CREATE_NEVER_READY: ("sbatch", '{real} --begin=now+30minutes "$@"; exit\n'),
    Trouble.GET_DROPPED: ("squeue", "kill -9 $$\n"),
    Trouble.LIST_ERROR: ("squeue", _DOWN),
    Trouble.TERMINATE_REPLY_LOST: ("scancel", _REAL + "kill -9 $$\n"),
    Trouble.TERMINATE_ERROR_BEFORE_EFFECT: ("scancel", _DOWN),
}


class ArmedPace:
    """Every turn at once, until one is told to wait: Slurm has no limit that it would tell; ours is the pace."""

    is_armed = False

    async def turn(self, lane: str, every_ms: int) -> None:
        if self.is_armed:
            self.is_armed = False
            raise RateLimited("our own limit", retry_after_ms=TROUBLE_RETRY_AFTER_MS)


class SlurmHarness:
    """The cluster that all tests share; each finds it without faults and without jobs. It knows no prices."""

    tiers = frozenset({Tier.OWN})
    patience_s = PATIENCE_S
    ways = Ways(impossible=frozenset({Trouble.CREATE_PRICE_MOVED}))

    def __init__(self, cluster: SlurmCluster) -> None:
        self._cluster = cluster
        self._pace = ArmedPace()
        self.provider: Provider = adapter(cluster, pace=self._pace)

    async def arrange(self, trouble: Trouble) -> None:
        if trouble in {Trouble.CREATE_RATE_LIMITED, Trouble.LIST_RATE_LIMITED}:
            self._pace.is_armed = True
            return
        name, script = FAULTS[trouble]
        self._cluster.strike(name, script)

    def with_wrong_key(self) -> Provider:
        return adapter(self._cluster, conf=str(self._cluster.with_wrong_key()))

    def unreachable(self) -> Provider:
        return adapter(self._cluster, conf=str(self._cluster.of_nobody()))

    async def rent_for_somebody_else(self) -> str:
        """Of the same user, named as we name ours, and without our mark."""
        label = new_label()
        return f"{self._cluster.submit(f'--job-name={label}', '--time=5')}-{label}"

    async def kill_inside(self, ref: str) -> None:
        for pid in eventually(lambda: self._cluster.processes(job_id=job_of(ref))):
            with suppress(ProcessLookupError):  # it was the child of one that was just killed
                os.kill(pid, signal.SIGKILL)

    async def bill(self, ref: str) -> BillLine:
        job = self._cluster.job(job_of(ref))
        if job["NodeList"] in {"(null)", ""}:
            return BillLine(Money(0), None, None)
        return BillLine(Money(0), int(job["StartTime"]) * 1000, int(job["EndTime"]) * 1000)


class TestSlurm(ProviderConformance):
    @pytest.fixture
    async def harness(self, slurm: SlurmCluster) -> AsyncIterator[SlurmHarness]:
        harness = SlurmHarness(slurm)
        yield harness
        await harness.provider.close()
