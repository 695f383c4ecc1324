"""HiveD's promise over 2,000 drawn histories."""

from __future__ import annotations

import pytest

from app.core import quotas
from app.simulator.classes.quota_histories import GRACE_MS, play_quota_history


def test_the_guaranteed_share_is_reachable_within_the_grace() -> None:
    """Whatever fits a project's private cluster has its place in the pool once spot jobs have gone."""
    played = [play_quota_history(seed, steps=12) for seed in range(2_000)]
    assert [one for one in played if one.breaches] == []
    assert max(one.longest_ms for one in played) <= GRACE_MS
    assert min(sum(one.granted for one in played), sum(one.refused for one in played)) > 5_000
    assert sum(one.ended for one in played) > 5_000


def test_the_watch_sees_a_broken_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nodes are bound beyond the quota, histories tell."""
    real = quotas.QuotaPool._packed

    def greedy(self, kind, gpus, parts, mine, quota, prefer):  # type: ignore[no-untyped-def]
        return real(self, kind, gpus, parts, mine, quota + (len(self._nodes) > quota), prefer)

    monkeypatch.setattr(quotas.QuotaPool, "_packed", greedy)
    assert any(play_quota_history(seed).breaches for seed in range(50))
