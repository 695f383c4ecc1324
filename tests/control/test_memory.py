"""A reader with a memory sees what one without sees, whatever was written since, by whom, and in which order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import delete, event, select, text, update

from app.control import housekeeping
from app.core.model.snapshot import Snapshot
from app.db import tables as t
from app.db.decisions import job_memory
from app.db.decisions.changed_rows import has_news, look, rows_changed
from app.db.decisions.snapshots import Memory, freeze, read_snapshot
from app.db.unreadable import RowReading
from tests.control.world import World


async def see(world: World, memory: Memory | None = None, reading: RowReading | None = None) -> Snapshot:
    async with world.database.transaction() as connection:
        await freeze(connection)
        traits = world.control.context.traits()
        return await read_snapshot(
            connection, world.clock.now_ms(), traits, 300_000, memory=memory, reading=reading or RowReading()
        )


async def sees_the_same(world: World, memory: Memory) -> Snapshot:
    """What the reader with this memory sees; it fails where that is not all that there is."""
    remembered, whole = RowReading(), RowReading()
    seen = await see(world, memory, remembered)
    assert seen == await see(world, None, whole)
    assert remembered.unread.keys() == whole.unread.keys()
    assert (remembered.job_ids, remembered.node_ids) == (whole.job_ids, whole.node_ids)
    return seen


async def by_hand(world: World, statement: str, **values: Any) -> None:
    async with world.database.transaction() as connection:
        await connection.execute(text(statement), values)


async def test_a_jobs_whole_life_is_seen_by_a_reader_that_remembers(world: World) -> None:
    """From its submission to its end, with its runs and its machine."""
    memory = Memory()
    await sees_the_same(world, memory)
    job_id, node_id = await world.run_on_serverless()
    assert [job.state for job in (await sees_the_same(world, memory)).jobs] == ["running"]
    await world.report(node_id, "running", step=12)
    world.clock.advance(s=30)
    assert [job.step for job in (await sees_the_same(world, memory)).jobs] == [12]
    await world.submit()
    await sees_the_same(world, memory)
    await world.report(node_id, "exited", exit_code=0)
    assert job_id not in {job.job_id for job in (await sees_the_same(world, memory)).jobs}
    await world.decide()
    await world.work()
    await sees_the_same(world, memory)


async def test_what_did_not_change_is_the_same_object_and_is_not_read_again(world: World) -> None:
    """So that nothing looks at it again."""
    first, second = await world.submit(), await world.submit()
    memory = Memory()
    before = {job.job_id: job for job in (await see(world, memory)).jobs}
    await by_hand(world, "UPDATE jobs SET deadline_ms = deadline_ms + 1 WHERE id = :id", id=second)
    asked: list[Any] = []
    engine = world.database._engine.sync_engine
    event.listen(engine, "before_cursor_execute", lambda *call: asked.append((call[2], call[3])))
    after = {job.job_id: job for job in (await see(world, memory)).jobs}
    assert after[first] is before[first]
    assert after[second].deadline_ms == before[second].deadline_ms + 1
    (of_jobs,) = [values for statement, values in asked if "FROM jobs JOIN app_versions" in statement]
    assert first not in str(of_jobs)


async def test_a_transaction_that_commits_after_a_reading_it_began_before_is_seen_by_the_next(world: World) -> None:
    """Its number is lower than those that were seen already."""
    job_id = await world.submit()
    memory = Memory()
    async with world.database.transaction() as slow:
        await slow.execute(update(t.jobs).where(t.jobs.c.id == job_id).values(deadline_ms=7))
        await world.submit()
        assert len((await see(world, memory)).jobs) == 2
        await world.submit()
        assert len((await see(world, memory)).jobs) == 3
    seen = await sees_the_same(world, memory)
    assert next(job for job in seen.jobs if job.job_id == job_id).deadline_ms == 7


async def test_rows_that_are_written_and_deleted_by_hand_are_seen(world: World) -> None:
    """Whoever writes them: no code of ours has to say so."""
    job_id, node_id = await world.run_on_serverless()
    gone = await world.submit()
    memory = Memory()
    await see(world, memory)
    await by_hand(world, "UPDATE nodes SET price_micros_per_hour = 7 WHERE id = :id", id=node_id)
    await by_hand(world, "UPDATE runs SET running_ms = running_ms - 5 WHERE true")
    await by_hand(world, "DELETE FROM jobs WHERE id = :id", id=gone)
    seen = await sees_the_same(world, memory)
    assert [job.job_id for job in seen.jobs] == [job_id]
    assert seen.nodes[0].price_per_hour.micros == 7


async def test_a_job_with_a_lower_id_comes_in_its_place(world: World) -> None:
    """Clocks of API processes differ; snapshots are sorted all the same."""
    memory = Memory()
    for number in (3, 1, 2):
        await world.submit(id=f"job_0000000000000000000{number}")
        seen = await sees_the_same(world, memory)
    assert [job.job_id[-1] for job in seen.jobs] == ["1", "2", "3"]


async def test_a_row_that_cannot_be_read_is_noted_in_each_reading_until_it_can(world: World) -> None:
    job_id = await world.submit()
    other = await world.submit()
    memory = Memory()
    await see(world, memory)
    await by_hand(world, "UPDATE jobs SET resources = '7' WHERE id = :id", id=job_id)
    for _ in range(2):
        seen = await sees_the_same(world, memory)
        assert [job.job_id for job in seen.jobs] == [other]
    await by_hand(world, "UPDATE jobs SET resources = '{}' WHERE id = :id", id=job_id)
    assert [job.job_id for job in (await sees_the_same(world, memory)).jobs] == [job_id, other]


async def test_time_alone_changes_what_is_remembered(world: World) -> None:
    """An offer that failed is avoided for a while; a job's time is used up."""
    await world.submit(avoided_offers=["cloud/1"], not_before_ms=world.clock.ms)
    await world.submit(first_running_ms=world.clock.ms, max_duration_ms=5_000)
    memory = Memory()
    avoided, limited = (await sees_the_same(world, memory)).jobs
    assert avoided.avoided_offers and not limited.leaving
    world.clock.advance(ms=700_000)
    avoided, limited = (await sees_the_same(world, memory)).jobs
    assert not avoided.avoided_offers and limited.leaving


