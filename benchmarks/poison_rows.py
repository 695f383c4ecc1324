"""Rows that cannot be read, and rows that cannot be written: one of the poisoner's in each table at a time."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from sqlalchemy import ARRAY, BigInteger, Boolean, Column, Double, Integer, LargeBinary, Table, Text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.exc import DBAPIError

from app.db.tables import metadata  # every table is known to it
from benchmarks.poison_cases import Case, Mallory, NotReachedError

# What a column may hold that no release of ours has ever written.
_GARBAGE: dict[type, tuple[Any, ...]] = {
    JSONB: ('"garbage"', '{"unknown": 1}', "[null]", "null"),
    Text: ("no such word", ""),
    BigInteger: (2**62, -1),
    Integer: (2**31 - 1, -1),
    Double: (float("nan"), -1e300),
    LargeBinary: (b"\0",),
}
_CASTS: dict[type, str] = {JSONB: "::text::jsonb", BigInteger: "::bigint", Integer: "::integer", Double: "::float8"}
# Rows that belong to a whole project, or to one company's account: whoever poisons one poisons all that is its own.
PROJECT_WIDE = frozenset(
    {
        "projects",
        "api_keys",
        "secrets",
        "objects",
        "apps",
        "app_versions",
        "run_history",
        "budgets",
        "spending",
    }
)
# By which column a row is known to be the poisoner's, beside ids of jobs, runs and nodes.
_OWNERS = ("job_id", "run_id", "node_id", "lead_job_id", "companion_job_id", "rented_for_job_id")


def row_cases() -> list[Case]:
    """Every column of every table that no key is made of, and every table's writes."""
    cases = []
    for table in metadata.sorted_tables:
        spares = table.name not in PROJECT_WIDE
        for column in table.columns:
            if _may_be_garbled(column):
                subject = f"{table.name}.{column.name}"
                poison = partial(_garble, table, column)
                cases.append(Case("row", subject, poison, partial(_restore, table, column), spares_project=spares))
        cases.append(Case("write", table.name, partial(_refuse, table), partial(_allow, table), spares_project=spares))
    return cases


def _may_be_garbled(column: Column[Any]) -> bool:
    kind = type(column.type)
    return not column.primary_key and not column.foreign_keys and kind in _GARBAGE and kind not in (Boolean, ARRAY)


async def _garble(table: Table, column: Column[Any], mallory: Mallory) -> None:
    """The first garbage that the database lets in. A row that its constraints protect needs no more care."""
    key = await _key_of_hers(table, mallory)
    kind = type(column.type)
    where = " AND ".join(f'"{name}" = :{name}' for name in key)
    found = await mallory.place.execute(f'SELECT "{column.name}" AS value FROM "{table.name}" WHERE {where}', **key)
    if not found:
        raise NotReachedError(f"no row of hers in {table.name}")
    for garbage in _GARBAGE[kind]:
        update = f'UPDATE "{table.name}" SET "{column.name}" = (:garbage){_CASTS.get(kind, "")} WHERE {where}'
        try:
            await mallory.place.execute(update, garbage=_asked(kind, garbage), **key)
        except DBAPIError:
            continue
        mallory.notes["row"] = (key, where, found[0].value)
        return
    raise NotReachedError(f"{table.name}.{column.name}: the database refuses what is no value of it")


async def _restore(table: Table, column: Column[Any], mallory: Mallory) -> None:
    key, where, value = mallory.notes.pop("row")
    kind = type(column.type)
    told = json.dumps(value) if kind is JSONB and value is not None else value
    update = f'UPDATE "{table.name}" SET "{column.name}" = (:value){_CASTS.get(kind, "")} WHERE {where}'
    await mallory.place.execute(update, value=_asked(kind, told), **key)


def _asked(kind: type, value: Any) -> Any:
    """A parameter as the driver takes it before the cast."""
    return value


async def _key_of_hers(table: Table, mallory: Mallory) -> dict[str, Any]:
    """The primary key of the newest row that is hers."""
    names = [column.name for column in table.primary_key.columns]
    owned = await mallory.owned_ids()
    conditions, values = [], {"ids": owned, "project_id": mallory.place.mallory.project_id}
    if names == ["id"] and table.name in ("jobs", "runs", "nodes"):
        conditions.append('"id" = ANY(:ids)')
    conditions += [f'"{name}" = ANY(:ids)' for name in _OWNERS if name in table.columns]
    if not conditions and "project_id" in table.columns:
        conditions.append('"project_id" = :project_id')
    if table.name == "projects":
        conditions.append('"id" = :project_id')
    if "provider" in table.columns and table.name not in ("nodes", "provider_operations"):
        conditions = ["\"provider\" = 'odd'"]
    if not conditions:
        raise NotReachedError(f"rows of {table.name} are nobody's")
    used = {name: value for name, value in values.items() if any(f":{name}" in one for one in conditions)}
    shown = ", ".join(f'"{name}"' for name in names)
    query = f'SELECT {shown} FROM "{table.name}" WHERE {" OR ".join(conditions)} ORDER BY {shown} DESC LIMIT 1'
    rows = await mallory.place.execute(query, **used)
    if not rows:
        raise NotReachedError(f"no row of hers in {table.name}")
    return {name: getattr(rows[0], name) for name in names}


_FUNCTION = """
CREATE OR REPLACE FUNCTION poison_refuses() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE touched jsonb := to_jsonb(CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END);
BEGIN
  IF EXISTS (SELECT FROM poisoned_ids p WHERE p.id IN (touched->>'id', touched->>'job_id', touched->>'run_id',
      touched->>'node_id', touched->>'project_id', touched->>'rented_for_job_id', touched->>'provider')) THEN
    RAISE EXCEPTION 'this row cannot be written' USING ERRCODE = 'XX001';
  END IF;
  RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
END $$
"""


async def refuse_writes(mallory: Mallory, table: str, ids: list[str]) -> None:
    """From now on the database fails at each write of a row of this table that names one of these ids."""
    await mallory.place.execute("CREATE TABLE IF NOT EXISTS poisoned_ids (id text)")
    await mallory.place.execute("INSERT INTO poisoned_ids SELECT unnest(CAST(:ids AS text[]))", ids=ids)
    await mallory.place.execute(_FUNCTION)
    await mallory.place.execute(
        f'CREATE TRIGGER poison BEFORE INSERT OR UPDATE OR DELETE ON "{table}" '
        "FOR EACH ROW EXECUTE FUNCTION poison_refuses()"
    )


async def allow_writes(mallory: Mallory, table: str) -> None:
    await mallory.place.execute(f'DROP TRIGGER IF EXISTS poison ON "{table}"')
    await mallory.place.execute("DELETE FROM poisoned_ids")


async def _refuse(table: Table, mallory: Mallory) -> None:
    ids = await mallory.owned_ids()
    if table.name in PROJECT_WIDE:
        ids = [*ids, mallory.place.mallory.project_id]
    await refuse_writes(mallory, table.name, [*ids, "odd"])


async def _allow(table: Table, mallory: Mallory) -> None:
    await allow_writes(mallory, table.name)
