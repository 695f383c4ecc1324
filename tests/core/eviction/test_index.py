"""The index answers as looking at every node does, while nodes change and time goes by."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.eviction import EvictionRule, GuaranteedNeed, NodeRoom, NoVictims, SpotJob, VictimIndex, choose_victims
from app.core.eviction import index as index_module
from tests.core.eviction.makers import room, spot, worlds


@settings(max_examples=40, deadline=None)
@given(worlds(6), st.data())
def test_the_index_equals_looking_at_all_nodes(
    world: tuple[list[NodeRoom], list[SpotJob]], data: st.DataObject
) -> None:
    """Through puts, drops, protections that lapse and instants that pass: the same cost, none where there is none."""
    rooms, jobs = {one.node_id: one for one in world[0]}, [job for job in world[1] if len(job.holds) == 1]
    index, now_ms = VictimIndex(), 20
    for node_id, one in rooms.items():
        index.put(node_id, one.free, [job for job in jobs if node_id in job.holds], now_ms)
    for _ in range(6):
        now_ms += data.draw(st.sampled_from([0, 1, 7, 1_000]))
        if jobs and data.draw(st.booleans()):
            gone = jobs.pop(data.draw(st.integers(0, len(jobs) - 1)))
            (node_id,) = gone.holds
            index.put(node_id, rooms[node_id].free, [job for job in jobs if node_id in job.holds], now_ms)
        part = (data.draw(st.sampled_from([1, 2, 4, 8])),)
        busy = [one for one in rooms.values() if one.free < part]
        plain = choose_victims(GuaranteedNeed("g", part), busy, jobs, EvictionRule.LOST_WORK, now_ms)
        found = index.best(part, now_ms)
        if len(busy) < len(rooms):
            assert found is not None
            assert found.cover.cost_gpu_us == 0
        elif isinstance(plain, NoVictims):
            assert found is None
        else:
            assert found is not None
            assert (found.cover.cost_gpu_us, found.rank[2]) == (plain.cost_gpu_us, next(iter(plain.places)))


def test_only_nodes_that_could_be_cheaper_are_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 200 nodes whose costs all grow alike, a question minutes later computes one or two."""
    index, asked = VictimIndex(), []
    for number in range(200):
        index.put(f"n{number}", (0,), [spot(f"j{number}", 8, 1000 * number, f"n{number}", growth=8_000)], 0)
    assert index.best((4,), 0) is not None
    real = index_module.by_lost_work
    monkeypatch.setattr(index_module, "by_lost_work", lambda *asking: asked.append(1) or real(*asking))
    found = index.best((4,), 300_000)
    assert found is not None
    assert found.rank[2] == "n0"
    assert len(asked) <= 2


def test_shapes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger who asks for ever new shapes makes the index larger no further; old ones are answered again."""
    monkeypatch.setattr(index_module, "MOST_SHAPES", 2)
    index = VictimIndex()
    index.put("n1", (0,), [spot("a", 8, 7)], 0)
    found = [index.best((gpus,), 0) for gpus in (1, 2, 3, 1)]
    assert [one and one.cover.job_ids for one in found] == [("a",)] * 4


def test_instants_that_run_back_and_strangers_are_refused() -> None:
    """Costs only grow in one direction; a node that is not there cannot go."""
    index = VictimIndex()
    index.put("n1", room("n1", 1).free, [], 10)
    with pytest.raises(ValueError, match="9 ms is before 10 ms"):
        index.best((1,), 9)
    with pytest.raises(KeyError):
        index.drop("n2")
    index.drop("n1")
    assert index.best((1,), 10) is None
