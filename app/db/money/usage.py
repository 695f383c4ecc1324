"""Summing the ledger up. A line belongs, whole, to the moment it begins at: sums of adjoining times add up exactly."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    FromClause,
    Integer,
    Numeric,
    Subquery,
    Text,
    and_,
    case,
    cast,
    desc,
    func,
    literal,
    null,
    select,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.billing import Payer
from app.db.money.idle import idle_owner
from app.db.tables import allocations, api_keys, apps, jobs, ledger, nodes, runs

_EVER_MS, _FOR_EVER_MS = literal(0, BigInteger), literal(2**62, BigInteger)


class Grouping(StrEnum):
    """What usage is summed by. LABEL takes the name of a label; KEY is the API key that submitted the job; SIZE is how
    many GPUs a run held."""

    JOB = "job"
    APP = "app"
    LABEL = "label"
    KEY = "key"
    DAY = "day"
    PROVIDER = "provider"
    TIER = "tier"
    SIZE = "size"


@dataclass(frozen=True, slots=True)
class UsageRow:
    """One group's share of one payer. `key` None: nobody of that kind, e.g. the job of a node that was rented ahead."""

    key: str | None
    name: str | None
    payer: Payer
    cost_micros: int
    gpu_ms: int


@dataclass(frozen=True, slots=True)
class UsageTotal:
    """`rows` are the most expensive ones, all sums are over all of them."""

    rows: tuple[UsageRow, ...]
    row_count: int
    cost_micros: int
    gpu_ms: int
    idle_micros: int  # of that, for machines that stood idle


async def sum_usage(
    connection: AsyncConnection,
    project_id: str,
    grouping: Grouping,
    *,
    label: str = "",
    job_id: str | None = None,
    from_ms: int | None,
    to_ms: int | None,
    limit: int,
) -> UsageTotal:
    """The ledger lines that begin in [from_ms, to_ms), by group and payer: in one statement, so of one moment.

    `job_id`: those of one job, with what stood idle after it. Of a size only what runs held has a key.
    """
    groups = _groups(grouping, label, _lines(project_id, from_ms, to_ms), job_id)
    totals = (
        func.count().over().label("row_count"),
        cast(func.sum(groups.c.cost).over(), BigInteger).label("cost_total"),
        cast(func.sum(groups.c.gpu_ms).over(), BigInteger).label("gpu_ms_total"),
        cast(func.sum(case((groups.c.payer == Payer.IDLE, groups.c.cost), else_=0)).over(), BigInteger).label("idle"),
    )
    orders: dict[Grouping, list[ColumnElement[Any]]] = {
        Grouping.DAY: [groups.c.key],
        Grouping.SIZE: [cast(groups.c.key, BigInteger).nulls_last()],
    }
    first = orders.get(grouping, [desc(groups.c.cost), groups.c.key.nulls_last()])
    found = (await connection.execute(select(groups, *totals).order_by(*first, groups.c.payer).limit(limit))).all()
    rows = tuple(UsageRow(row.key, row.name, Payer(row.payer), row.cost, row.gpu_ms) for row in found)
    if not found:
        return UsageTotal((), 0, 0, 0, 0)
    return UsageTotal(rows, found[0].row_count, found[0].cost_total, found[0].gpu_ms_total, found[0].idle)


async def open_meters(connection: AsyncConnection, project_id: str) -> int:
    """How many of the project's nodes will still be charged for."""
    statement = select(func.count()).where(nodes.c.project_id == project_id, ~nodes.c.meter_closed)
    return int((await connection.execute(statement)).scalar_one())


async def discount_of_job(connection: AsyncConnection, job_id: str) -> int:
    """What the job has not been billed for, because spot jobs pay a share of a pool's price."""
    total = cast(func.coalesce(func.sum(ledger.c.discount_micros), 0), BigInteger)
    return int((await connection.execute(select(total).where(ledger.c.job_id == job_id))).scalar_one())


def _lines(project_id: str, from_ms: int | None, to_ms: int | None) -> Subquery:
    """The lines with the GPU time they stand for: those a run held, a booting node's all, an idle node's rest.

    Runs of one process hold the same GPUs: each line counts as much of them as it pays of what they cost.
    """
    held = _held(project_id)
    stretch = [ledger.c.node_id, ledger.c.from_ms, ledger.c.to_ms]
    process = func.coalesce(held.c.companion_of, ledger.c.run_id)
    worth = ledger.c.amount_micros + ledger.c.discount_micros  # what a spot job pays less says nothing of its GPUs
    of_process = func.sum(worth).over(partition_by=[*stretch, process])
    part = func.coalesce(cast(worth, Numeric) / func.nullif(of_process, 0), 1)
    wanted = [ledger.c.project_id == project_id]
    wanted += [] if from_ms is None else [ledger.c.from_ms >= from_ms]
    wanted += [] if to_ms is None else [ledger.c.from_ms < to_ms]
    lines = (
        select(ledger, func.coalesce(held.c.gpus * part, 0).label("gpus"), held.c.size)
        .outerjoin(
            held,
            and_(
                held.c.id == ledger.c.run_id,
                held.c.node_id == ledger.c.node_id,
                held.c.since_ms <= ledger.c.from_ms,
                ledger.c.from_ms < held.c.until_ms,
            ),
        )
        .where(*wanted)
        .subquery("paid")
    )
    same_stretch = [lines.c.node_id, lines.c.from_ms, lines.c.to_ms]
    free = func.greatest(0, nodes.c.gpu_count - func.sum(lines.c.gpus).over(partition_by=same_stretch))
    of_payer = case(
        (lines.c.payer == Payer.RUN, lines.c.gpus), (lines.c.payer == Payer.BOOT, nodes.c.gpu_count), else_=free
    )
    gpu_ms = (lines.c.to_ms - lines.c.from_ms) * of_payer
    return (
        select(lines, nodes.c.provider, nodes.c.tier, gpu_ms.label("gpu_ms"))
        .join(nodes, nodes.c.id == lines.c.node_id)
        .subquery("lines")
    )


