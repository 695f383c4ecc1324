"""Drawn histories of jobs on several machines keep what they promise; more of them with `--sweep`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from app.core.gang_offers import GangNode
from app.core.gangs import GatheredGangs
from app.core.model.job import JobState
from app.core.model.plan import Demote, ProvisionGang
from app.core.model.snapshot import Snapshot
from app.core.topology import SwitchRule
from app.simulator.classes import gang_histories
from app.simulator.classes.gang_histories import play_gang_history


def test_histories_are_kept(request: pytest.FixtureRequest) -> None:
    """A job on several machines has all or none, nothing half rented stays so, and everything that could run has run.
    Something happens in them, too."""
    number = 1_000 if request.config.getoption("--sweep") else 40
    found = [play_gang_history(seed) for seed in range(number)]
    assert [(one.seed, one.breaches) for one in found if one.breaches] == []
    assert sum(one.gangs_begun for one in found) > 10 * number
    assert sum(one.lost for one in found) > 0
    assert sum(one.moved for one in found) > 0


def test_histories_are_kept_where_switches_are_chosen_as_the_paper_prints_it() -> None:
    found = [play_gang_history(seed, rule=SwitchRule.LITERAL) for seed in range(15)]
    assert [(one.seed, one.breaches) for one in found if one.breaches] == []
    assert sum(one.gangs_begun for one in found) > 150


def test_a_history_is_the_same_again() -> None:
    assert play_gang_history(7, steps=20) == play_gang_history(7, steps=20)


def test_a_play_in_which_a_job_leaves_before_all_is_ready_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    known = gang_histories.gather

    def too_early(snapshot: Snapshot, rented: Sequence[GangNode], **given: Any) -> GatheredGangs:
        found = known(snapshot, rented, **given)
        trains = {job.job_id for job in snapshot.jobs if job.state is JobState.RUNNING}
        leaving = [
            Demote(one.job_id, "", "at once", one.versions)
            for one in found.claims
            if isinstance(one, ProvisionGang) and one.job_id in trains
        ]
        return replace(found, claims=(*found.claims, *leaving))

    monkeypatch.setattr(gang_histories, "gather", too_early)
    breaches = [breach for seed in range(20) for breach in play_gang_history(seed).breaches]
    assert any("is asked to leave for 0 machines" in one for one in breaches)


def test_a_play_in_which_policies_see_such_jobs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang_histories, "gather", lambda snapshot, *_, **__: GatheredGangs(snapshot))
    found = play_gang_history(3)
    assert any("a policy has placed" in one for one in found.breaches)
    assert any("of its machines" in one for one in found.breaches)
