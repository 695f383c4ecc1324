"""A submission writes every column of a job that has to be written."""

from __future__ import annotations

from app.db.jobs.submissions import OneJob, RequestedJob, StatedJob
from app.db.tables import jobs

WRITTEN = (*OneJob._fields, *RequestedJob._fields, *StatedJob._fields)
BY_STATEMENT = {"state", "event_position"}  # the same for every new job: literals of the statement


def test_what_a_submission_leaves_out_may_be_empty_or_has_a_default() -> None:
    left_out = [one for one in jobs.columns if one.name not in {*WRITTEN, *BY_STATEMENT}]
    assert [one.name for one in left_out if not one.nullable and one.server_default is None] == []
