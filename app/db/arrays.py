"""Many values in one statement: each list travels as one array.

A statement has at most 32,767 parameters, and the server plans each of them. A parameter for each value makes a limit
out of what users own: it works with ten thousand jobs and fails for good with forty thousand. So `in_` is for the
members of an enumeration and for sub-queries, and all else comes through here (`tests/db/test_arrays.py` holds it).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import ARRAY, ColumnElement, FromClause, Table, all_, any_, column, func, literal, select
from sqlalchemy.dialects.postgresql import Insert, insert


def is_one_of(of: ColumnElement[Any], wanted: Collection[Any]) -> ColumnElement[bool]:
    """Whether the column holds one of these values, however many there are."""
    return of == any_(_array(of, wanted))


def is_none_of(of: ColumnElement[Any], unwanted: Collection[Any]) -> ColumnElement[bool]:
    """Whether the column holds none of these values, however many there are."""
    return of != all_(_array(of, unwanted))


def as_rows(name: str, columns: Sequence[ColumnElement[Any]], rows: Iterable[Sequence[Any]]) -> FromClause:
    """Rows to select from or to join, called `name`, with the names and types of these columns."""
    named = [column(of.key, of.type) for of in columns if of.key is not None]
    cells: Sequence[Sequence[Any]] = list(zip(*rows, strict=True)) or [()] * len(named)
    arrays = [_array(of, values) for of, values in zip(named, cells, strict=True)]
    return func.unnest(*arrays).table_valued(*named).render_derived(name=name)


def insert_rows(table: Table, rows: Sequence[Mapping[str, Any]]) -> Insert:
    """Insert rows of the same columns. What `ON CONFLICT` updates may be named once only."""
    names = list(rows[0])
    given = as_rows("given", [table.c[name] for name in names], ([row[name] for name in names] for row in rows))
    return insert(table).from_select(names, select(*given.c))


def _array(of: ColumnElement[Any], values: Collection[Any]) -> ColumnElement[Any]:
    return literal(list(values), ARRAY(of.type))
