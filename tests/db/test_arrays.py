"""Lists travel as arrays: nothing that users own many of makes a statement that is too large to be sent."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, Text, column, func, select
from sqlalchemy.dialects.postgresql import JSONB

from app.db.arrays import as_rows, insert_rows, is_none_of, is_one_of
from app.db.engine import Database

_MANY = 50_000  # more than a statement has room for parameters
_NUMBER = column("n", Integer)


async def test_a_column_is_compared_with_any_number_of_values(database: Database) -> None:
    """One of them, or none of them; of nothing, no value is one."""
    numbers = func.generate_series(1, 10).table_valued("n", name="numbers").render_derived()
    wanted = range(8, _MANY)
    async with database.transaction() as connection:
        for condition, expected in (
            (is_one_of(_NUMBER, wanted), [8, 9, 10]),
            (is_none_of(_NUMBER, wanted), [1, 2, 3, 4, 5, 6, 7]),
            (is_one_of(_NUMBER, []), []),
            (is_none_of(_NUMBER, []), list(range(1, 11))),
        ):
            rows = await connection.execute(select(_NUMBER).select_from(numbers).where(condition).order_by(_NUMBER))
            assert list(rows.scalars()) == expected


async def test_rows_are_written_and_joined_as_arrays_of_their_columns(database: Database) -> None:
    """Any number of them, with what is missing and what is JSON as it was given."""
    pages = Table("pages", MetaData(), Column("id", Text), Column("number", Integer), Column("told", JSONB))
    given = [{"id": f"page_{n}", "number": n or None, "told": {"n": [n, 'ü\\"{}']}} for n in range(_MANY)]
    async with database.transaction() as connection:
        await connection.run_sync(pages.metadata.create_all)
        await connection.execute(insert_rows(pages, given))
        wanted = as_rows("wanted", (pages.c.id, pages.c.number), [("page_0", 7), ("page_3", 8), ("page_x", 9)])
        joined = select(pages, wanted.c.number.label("seven")).join(wanted, wanted.c.id == pages.c.id)
        rows = (await connection.execute(joined.order_by(pages.c.id))).all()
        count = (await connection.execute(select(func.count()).select_from(pages))).scalar_one()
        nothing = (await connection.execute(select(as_rows("none", (pages.c.id,), [])))).all()
    assert [tuple(row) for row in rows] == [
        ("page_0", None, {"n": [0, 'ü\\"{}']}, 7),
        ("page_3", 3, {"n": [3, 'ü\\"{}']}, 8),
    ]
    assert (count, nothing) == (_MANY, [])


def test_lists_are_sent_as_arrays_everywhere(repository_root: Path) -> None:
    """`in_` is for members of enumerations, for columns and for sub-queries; no rows are written one by one."""
    sources = {path: ast.parse(path.read_text()) for path in sorted((repository_root / "app").rglob("*.py"))}
    found = [f"{path.name}:{line}" for path, tree in sources.items() for line in _sends_a_list(tree)]
    assert found == []


@pytest.mark.parametrize(
    "allowed",
    [
        "of.state.in_((State.READY, State.DRAINING))",
        "of.state.not_in(GONE_STATES)",
        "of.state.in_(states.GONE)",
        "of.state.in_((*GONE_STATES, State.READY))",
        "of.id.in_(select(other.id))",
        "connection.execute(select(jobs), {'id': job_id})",
        "connection.execute(jobs.insert().values(id=job_id))",
    ],
)
def test_what_has_a_fixed_size_is_no_list(allowed: str) -> None:
    """The check above lets through what cannot grow."""
    assert list(_sends_a_list(ast.parse(allowed))) == []


@pytest.mark.parametrize(
    "refused",
    [
        "of.id.in_(job_ids)",
        "of.id.in_(sorted(job_ids))",
        "of.id.not_in([one.id for one in jobs])",
        "of.id.in_((FIRST, given))",
        "tuple_(of.a, of.b).in_(keys)",
        "of.id.notin_(job_ids)",
        "values(of.id).data(rows)",
        "connection.execute(jobs.insert(), rows)",
        "connection.execute(insert(jobs).on_conflict_do_nothing(), [row for row in rows])",
        "insert(jobs).values([{'id': one} for one in job_ids])",
        "insert(jobs).values(rows)",
    ],
)
def test_what_may_grow_is_found(refused: str) -> None:
    """The check above can fail: every way to send a parameter for each value is seen."""
    assert list(_sends_a_list(ast.parse(refused))) == [1]


def _sends_a_list(tree: ast.AST) -> list[int]:
    """The lines that send a parameter, or a statement, for each item of a list."""
    lines = []
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name, given = getattr(call.func, "attr", ""), call.args
        compared = name in ("in_", "not_in", "notin_") and not _has_fixed_size(given[0])
        data = name == "data" and bool(given)
        many = name == "execute" and len(given) > 1 and not isinstance(given[1], ast.Dict)
        written = name == "values" and bool(given) and _inserts(call.func) and not isinstance(given[0], ast.Dict)
        if compared or data or (many and _inserts(given[0])) or written:
            lines.append(call.lineno)
    return lines


def _has_fixed_size(given: ast.expr) -> bool:
    match given:
        case ast.Tuple(elts=context) | ast.Set(elts=context) | ast.List(elts=context):
            return all(isinstance(part, ast.Attribute) or _has_fixed_size(part) for part in context)
        case ast.Starred(value=part):
            return _has_fixed_size(part)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.isupper()
        case ast.Call(func=ast.Name(id=name)):
            return name in ("select", "union_all")
    return False


def _inserts(statement: ast.AST) -> bool:
    return any(
        getattr(node, "attr", getattr(node, "id", "")) == "insert"
        for node in ast.walk(statement)
        if isinstance(node, ast.Attribute | ast.Name)
    )
