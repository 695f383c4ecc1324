"""With every answer an agent hears what its node will likely run next: right, of its project alone, and cheap."""

from __future__ import annotations

from typing import Any

from sqlalchemy import event as sqlalchemy_event
from sqlalchemy import update

from app.core.model.job import JobState, Resources
from app.core.model.node import NodeState, Tier
from app.db.decisions.next_jobs import MOST_WAITING
from app.db.tables import jobs, nodes
from app.ports.objects import content_key
from app.services.nodes.advise_node import READ_EVERY_MS
from tests.seeds import T0_MS, new_id, resources_json, seed_app, seed_job, seed_node
from tests.services.agents.conftest import Place, Stage, sha

FAR_MS = T0_MS + 10 * 3_600_000


async def wait_(stage: Stage, place: Place, bundle: bytes = b"code", **job: Any) -> str:
    """A job of the place's project that waits, of an app of its own."""
    app: dict[str, Any] = {"bundle_sha256": sha(bundle), "bundle_size_bytes": len(bundle)}
    app.update({name: job.pop(name) for name in ("pip", "environment_sha256", "entrypoint") if name in job})
    project_id = job.pop("project_id", place.project_id)
    async with stage.database.transaction() as connection:
        return await seed_job(connection, project_id, await seed_app(connection, project_id, **app), **job)


async def told(stage: Stage, place: Place, **more: Any) -> list[dict[str, Any]]:
    """What the next answer advises, read anew."""
    stage.clock.advance(ms=READ_EVERY_MS)
    answer = await stage.sync(place, **more)
    assert answer.status_code == 200
    advice: list[dict[str, Any]] = answer.json()["next"]
    return advice


async def test_the_earliest_deadlines_are_told_with_all_that_is_needed(stage: Stage) -> None:
    """Code by a URL that gives exactly these bytes, the pip set, the recipe's model; with orders and without any."""
    place = await stage.running()
    assert await told(stage, place) == []
    await wait_(stage, place, b"third", deadline_ms=FAR_MS + 2)
    await wait_(stage, place, b"second", deadline_ms=FAR_MS + 1, parameters={"model": "mine"})
    recipe: dict[str, Any] = {"entrypoint": "finetune.py", "parameters": {"model": "org/base"}}
    recipe.update(pip=["torch>=2"], environment_sha256="1" * 64, template={"secrets": ["HF_TOKEN"]})
    await wait_(stage, place, b"first", deadline_ms=FAR_MS, state=JobState.WAITING, **recipe)
    first, second = await told(stage, place)
    key = content_key(place.project_id, sha(b"first"))
    assert first.pop("bundle_url") == stage.objects.sign_get(key, expires_ms=stage.clock.ms + 900_000)
    assert first == {
        "project_id": place.project_id,
        "bundle_sha256": sha(b"first"),
        "bundle_size_bytes": 5,
        "pip": ["torch>=2"],
        "environment_sha256": "1" * 64,
        "model": "org/base",
        "pins": [],
    }
    assert (second["bundle_sha256"], second["model"]) == (sha(b"second"), None)
    version = (await stage.sync(place)).json()["version"]
    unchanged = (await stage.sync(place, seen=version)).json()
    assert unchanged["runs"] is None
    assert [one["bundle_sha256"] for one in unchanged["next"]] == [sha(b"first"), sha(b"second")]


async def test_what_goes_on_is_told_with_the_versions_that_it_began_with(stage: Stage) -> None:
    """A fine-tuning that begins anew, and a script of one's own, take what the machine has."""
    place = await stage.running()
    began: dict[str, Any] = {"libraries": {"torch": "2.6.0+cu124"}, "pip": ["torch>=2"], "state": JobState.WAITING}
    saved = began | {"checkpoint_id": new_id("ckpt"), "checkpoint_step": 5}
    await wait_(stage, place, b"goes on", deadline_ms=FAR_MS, entrypoint="finetune.py", **saved)
    await wait_(stage, place, b"anew", deadline_ms=FAR_MS + 1, entrypoint="finetune.py", **began)
    assert [one["pins"] for one in await told(stage, place)] == [["torch==2.6.0"], []]
    other = await stage.running()
    await wait_(stage, other, b"script", deadline_ms=FAR_MS, **saved)
    assert [one["pins"] for one in await told(stage, other)] == [[]]


