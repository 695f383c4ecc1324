"""Checkpoints of which each machine of a job writes a part: complete at once, or not there at all."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import zlib
from dataclasses import dataclass, replace
from typing import Any

import pytest
from sqlalchemy import update

from allpass.wire.agent import CheckpointCommit
from app.core.lifecycle import Outcome
from app.core.model.job import JobState
from app.core.model.node import NodeState
from app.core.model.run import RunEnd, RunState
from app.db import tables as t
from app.db.checkpoints.objects import KEPT_MS
from app.db.engine import Database, make_engine
from app.db.nodes.agents import NodeIdentity, set_heartbeat
from app.db.runs.members import close_member
from app.ports.objects import content_key
from app.services.checkpoints.collect_garbage import adopt_strays, collect_garbage
from app.services.checkpoints.commit_checkpoint import commit_checkpoint
from app.services.checkpoints.follow_transfers import still_comes
from app.services.runs.end_run import end_run
from tests.control.dying import DyingDatabase, KilledError
from tests.seeds import new_id, seed_app, seed_job, seed_node, seed_project, seed_run
from tests.services.agents.conftest import BUNDLE, Place, Stage, entry, sha
from tests.services.agents.test_listed_checkpoints import listing

LOST = Outcome(RunEnd.NODE_LOST, JobState.WAITING, None, True, "its agent is silent")
READS = {"host": {"reads": ["listing", "gang", "parts"]}}


@dataclass
class Gang:
    """The runs of one job, by rank: `places[0]` leads."""

    stage: Stage
    places: list[Place]

    async def open(self, rank: int, step: int, *files: dict[str, Any], **more: Any) -> Any:
        place = self.places[rank]
        body = {**place.writer(), "step": step, "files": list(files), "part": True, **more}
        return await self.stage.post(place, "/checkpoints", body)

    async def commit(self, rank: int, part_id: str) -> Any:
        return await self.stage.post(self.places[rank], f"/checkpoints/{part_id}/commit", self.places[rank].job())

    async def send(self, rank: int, step: int, **files: bytes) -> str:
        """Open its part and store all of it."""
        opened = await self.open(rank, step, *(entry(path, data) for path, data in files.items()))
        assert opened.status_code == 200, opened.text
        assert opened.json()["part"] is True
        for data in files.values():
            await self.stage.store(self.places[rank], data)
        return str(opened.json()["checkpoint_id"])

    async def save(self, rank: int, step: int, **files: bytes) -> dict[str, Any]:
        """And commit it: what the answer says."""
        answer = await self.commit(rank, await self.send(rank, step, **files))
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def committed(self) -> list[Any]:
        return await self.stage.rows(t.checkpoints, state="committed")

    async def files(self, checkpoint_id: str) -> dict[str, int]:
        rows = await self.stage.rows(t.checkpoint_files, checkpoint_id=checkpoint_id)
        return {row.path: row.size_bytes for row in rows}

    async def ends(self) -> None:
        async with self.stage.database.transaction() as connection:
            assert await end_run(connection, self.stage.ids, self.places[0].run_id, LOST, now_ms=self.stage.clock.ms)

    async def begins_again(self) -> Gang:
        """On the same machines, with the next epochs."""
        stage, count = self.stage, len(self.places)
        epoch = self.places[0].epoch + count
        async with stage.database.transaction() as connection:
            await connection.execute(
                update(t.jobs).where(t.jobs.c.id == self.places[0].job_id).values(epoch=epoch, state=JobState.RUNNING)
            )
            await connection.execute(update(t.nodes).values(desired_version=t.nodes.c.desired_version + 1))
        return await seat(stage, self.places, epoch)

    async def spec(self, rank: int, **host: Any) -> dict[str, Any]:
        (run,) = (await self.stage.sync(self.places[rank], host=host or READS["host"])).json()["runs"]
        found: dict[str, Any] = run["spec"]
        return found


async def seat(stage: Stage, places: list[Place], epoch: int) -> Gang:
    """Give each place a run of the gang; the one that leads has the highest epoch."""
    lead_id, seated = new_id("run"), []
    async with stage.database.transaction() as connection:
        for rank, place in enumerate(places):
            own = epoch if rank == 0 else epoch - len(places) + rank
            beside = {"id": lead_id} if rank == 0 else {"member_of": lead_id}
            run_id = await seed_run(
                connection,
                place.project_id,
                place.job_id,
                place.node_id,
                epoch=own,
                state=RunState.RUNNING,
                node_rank=rank,
                **beside,
            )
            await set_heartbeat(connection, place.node_id, READS, now_ms=stage.clock.ms)
            seated.append(replace(place, run_id=run_id, epoch=own))
    return Gang(stage, seated)


async def gang_of(stage: Stage, nodes: int = 2) -> Gang:
    places = []
    async with stage.database.transaction() as connection:
        project_id = await seed_project(connection)
        app = await seed_app(connection, project_id, bundle_sha256=sha(BUNDLE), bundle_size_bytes=len(BUNDLE))
        job_id = await seed_job(connection, project_id, app, state=JobState.RUNNING, epoch=nodes)
        for _ in range(nodes):
            token = new_id("key")
            digest = hashlib.sha256(token.encode()).digest()
            node_id = await seed_node(connection, project_id, state=NodeState.READY, token_sha256=digest)
            places.append(Place(project_id, job_id, node_id, "", token))
    return await seat(stage, places, nodes)


@pytest.fixture
async def gang(stage: Stage) -> Gang:
    return await gang_of(stage)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_the_last_part_makes_the_checkpoint_of_all(gang: Gang, order: tuple[int, int]) -> None:
    """Whichever machine comes last. Before, the job has none; then it is resumed from by both, with every file, and its
    bytes are counted once each."""
    stage, written = gang.stage, [{".metadata": b"who has what", "__0_0.distcp": b"zero"}, {"__1_0.distcp": b"one"}]
    first, last = order
    told = await gang.save(first, 40, **written[first])
    assert told == {"waits_for": [last], "unheard": [last], "why": None}
    assert await gang.committed() == []
    assert (await stage.row(t.jobs, gang.places[0].job_id)).checkpoint_id is None
    assert await gang.save(last, 40, **written[last]) == {"waits_for": [], "unheard": [], "why": None}
    (row,) = await gang.committed()
    assert (row.step, row.run_id, row.epoch, row.size_bytes) == (40, gang.places[0].run_id, 2, 19)
    assert row.stored_bytes == 19
    assert (await stage.row(t.jobs, row.job_id)).checkpoint_id == row.id
    assert await stage.rows(t.checkpoint_part_pieces) == [], "what pins them from now on is the checkpoint"
    told_events = [one.message for one in await stage.rows(t.job_events, kind="checkpoint_committed")]
    assert told_events == ["checkpoint of step 40 saved (19 bytes, in parts of 2 machines)"]
    await gang.ends()
    again = await gang.begins_again()
    for rank in range(2):
        resume = (await again.spec(rank))["resume"]
        assert resume["step"] == 40
        assert {file["path"] for file in resume["files"]} == {".metadata", "__0_0.distcp", "__1_0.distcp"}


async def test_an_answer_that_was_lost_is_given_again(gang: Gang) -> None:
    """Opened and committed twice, before it is complete and after: one part each, one checkpoint."""
    first = await gang.send(0, 40, a=b"a")
    assert await gang.send(0, 40, a=b"a") == first
    assert (await gang.commit(0, first)).json()["waits_for"] == [1]
    assert (await gang.commit(0, first)).json()["waits_for"] == [1]
    second = await gang.send(1, 40, b=b"b")
    for _ in range(2):
        assert (await gang.commit(1, second)).json()["waits_for"] == []
        assert (await gang.commit(0, first)).json()["waits_for"] == []
        assert (await gang.open(0, 40, entry("a", b"a"))).json() == {"checkpoint_id": first, "urls": {}, "part": True}
    assert [row.id for row in await gang.committed()] == [first]


async def test_both_at_once_make_one(gang: Gang) -> None:
    parts = [await gang.send(rank, 40, **{f"f{rank}": b"x"}) for rank in range(2)]
    answers = await asyncio.gather(*(gang.commit(rank, parts[rank]) for rank in (0, 1, 0, 1)))
    assert {answer.status_code for answer in answers} == {200}
    assert (await gang.commit(0, parts[0])).json()["waits_for"] == []
    (row,) = await gang.committed()
    assert await gang.files(row.id) == {"f0": 1, "f1": 1}


async def test_a_part_that_is_not_stored_counts_for_nothing(gang: Gang) -> None:
    await gang.save(0, 40, a=b"a")
    opened = (await gang.open(1, 40, entry("b", b"b"))).json()
    assert set(opened["urls"]) == {sha(b"b")}
    answer = await gang.commit(1, opened["checkpoint_id"])
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conflict")
    assert await gang.committed() == []


async def test_the_same_file_of_two_machines_is_one(gang: Gang) -> None:
    """Also where small files travel packed together, and the packs differ: then the bytes are compared."""
    pack = b"config" + b"other"
    spans = [("config.json", 0, 6), ("own", 6, 5)]
    packed = [
        {
            "path": path,
            "size_bytes": length,
            "pieces": [{"sha256": sha(pack), "size_bytes": len(pack), "start": start, "length": length}],
        }
        for path, start, length in spans
    ]
    await gang.save(0, 40, **{"config.json": b"config"})
    opened = (await gang.open(1, 40, *packed)).json()
    await gang.stage.store(gang.places[1], pack)
    assert (await gang.commit(1, opened["checkpoint_id"])).json() == {"waits_for": [], "unheard": [], "why": None}
    (row,) = await gang.committed()
    assert await gang.files(row.id) == {"config.json": 6, "own": 5}


@pytest.mark.parametrize("other", [b"others", b"longer than it"])
async def test_other_bytes_under_one_name_are_refused_with_name_and_machines(gang: Gang, other: bytes) -> None:
    """Never silently one of them: the step is no checkpoint, the one before stands, and the first machine hears why,
    however often it asks."""
    await gang.save(0, 20, a=b"a")
    await gang.save(1, 20, b=b"b")
    first = await gang.send(0, 40, rng=b"seeded")
    await gang.commit(0, first)
    why = (
        "machine 0 and machine 1 have both written 'rng', and not the same bytes: let one of them write it, or give it "
        "another name on each machine"
    )
    assert (await gang.save(1, 40, rng=other))["why"] == why
    assert (await gang.commit(0, first)).json() == {"waits_for": [0], "unheard": [], "why": why}
    assert [row.step for row in await gang.committed()] == [20]
    assert (await gang.spec(1))["gang"]["part_step"] is None


async def test_packed_files_that_differ_are_found_by_their_bytes(gang: Gang) -> None:
    pack = b"zzzzzz" + b"other"
    piece = {"sha256": sha(pack), "size_bytes": len(pack)}
    files = [
        {"path": "config.json", "size_bytes": 6, "pieces": [{**piece, "start": 0, "length": 6}]},
        {"path": "own", "size_bytes": 5, "pieces": [{**piece, "start": 6, "length": 5}]},
    ]
    await gang.save(0, 40, **{"config.json": b"config"})
    opened = (await gang.open(1, 40, *files)).json()
    await gang.stage.store(gang.places[1], pack)
    assert "'config.json'" in (await gang.commit(1, opened["checkpoint_id"])).json()["why"]
    assert await gang.committed() == []


async def test_a_file_is_no_folder_on_another_machine(gang: Gang) -> None:
    await gang.save(0, 40, state=b"a")
    why = (await gang.save(1, 40, **{"state/1": b"b"}))["why"]
    assert why.startswith("'state' is a file on machine 0, and a folder on machine 1")


async def test_a_machine_may_have_nothing_to_write(gang: Gang) -> None:
    """But not all of them."""
    await gang.save(0, 40, a=b"a")
    assert (await gang.save(1, 40))["waits_for"] == []
    await gang.save(0, 50)
    assert (await gang.save(1, 50))["why"] == "no machine has written a file"
    assert [row.step for row in await gang.committed()] == [40]


async def test_a_machine_lost_between_the_parts_leaves_the_checkpoint_before(gang: Gang) -> None:
    """And nothing in the store: what it had sent is collected once nobody asks for it."""
    stage = gang.stage
    await gang.save(0, 20, a=b"a")
    await gang.save(1, 20, b=b"b")
    await gang.save(0, 40, a=b"newer")
    half = await gang.send(1, 40, b=b"half")
    stage.clock.advance(ms=KEPT_MS + 1)
    await collect_garbage(stage.database, stage.objects, stage.clock, gang.places[0].project_id)
    assert await stage.objects.head(content_key(gang.places[0].project_id, sha(b"newer"))), "it is waited for"
    await gang.ends()
    assert await stage.rows(t.checkpoint_parts) == await stage.rows(t.checkpoint_part_pieces) == []
    for rank, part in ((0, half), (1, half)):
        assert (await gang.commit(rank, part)).json()["error"]["code"] == "fenced"
        assert (await gang.open(rank, 40, entry("a", b"late"))).json()["error"]["code"] == "fenced"
    again = await gang.begins_again()
    assert (await again.spec(0))["resume"]["step"] == 20
    late = await gang.open(1, 40, entry("b", b"half"))
    assert (late.status_code, late.json()["error"]["code"]) == (409, "fenced"), "the run before is over"
    stage.clock.advance(ms=2 * KEPT_MS)
    await adopt_strays(stage.database, stage.objects, stage.clock, gang.places[0].project_id)
    stage.clock.advance(ms=2 * KEPT_MS)
    await collect_garbage(stage.database, stage.objects, stage.clock, gang.places[0].project_id)
    kept = {data for data in (b"a", b"b", b"newer", b"half") if await stored(stage, gang, data)}
    assert kept == {b"a", b"b"}


async def stored(stage: Stage, gang: Gang, data: bytes) -> bool:
    return await stage.objects.head(content_key(gang.places[0].project_id, sha(data))) is not None


async def test_who_ended_without_its_part_is_named(gang: Gang) -> None:
    """It is not waited for."""
    first = await gang.send(0, 40, a=b"a")
    assert (await gang.commit(0, first)).json()["why"] is None
    member = gang.places[1]
    async with gang.stage.database.transaction() as connection:
        await close_member(
            connection, member.run_id, member.node_id, now_ms=1, end_reason=RunEnd.FINISHED, end_message="done"
        )
    why = "machine 1 has not written its part of step 40, and its code is over"
    assert (await gang.commit(0, first)).json() == {"waits_for": [1], "unheard": [1], "why": why}


async def test_a_part_outlives_the_code_of_its_machine(gang: Gang) -> None:
    """A further machine that has stored it may leave before the first one has."""
    await gang.save(1, 40, b=b"b")
    member = gang.places[1]
    async with gang.stage.database.transaction() as connection:
        await close_member(
            connection, member.run_id, member.node_id, now_ms=1, end_reason=RunEnd.PREEMPTED, end_message="asked"
        )
    assert (await gang.save(0, 40, a=b"a"))["waits_for"] == []
    (row,) = await gang.committed()
    assert await gang.files(row.id) == {"a": 1, "b": 1}


async def test_what_a_further_machine_cannot_keep_the_first_one_hears(gang: Gang) -> None:
    """In its words; the job's owner hears it from the first machine, once."""
    first = await gang.send(0, 40, a=b"a")
    body = {**gang.places[1].writer(), "step": 40, "why": "pipe is not a regular file"}
    assert (await gang.stage.post(gang.places[1], "/refusals", body)).status_code == 204
    assert await gang.stage.rows(t.job_events, kind="checkpoint_refused") == []
    assert (await gang.commit(0, first)).json()["why"] == "machine 1: pipe is not a regular file"
    why = {**gang.places[0].writer(), "step": 40, "why": "machine 1: pipe is not a regular file"}
    assert (await gang.stage.post(gang.places[0], "/refusals", why)).status_code == 204
    (event,) = await gang.stage.rows(t.job_events, kind="checkpoint_refused")
    assert "machine 1: pipe is not a regular file" in event.message
    assert (await gang.spec(1))["gang"]["part_step"] is None, "the first machine has given it up"


