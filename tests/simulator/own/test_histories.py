"""Whatever happens to a team's own hosts: no job is lost, no GPU given twice, nothing rented that is there for nothing.

Each history is drawn from its number. `python -m benchmarks.pool_histories` plays a thousand.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from app.core.policies import policy_names
from app.simulator.own import fleet, playing, watching
from app.simulator.own.fleet import OwnFleet
from app.simulator.own.histories import PROJECTS, draw_history
from app.simulator.own.playing import WithPools
from app.simulator.own.watching import watch_history
from benchmarks import pool_histories

# `allpass-paper` says of itself that a job of several GPUs may wait for ever.
OTHERS = tuple(name for name in policy_names() if name not in ("allpass", "allpass-paper"))


@pytest.mark.parametrize("first", range(0, 32, 8))
def test_no_history_loses_a_job(first: int) -> None:
    for seed in range(first, first + 8):
        found = watch_history(draw_history(seed))
        assert (found.breaches, found.lost) == ([], 0), f"python -m benchmarks.pool_histories --first {seed}"


@pytest.mark.parametrize("policy", OTHERS)
def test_nor_does_any_other_policy(policy: str) -> None:
    for seed in (3, 4):
        found = watch_history(draw_history(seed), policy)
        assert (found.breaches, found.lost) == ([], 0), f"seed {seed}"


def test_the_same_number_draws_the_same_history() -> None:
    assert draw_history(7) == draw_history(7)
    assert draw_history(7) != draw_history(8)
    assert watch_history(draw_history(7)) == watch_history(draw_history(7))


def test_histories_are_bounded_and_have_everything() -> None:
    """Of two hundred: each kind of event and of pool is there, and none is larger than it says."""
    seen: Counter[str] = Counter()
    for seed in range(200):
        history = draw_history(seed)
        own, tasks = history.scenario.own, history.scenario.tasks
        assert own is not None
        assert 1 <= len(own.pools) <= 3 and 1 <= len(own.hosts) <= 12 and 6 <= len(tasks) <= 16
        assert {task.project for task in tasks} <= set(PROJECTS)
        seen.update(event.what for event in own.events)
        for one in own.pools:
            pool = one.pool
            asked = {
                "hours": pool.hours,
                "projects": pool.projects,
                "limit": pool.most_gpus,
                "walltime": one.walltime_ms,
            }
            seen.update(name for name, value in asked.items() if value)
    assert {name for name, many in seen.items() if many > 20} == set(seen)
    assert set(seen) == {"join", "drain", "unplug", "hours", "projects", "limit", "walltime"}


# The watcher sees what is wrong


def found_wrong(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, value: Any) -> str:
    """The first breach of the histories when this is so."""
    monkeypatch.setattr(owner, name, value)
    for seed in range(40):
        told = watch_history(draw_history(seed)).breaches
        if told:
            return told[0]
    return ""


def test_gpus_given_twice_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def free_of(host: Any, kind: str) -> Any:
        return tuple(gpu for gpu in host.gpus if gpu.name == kind)

    assert "are given out" in found_wrong(monkeypatch, fleet, "free_of", free_of)


def test_nodes_on_hosts_that_have_left_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    told = found_wrong(monkeypatch, WithPools, "_give_up_node", lambda _self, _node_id: None)
    assert "which has left" in told or "after" in told


def test_work_that_is_counted_twice_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def ran_ms(self: WithPools, run: Any) -> int:
        return super(WithPools, self)._ran_ms(run) + 1_000

    told = found_wrong(monkeypatch, playing.WithPools, "_ran_ms", ran_ms)
    assert "of its work" in told or "were lost" in told


def test_what_is_rented_beside_a_free_gpu_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    from app.core.policies.plan_builder import PlanBuilder

    told = found_wrong(monkeypatch, PlanBuilder, "start_on_own", lambda *_: False)
    assert "is free" in told


def test_others_in_a_pool_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is offered to, nor may be, whom its owner does not name: told by the law of plans, and by the watcher."""
    from app.core import invariants, market

    for module in (market, invariants, watching):
        monkeypatch.setattr(module, "is_for", lambda _job, _offer: True)
    assert "which is for" in found_wrong(monkeypatch, OwnFleet, "is_here", OwnFleet.is_here)


def test_the_benchmark_tells_what_it_found(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One JSON object: how many histories were not as they should, and which; one that raises ends no other."""
    assert '"value": 0, "goal": 0, "unit": "histories"' in _benchmark(monkeypatch, capsys)
    monkeypatch.setattr(pool_histories, "draw_history", lambda seed: draw_history(seed) if seed else 1 // seed)
    text = _benchmark(monkeypatch, capsys)
    assert '"value": 1, "goal": 0' in text and "ZeroDivisionError" in text and '"histories": 2' in text


def _benchmark(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr("sys.argv", ["pool_histories", "--histories", "2", "--processes", "1"])
    pool_histories.main()
    return capsys.readouterr().out