async def test_a_sweep_is_told_once(stage: Stage) -> None:
    """Its jobs need the same; the next app follows."""
    place = await stage.running()
    app: dict[str, Any] = {"bundle_sha256": sha(b"sweep"), "bundle_size_bytes": 5}
    async with stage.database.transaction() as connection:
        sweep = await seed_app(connection, place.project_id, **app)
        for _ in range(5):
            await seed_job(connection, place.project_id, sweep)
    await wait_(stage, place, b"other", deadline_ms=FAR_MS)
    assert [one["bundle_sha256"] for one in await told(stage, place)] == [sha(b"sweep"), sha(b"other")]


async def test_nothing_is_told_of_other_projects_or_of_what_does_not_fit(stage: Stage) -> None:
    """Nor of jobs that do not wait."""
    place, other = await stage.running(), await stage.running()
    await wait_(stage, other, b"theirs")
    for needs in (Resources(gpus_min=2), Resources(gpu_memory_bytes_min=80 * 1024**3), Resources(gpu_type="H100")):
        await wait_(stage, place, b"large", resources=resources_json(needs))
    for state in (JobState.PAUSED, JobState.RUNNING, JobState.SUCCEEDED):
        await wait_(stage, place, b"not waiting", state=state)
    await wait_(stage, place, b"held", not_before_ms=FAR_MS)
    assert await told(stage, place) == []
    assert [one["bundle_sha256"] for one in await told(stage, other)] == [sha(b"theirs")]


async def test_serverless_and_leaving_nodes_are_told_nothing(stage: Stage) -> None:
    """The one ends with its run, the other takes no other one."""
    serverless, place = await stage.running(tier=Tier.SERVERLESS), await stage.running()
    await wait_(stage, serverless)
    await wait_(stage, place)
    assert await told(stage, serverless) == []
    assert len(await told(stage, place)) == 1
    async with stage.database.transaction() as connection:
        node = update(nodes).where(nodes.c.id == place.node_id)
        await connection.execute(node.values(ends_ms=stage.clock.ms + READ_EVERY_MS + 1))
    assert await told(stage, place) == []
    async with stage.database.transaction() as connection:
        await connection.execute(node.values(ends_ms=None, state=NodeState.DRAINING))
    assert await told(stage, place) == []


async def test_who_is_not_among_the_first_submitted_is_not_looked_at(stage: Stage) -> None:
    """However many jobs wait, an answer looks at so many of them."""
    place = await stage.running()
    async with stage.database.transaction() as connection:
        app = await seed_app(connection, place.project_id, bundle_sha256=sha(b"many"))
        for _ in range(MOST_WAITING):
            await seed_job(connection, place.project_id, app)
    await wait_(stage, place, b"late", deadline_ms=T0_MS)
    assert [one["bundle_sha256"] for one in await told(stage, place)] == [sha(b"many")]


async def test_nodes_of_a_project_share_what_is_read(stage: Stage) -> None:
    """Within two seconds who waits is read once, and an agent of a project where nobody waits costs no query more."""
    place = await stage.running()
    async with stage.database.transaction() as connection:
        await seed_node(connection, place.project_id)
    statements: list[str] = []
    engine = stage.database._engine.sync_engine

    @sqlalchemy_event.listens_for(engine, "before_cursor_execute")
    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    async def asked(ms: int) -> int:
        stage.clock.advance(ms=ms)
        statements.clear()
        assert (await stage.sync(place, seen=10**6)).status_code == 200
        return sum("app_versions" in statement and "UNION ALL" in statement for statement in statements)

    assert [await asked(READ_EVERY_MS), await asked(1), await asked(READ_EVERY_MS - 2), await asked(1)] == [1, 0, 0, 1]
    without = len(statements)
    await wait_(stage, place)
    await asked(READ_EVERY_MS)
    assert len(statements) == without + 1
    await asked(1)
    async with stage.database.transaction() as connection:
        await connection.execute(update(jobs).values(state=JobState.CANCELLED))
    assert await told(stage, place) == []