async def test_the_others_hear_which_step_the_first_one_is_at(gang: Gang) -> None:
    """At once, and whether all agents send parts at all."""
    told = (await gang.spec(1))["gang"]
    assert (told["parts"], told["part_step"]) == (True, None)
    before = (await gang.stage.row(t.nodes, gang.places[1].node_id)).desired_version
    await gang.send(1, 60, b=b"b")
    assert (await gang.spec(1))["gang"]["part_step"] is None
    await gang.send(0, 40, a=b"a")
    assert (await gang.stage.row(t.nodes, gang.places[1].node_id)).desired_version > before
    assert (await gang.spec(1))["gang"]["part_step"] == 40
    told = (await gang.spec(0, reads=["listing", "gang"]))["gang"]
    assert told["parts"] is False, "one of them has an agent of the release before"


async def test_steps_that_never_meet_do_not_pile_up(gang: Gang) -> None:
    for step in range(10, 200, 10):
        await gang.save(0, step, a=b"%d" % step)
        await gang.save(1, step + 1, b=b"%d" % step)
    assert len(await gang.stage.rows(t.checkpoint_parts)) == 6
    assert await gang.committed() == []
    await gang.save(1, 190, b=b"190")
    assert [row.step for row in await gang.committed()] == [190]
    left = await gang.stage.rows(t.checkpoint_parts, whole_ms=None)
    assert [(row.node_rank, row.step) for row in left] == [(1, 191)]


