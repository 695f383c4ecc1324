"""A project, and what is settled for all of its jobs."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from allpass.wire.base import Flag, Request, Response

_AHEAD = (
    "true: while jobs come often, machines are rented before the next one comes, and kept a while after one has left. "
    "false: none is rented ahead, and one that no job needs is given back at once"
)


class Project(Response):
    """The project that the API key belongs to."""

    id: str
    name: str
    created_at: datetime
    ahead: bool = Field(True, description=_AHEAD)


class ProjectUpdate(Request):
    """Change what is settled for all jobs of the project, from the next decision on."""

    ahead: Flag = Field(description=_AHEAD)
