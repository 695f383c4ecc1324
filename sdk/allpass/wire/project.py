"""A project, and what is settled for all of its jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from allpass.wire.access import CreatedKey
from allpass.wire.base import Flag, Name, Request, Response

_AHEAD = (
    "true: while jobs come often, machines are rented before the next one comes, and kept a while after one has left. "
    "false: none is rented ahead, and one that no job needs is given back at once"
)


_CLASS = (
    "the class of jobs that name none (`priority_class`), from now on; those that are submitted already keep theirs"
)
DefaultClass = Literal["guaranteed", "spot"]


class Project(Response):
    """A project: jobs, secrets, keys and machines that no other project sees."""

    id: str
    name: str
    created_at: datetime
    ahead: bool = Field(True, description=_AHEAD)
    default_class: DefaultClass = Field("guaranteed", description=_CLASS)
    archived_at: datetime | None = Field(None, description="since when its keys open nothing")


class ProjectRequest(Request):
    """POST /v1/projects. No other project has this name, archived ones included."""

    name: Name


class CreatedProject(Project):
    """`key`: its first API key, with scope `admin`, shown in this answer and never again."""

    key: CreatedKey


class ProjectUpdate(Request):
    """Change what is settled for all jobs of the project, from the next decision on."""

    ahead: Flag = Field(description=_AHEAD)


class ProjectChange(Request):
    """PATCH /v1/projects/{project_id}, of owners of the installation."""

    default_class: DefaultClass = Field(description=_CLASS)