async def test_what_a_machine_writes_anew_takes_the_place_of_its_part(gang: Gang) -> None:
    """Until it is complete; then the step is saved, and stays what it is."""
    await gang.save(0, 40, a=b"first")
    await gang.save(0, 40, a=b"second")
    await gang.save(1, 40, b=b"b")
    assert (await gang.save(1, 40, b=b"again"))["waits_for"] == []
    (row,) = await gang.committed()
    assert await gang.files(row.id) == {"a": 6, "b": 1}


async def test_very_many_files_are_listed_as_one(gang: Gang) -> None:
    """A part with rows and one with a listing become a listing of both."""
    many = [(f"m/{number}", 1) for number in range(10_001)]
    data = b"x" * 10_001
    await gang.save(0, 40, **{".metadata": b"who", "empty": b""})
    opened = (await gang.open(1, 40, listing=listing(many, data))).json()
    await gang.stage.store(gang.places[1], data)
    assert (await gang.commit(1, opened["checkpoint_id"])).json() == {"waits_for": [], "unheard": [], "why": None}
    (row,) = await gang.committed()
    assert row.size_bytes == 10_004
    (kept,) = await gang.stage.rows(t.checkpoint_listings)
    assert kept.file_count == 10_003
    await gang.ends()
    resume = (await (await gang.begins_again()).spec(0))["resume"]
    assert [piece["sha256"] for piece in resume["listing"]["pieces"]] == [sha(b"who"), sha(data)]
    told = json.loads(zlib.decompress(base64.b64decode(resume["listing"]["files"])))
    assert told == [[".metadata", 3], ["empty", 0], *([path, size] for path, size in many)]


