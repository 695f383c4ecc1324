"""Conditions on columns that may hold words of a newer release (`app.core.foreign`)."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import Any, TypeVar

from sqlalchemy import Column, ColumnElement, or_

from app.core.foreign import AFTER_FOREIGN, READ_AS
from app.db.arrays import is_none_of, is_one_of

S = TypeVar("S", bound=StrEnum)


def reads_as_one_of(column: Column[Any], kind: type[S], words: Collection[S]) -> ColumnElement[bool]:
    """The column holds one of these words, or one of a newer release that is read as one of them."""
    known = is_one_of(column, sorted(words))
    return or_(known, is_none_of(column, sorted(kind))) if READ_AS[kind] in words else known


def may_become(column: Column[Any], to: StrEnum, sources: Collection[StrEnum]) -> ColumnElement[bool]:
    """The row is in one of `sources`, or in a state of a newer release from which `to` is open all the same."""
    kind = type(to)
    known = is_one_of(column, sorted(sources))
    return or_(known, is_none_of(column, sorted(kind))) if to in AFTER_FOREIGN[kind] else known
