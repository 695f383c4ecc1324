"""The database's own clock, which leases are measured by: the one clock that all processes share."""

from __future__ import annotations

import datetime as dt

from sqlalchemy import ColumnElement, Interval, bindparam, func


def database_now_plus(seconds: float) -> ColumnElement[dt.datetime]:
    """The moment `seconds` from now; now is when the statement runs, not when its transaction began."""
    return func.clock_timestamp() + bindparam(None, dt.timedelta(seconds=seconds), type_=Interval)