async def test_a_job_on_one_machine_has_no_parts(stage: Stage) -> None:
    place = await stage.running()
    body = {**place.writer(), "step": 1, "files": [entry("a", b"a")], "part": True}
    answer = await stage.post(place, "/checkpoints", body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "part")


async def test_nobody_commits_the_part_of_another(gang: Gang, stage: Stage) -> None:
    part = await gang.send(1, 40, b=b"b")
    assert (await gang.commit(0, part)).status_code == 404
    foreign = await stage.running()
    answer = await stage.post(foreign, f"/checkpoints/{part}/commit", gang.places[1].job())
    assert answer.status_code == 404
    whole = {**gang.places[1].writer(), "step": 1, "files": [entry("a", b"a")]}
    answer = await stage.post(gang.places[1], "/checkpoints", whole)
    assert answer.json()["error"]["code"] == "fenced", "by itself, a further machine writes no checkpoint"


async def test_the_first_machine_is_waited_for_while_parts_of_others_come(gang: Gang) -> None:
    stage, lead = gang.stage, gang.places[0].run_id
    await gang.save(0, 40, a=b"a")
    stage.clock.advance(s=100)
    since_ms = stage.clock.ms
    opened = (await gang.open(1, 40, entry("b", b"b"), entry("c", b"c"))).json()
    assert await still_comes(stage.database, stage.objects, lead, since_ms=since_ms - 1, now_ms=stage.clock.ms)
    stage.clock.advance(s=100)
    now = {"since_ms": stage.clock.ms - 10, "now_ms": stage.clock.ms}
    assert not await still_comes(stage.database, stage.objects, lead, **now)
    await stage.store(gang.places[1], b"b")
    assert await still_comes(stage.database, stage.objects, lead, **now)
    assert opened["part"]


