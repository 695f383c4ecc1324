"""A database in which a project has much of everything: seeded by the server itself, in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Table, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core import codec
from app.core.model.checkpoint import CheckpointState
from app.core.model.job import JobState
from app.core.model.node import NodeState
from app.core.model.run import RunState
from app.db import tables as t
from tests.core.samples import MARKET
from tests.seeds import T0_MS, new_id, seed_app, seed_job, seed_node, seed_project, seed_run

MANY = 50_000
APPS = 10_000
GONE_NODES = 20_000
EVENTS = 100_000
POOLS = 250
HOSTS = 2_500
METERED_MS = T0_MS + 3_600_000  # up to when the busy node's meter was read
_LONG_AGO_MS = T0_MS + 1_000


@dataclass(frozen=True)
class Ground:
    """`job_id` has the events, the points and the checkpoint; `node_id` is the machine of all past runs."""

    project_id: str
    app: tuple[str, str]
    job_id: str
    node_id: str
    checkpoint_id: str


async def lay_out(connection: AsyncConnection) -> Ground:
    """Everything, in one transaction."""
    project_id = await seed_project(connection, "crowded")
    app = await seed_app(connection, project_id)
    await _repeat(connection, t.apps, app[0], APPS - 1, "app_1", name="name || n")
    its_app = f"'{_first_of('app_1')}' || lpad(n::text, 7, '0')"
    await _repeat(connection, t.app_versions, app[1], APPS - 1, "ver_1", app_id=its_app)
    job_id = past_job(0)
    await seed_job(connection, project_id, app, id=job_id, state=JobState.SUCCEEDED, ended_ms=_LONG_AGO_MS)
    await _repeat(connection, t.jobs, job_id, MANY - 1, "job_0")
    await seed_job(connection, project_id, app, id=waiting_job(0), deadline_ms=T0_MS + 86_400_000)
    await _repeat(connection, t.jobs, waiting_job(0), MANY - 1, "job_1")
    offer = {"offer": codec.encode(MARKET)}
    node_id = await seed_node(connection, project_id, ready_ms=T0_MS, billed_from_ms=T0_MS, gpu_count=8, **offer)
    await _past_runs(connection, project_id, job_id, node_id)
    gone = await seed_node(connection, project_id, state=NodeState.TERMINATED, meter_closed=True, **offer)
    await _repeat(connection, t.nodes, gone, GONE_NODES - 1, "node_1")
    await _operations(connection, project_id, gone)
    checkpoint_id = await _checkpoint(connection, project_id, job_id)
    await _records(connection, project_id, job_id, node_id)
    await _decisions(connection)
    await _pools(connection)
    return Ground(project_id, app, job_id, node_id, checkpoint_id)


def past_job(number: int) -> str:
    """A job that is over: of so many, this one."""
    return f"{_first_of('job_0')}{number:07}"


def waiting_job(number: int) -> str:
    """A job that waits for a place."""
    return f"{_first_of('job_1')}{number:07}"


def _first_of(kind: str) -> str:
    """What ids of this kind begin with, before the seven digits of their number."""
    prefix, digit = kind.split("_")
    return f"{prefix}_01MCC5RM0000{digit}"


async def _repeat(
    connection: AsyncConnection, table: Table, row_id: str, count: int, kind: str, **changed: str
) -> None:
    """The same row again, with ids that end with its number. `changed`: other columns, as SQL."""
    new_id = f"'{_first_of(kind)}' || lpad(n::text, 7, '0')"
    values = {column.name: column.name for column in table.columns} | {"id": new_id} | changed
    quoted = ", ".join(f'"{name}"' for name in values)
    given = ", ".join(f'"{value}"' if value == name else value for name, value in values.items())
    statement = f"""
        INSERT INTO {table.name} ({quoted})
        SELECT {given} FROM {table.name}, generate_series(1, :count) AS n WHERE id = :row_id
    """
    await connection.execute(text(statement), {"count": count, "row_id": row_id})


async def _past_runs(connection: AsyncConnection, project_id: str, job_id: str, node_id: str) -> None:
    """Each job that is over ran on this node, one after the other; the meter has been read since."""
    ended: dict[str, Any] = {"state": RunState.ENDED, "ended_ms": _LONG_AGO_MS}
    run_id = await seed_run(connection, project_id, job_id, node_id, **ended)
    await connection.execute(update(t.allocations).values(to_ms=_LONG_AGO_MS))
    await _repeat(connection, t.runs, run_id, MANY - 1, "run_1")
    await _run(
        connection,
        """INSERT INTO run_jobs (run_id, job_id, epoch)
           SELECT :run || lpad(n::text, 7, '0'), :job || lpad(n::text, 7, '0'), 1 FROM generate_series(1, :count) n""",
        run=_first_of("run_1"),
        job=_first_of("job_0"),
        count=MANY - 1,
    )
    await _run(
        connection,
        """INSERT INTO allocations (id, run_id, node_id, gpu_indices, from_ms, to_ms)
           SELECT 'aloc_' || n, :run || lpad(n::text, 7, '0'), :node, '{0}', b - n, b - n
           FROM generate_series(1, :count) n, (SELECT CAST(:at AS bigint) AS b) AS before""",
        run=_first_of("run_1"),
        node=node_id,
        at=_LONG_AGO_MS,
        count=MANY - 1,
    )
    await _run(
        connection, "INSERT INTO node_heartbeats VALUES (:node, :at, '{}')", node=node_id, at=METERED_MS + 10_000
    )
    await connection.execute(update(t.nodes).where(t.nodes.c.id == node_id).values(metered_until_ms=METERED_MS))


async def _operations(connection: AsyncConnection, project_id: str, node_id: str) -> None:
    await _run(
        connection,
        """INSERT INTO provider_operations
               (id, node_id, project_id, provider, kind, state, not_before_ms, created_ms, ended_ms)
           SELECT 'op_' || n, :node, :project, 'fake', 'terminate', 'done', :at, :at, :at
           FROM generate_series(1, :count) n""",
        node=node_id,
        project=project_id,
        at=_LONG_AGO_MS,
        count=GONE_NODES,
    )


async def _checkpoint(connection: AsyncConnection, project_id: str, job_id: str) -> str:
    """One of many pieces, all of them stored."""
    checkpoint_id = new_id("ckpt")
    run_id = (await connection.execute(text("SELECT min(id) FROM runs"))).scalar_one()
    await connection.execute(
        t.checkpoints.insert().values(
            id=checkpoint_id,
            project_id=project_id,
            job_id=job_id,
            run_id=run_id,
            epoch=1,
            step=1,
            state=CheckpointState.COMMITTED,
            manifest_sha256="m" * 64,
            size_bytes=MANY,
            opened_ms=T0_MS,
            committed_ms=T0_MS,
        )
    )
    files = t.checkpoint_files.insert().values(checkpoint_id=checkpoint_id, path="model", size_bytes=MANY)
    await connection.execute(files)
    await _run(
        connection,
        """INSERT INTO checkpoint_pieces
           SELECT :checkpoint, 'model', n, lpad(to_hex(n), 64, '0'), 1, 0, 1 FROM generate_series(1, :count) n""",
        checkpoint=checkpoint_id,
        count=MANY,
    )
    await _run(
        connection,
        """INSERT INTO objects SELECT :project, lpad(to_hex(n), 64, '0'), 1, 0 FROM generate_series(1, :count) n""",
        project=project_id,
        count=MANY,
    )
    return checkpoint_id


async def _records(connection: AsyncConnection, project_id: str, job_id: str, node_id: str) -> None:
    """What one job has told, what one node has cost, and who asked for it."""
    given: dict[str, Any] = {"job": job_id, "node": node_id, "project": project_id, "at": _LONG_AGO_MS, "count": MANY}
    for statement in (
        """INSERT INTO metric_points (job_id, step, epoch, at_ms, "values")
           SELECT :job, n, 1, n, '{"loss": 1.5}' FROM generate_series(1, :count) n""",
        """INSERT INTO artifacts SELECT :job, 'file' || n, min_run.id, repeat('a', 64), 1, :at
           FROM generate_series(1, :count) n, (SELECT min(id) AS id FROM runs) AS min_run""",
        """INSERT INTO ledger (project_id, node_id, payer, from_ms, to_ms, amount_micros)
           SELECT :project, :node, 'idle', :at, :at, 1 FROM generate_series(1, :count) n""",
        """INSERT INTO audit_log (project_id, at_ms, key_id, request_id, route, status)
           SELECT :project, :at, 'key', 'req', 'POST /v1/jobs', 200 FROM generate_series(1, :count) n""",
        """INSERT INTO node_events (node_id, position, at_ms, kind, message)
           SELECT :node, n, :at, 'node_told', 'something' FROM generate_series(1, :count) n""",
    ):
        used = {name: value for name, value in given.items() if f":{name}" in statement}
        await connection.execute(text(statement), used)
    await _run(
        connection,
        """INSERT INTO job_events (job_id, position, at_ms, kind, message)
           SELECT :job, n, :at, 'told', 'something' FROM generate_series(1, :count) n""",
        job=job_id,
        at=_LONG_AGO_MS,
        count=EVENTS,
    )
    await connection.execute(update(t.jobs).where(t.jobs.c.id == job_id).values(event_position=EVENTS))


async def _decisions(connection: AsyncConnection) -> None:
    """Numbered from one on; each is to start another of the jobs that are over."""
    await _run(
        connection,
        """INSERT INTO ticks
               (at_ms, term, trigger, policy, policy_state, plan, size_bytes, named_ids, dropped, duration_ms)
           SELECT CAST(:at AS bigint) + n, 1, 'tick', 'allpass', '{}', jsonb_build_object('signals', '[]'::jsonb,
                      'actions', jsonb_build_array(
                          jsonb_build_object('kind', 'start', 'job_id', job, 'reason', 'a place'))),
                  1, ARRAY[job], 0, 1
           FROM generate_series(1, :count) AS n, lateral (SELECT :job || lpad(n::text, 7, '0') AS job) AS named
           ORDER BY n""",
        at=_LONG_AGO_MS,
        job=_first_of("job_0"),
        count=MANY,
    )


async def _pools(connection: AsyncConnection) -> None:
    """Each host has a GPU, and calls."""
    statement = "INSERT INTO pools (name, launcher, price_micros, created_ms) SELECT 'pool' || n, 'joined', 0, :at"
    await _run(connection, statement + " FROM generate_series(1, :count) n", at=T0_MS, count=POOLS)
    await _run(
        connection,
        """INSERT INTO hosts (id, pool, name, nonce_sha256, boot_id, facts, joined_ms, heard_ms)
           SELECT :host || lpad(n::text, 7, '0'), 'pool' || (1 + n % :pools), 'node' || n, decode(md5('' || n), 'hex'),
                  'boot', '{"cpus": 8, "memory_bytes": 64000000000,
                            "gpus": [{"index": 0, "type": "A100-80GB", "memory_bytes": 80000000000}]}', :at, :at
           FROM generate_series(1, :count) n""",
        host=_first_of("host_1"),
        pools=POOLS,
        at=METERED_MS,
        count=HOSTS,
    )


async def _run(connection: AsyncConnection, statement: str, **given: Any) -> None:
    await connection.execute(text(statement), given)