def _held(project_id: str) -> Subquery:
    """How many GPUs each run has had of each node, and when. Its first number counts from ever, its last one for ever:
    what is paid may begin before a run does, and be rounded up after its end. `size`: of a job on several machines
    those of all, whose runs keep their GPUs."""
    of = allocations.c
    run, in_turn = [of.run_id, of.node_id], [of.from_ms, of.id]
    count = func.cardinality(of.gpu_indices).label("gpus")
    is_first = func.row_number().over(partition_by=run, order_by=in_turn) == 1
    since_ms = case((is_first, _EVER_MS), else_=of.from_ms).label("since_ms")
    next_ms = func.lead(of.from_ms, 1, _FOR_EVER_MS).over(partition_by=run, order_by=in_turn)
    of_all = func.sum(func.cardinality(of.gpu_indices)).over(partition_by=func.coalesce(runs.c.member_of, runs.c.id))
    size = case((runs.c.node_rank.is_not(None), cast(of_all, Integer)), else_=func.cardinality(of.gpu_indices))
    return (
        select(runs.c.id, runs.c.companion_of, of.node_id, count, since_ms, next_ms.label("until_ms"))
        .add_columns(size.label("size"))
        .join(allocations, of.run_id == runs.c.id)
        .where(runs.c.project_id == project_id)
        .subquery("held")
    )


def _owned(lines: Subquery) -> Subquery:
    """The lines, with those of idle time under the job that they follow from."""
    owner = case((lines.c.payer == Payer.IDLE, idle_owner(lines)), else_=lines.c.job_id)
    rest = [column for column in lines.c if column.key != "job_id"]
    return select(*rest, owner.label("job_id")).subquery("owned")


def _groups(grouping: Grouping, label: str, lines: Subquery, job_id: str | None = None) -> Subquery:
    """Cost and GPU time by key and payer. `name` is what people call the key, where that is something else."""
    nothing = cast(null(), Text)
    is_by_job = grouping in (Grouping.JOB, Grouping.APP, Grouping.LABEL, Grouping.KEY)
    if is_by_job or job_id is not None:
        lines = _owned(lines)
    source: FromClause = lines
    if is_by_job:
        source = lines.outerjoin(jobs, jobs.c.id == lines.c.job_id).outerjoin(apps, apps.c.id == jobs.c.app_id)
    if grouping is Grouping.KEY:
        source = source.outerjoin(api_keys, api_keys.c.id == jobs.c.key_id)
    day = func.to_char(func.to_timestamp(lines.c.from_ms / 1000.0).op("AT TIME ZONE")("UTC"), "YYYY-MM-DD")
    keys: dict[Grouping, tuple[ColumnElement[Any], ColumnElement[Any]]] = {
        Grouping.JOB: (lines.c.job_id, jobs.c.name),
        Grouping.APP: (jobs.c.app_id, apps.c.name),
        Grouping.LABEL: (jobs.c.labels[label].astext, nothing),
        Grouping.KEY: (jobs.c.key_id, api_keys.c.name),
        Grouping.DAY: (day, nothing),
        Grouping.PROVIDER: (lines.c.provider, nothing),
        Grouping.TIER: (lines.c.tier, nothing),
        Grouping.SIZE: (case((lines.c.payer == Payer.RUN, cast(lines.c.size, Text))), nothing),
    }
    key, name = keys[grouping]
    keyed = select(
        key.label("key"), name.label("name"), lines.c.payer, lines.c.amount_micros, lines.c.gpu_ms
    ).select_from(source)
    if job_id is not None:
        keyed = keyed.where(lines.c.job_id == job_id)
    of = keyed.subquery("keyed")
    cost = cast(func.sum(of.c.amount_micros), BigInteger)
    gpu_ms = cast(func.round(func.sum(of.c.gpu_ms)), BigInteger)
    return (
        select(of.c.key, func.min(of.c.name).label("name"), of.c.payer, cost.label("cost"), gpu_ms.label("gpu_ms"))
        .group_by(of.c.key, of.c.payer)
        .subquery("groups")
    )