async def test_the_server_dies_at_any_statement_and_the_next_try_completes_it(stage: Stage, database_url: str) -> None:
    """Never half a checkpoint: before the last step none is there, after it the whole; asking again is enough."""
    lifetime = 0
    while True:
        lifetime += 1
        gang = await gang_of(stage)
        parts = [await gang.send(rank, 40, **{f"f{rank}": b"%d" % lifetime, "both": b"same"}) for rank in range(2)]
        assert (await gang.commit(0, parts[0])).json()["waits_for"] == [1]
        engine = make_engine(database_url, pool_size=1, timeout_s=30)
        try:
            is_through = await dies(stage, gang, parts[1], DyingDatabase(engine, lifetime))
        finally:
            await engine.dispose()
        rows = [row for row in await gang.committed() if row.job_id == gang.places[0].job_id]
        assert len(rows) <= 1
        for row in rows:
            assert await gang.files(row.id) == {"f0": len(str(lifetime)), "f1": len(str(lifetime)), "both": 4}
        assert (await gang.commit(1, parts[1])).json() == {"waits_for": [], "unheard": [], "why": None}
        (row,) = [row for row in await gang.committed() if row.job_id == gang.places[0].job_id]
        assert set(await gang.files(row.id)) == {"f0", "f1", "both"}
        await gang.ends()
        if is_through:
            break
    assert lifetime > 15


async def dies(stage: Stage, gang: Gang, part: str, dying: Database) -> bool:
    """Whether the commit came through before the server died."""
    place = gang.places[1]
    try:
        await commit_checkpoint(
            dying,
            stage.objects,
            NodeIdentity(place.node_id, place.project_id, NodeState.READY),
            part,
            CheckpointCommit(job_id=place.job_id, epoch=place.epoch),
            keep_last=2,
            now_ms=stage.clock.ms,
        )
    except KilledError:
        return False
    return True