async def test_labels_matter_to_all_jobs_once_one_asks_for_them(world: World) -> None:
    await world.submit(labels={"team": "a"})
    memory = Memory()
    assert not (await sees_the_same(world, memory)).jobs[0].affinity.own
    asks = await world.submit(affinity={"anti_affinity": {"team": "a"}})
    assert (await sees_the_same(world, memory)).jobs[0].affinity.own == {"team=a"}
    await world.set_job(asks, state="cancelled")
    assert not (await sees_the_same(world, memory)).jobs[0].affinity.own


async def test_words_for_owners_are_not_read_again(world: World) -> None:
    """Why a job waits decides nothing: thousands of them may be written at once."""
    await world.submit()
    memory = Memory()
    await see(world, memory)
    await by_hand(world, "UPDATE jobs SET wait_reason = 'for a place'")
    async with world.database.transaction() as connection:
        assert memory.looked is not None
        changed = await Memory.changes(memory, connection, memory.looked)
    assert not changed


async def test_what_is_usual_for_an_app_reaches_a_crowd_of_jobs_in_turns(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One job that ends must not have a hundred thousand looked at again."""
    monkeypatch.setattr(job_memory, "_MOST_RELEARNT", 2)
    for _ in range(5):
        await world.submit()
    memory = Memory()
    await see(world, memory)
    history = {"app_id": world.app[0], "gpu_type": "A100", "samples": 1, "run_ms": 60_000.0, "updated_ms": 0}
    async with world.database.transaction() as connection:
        await connection.execute(t.run_history.insert().values(history))
    known = [sum(job.total_run_ms == 60_000 for job in (await see(world, memory)).jobs) for _ in range(3)]
    assert known == [2, 4, 5]


@pytest.mark.parametrize("lost", ["is old", "was another database", "deleted"])
async def test_a_reader_whose_news_nobody_keeps_reads_everything(world: World, lost: str) -> None:
    job_id = await world.submit()
    memory = Memory()
    await see(world, memory)
    assert memory.looked is not None
    await by_hand(world, "UPDATE jobs SET deadline_ms = 7 WHERE id = :id", id=job_id)
    await by_hand(world, "DELETE FROM changed_rows")
    if lost == "deleted":
        assert (await see(world, memory)).jobs[0].deadline_ms != 7, "else this test shows nothing"
        memory.forget()
    elif lost == "is old":
        memory.looked = replace(memory.looked, at_s=memory.looked.at_s - 901)
    else:
        memory.looked = replace(memory.looked, first_to_come=2**60)
    assert (await sees_the_same(world, memory)).jobs[0].deadline_ms == 7


async def test_only_what_is_an_hour_old_is_deleted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """In batches: what thousands of jobs have written in an hour must not hold up the lead."""
    monkeypatch.setattr(housekeeping, "_CHANGES_AT_ONCE", 2)
    for _ in range(3):
        await world.submit()
    await by_hand(world, "UPDATE changed_rows SET at = at - interval '61 minutes'")
    last = await world.submit()
    await housekeeping.tidy_up(world.control.context)
    assert await _changed(world) == [last]


async def _changed(world: World) -> list[str]:
    async with world.database.transaction() as connection:
        return list((await connection.execute(select(t.changed_rows.c.row_id))).scalars())


async def test_a_reading_that_fails_is_followed_by_one_of_everything(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a reading is none."""
    await world.submit()
    memory = Memory()
    await see(world, memory)
    second = await world.submit()

    async def broken(*_given: Any, **_named: Any) -> None:
        raise RuntimeError("lost")

    with monkeypatch.context() as patched:
        patched.setattr(memory.nodes, "read", broken)
        with pytest.raises(RuntimeError):
            await see(world, memory)
    assert memory.looked is None
    assert second in {job.job_id for job in (await sees_the_same(world, memory)).jobs}
    async with world.database.transaction() as connection:
        await connection.execute(delete(t.changed_rows))


async def test_what_a_restored_database_says_of_transactions_to_come_is_no_news(world: World) -> None:
    """They were another server's: else every poll would find some, until this one has come as far."""
    await world.submit()
    memory = Memory()
    await see(world, memory)
    assert memory.looked is not None
    await by_hand(
        world,
        "INSERT INTO changed_rows (xid, of_table, row_id, versioned) VALUES (:xid, 'jobs', 'job_z', true)",
        xid=2**60,
    )
    async with world.database.transaction() as connection:
        assert not await has_news(connection, memory.looked)
        assert not await rows_changed(connection, memory.looked, await look(connection))
