"""The checkpoint that a new job is to begin with: found, and kept from then on."""

from __future__ import annotations

import re

from app.db.checkpoints.retention import set_kept, steps_of
from app.db.connection import Connection
from app.errors import InvalidInput, NotFound

_NAME = re.compile(r"(?P<job_id>job_[0-9A-Za-z]{1,40})(?::(?P<step>[0-9]{1,15}))?\Z")
_TOLD = 10
FIELD = "from_checkpoint"


async def keep_checkpoint(connection: Connection, project_id: str, name: str, *, now_ms: int) -> str:
    """The id of what `name` ("job_...:step", or "job_..." for its newest) names.

    Raises InvalidInput for another form, NotFound when this project has no such checkpoint, with those it has.
    """
    parts = _NAME.match(name)
    if parts is None:
        raise InvalidInput(f"{FIELD}: {name!r} is not JOB:STEP, such as job_01JD9K3W0A4T6Z8X2C5V:400", param=FIELD)
    job_id, step = parts["job_id"], None if parts["step"] is None else int(parts["step"])
    found = await set_kept(connection, project_id, job_id, step, now_ms=now_ms)
    if found is not None:
        return found
    steps = await steps_of(connection, project_id, job_id)
    if steps is None:
        raise NotFound(f"{FIELD}: there is no job {job_id!r} in this project", param=FIELD)
    if not steps:
        raise NotFound(f"{FIELD}: {job_id} has no complete checkpoint", param=FIELD)
    listed = ", ".join(str(one) for one in steps[-_TOLD:])
    raise NotFound(f"{FIELD}: {job_id} has no checkpoint of step {step}; it has those of {listed}", param=FIELD)
