"""The processes of a job on two machines."""

from __future__ import annotations

import allpass
from tests.e2e.service import environment, processes, until


def process_of(job: allpass.Job, rank: int) -> int:
    """Of this machine of the job."""

    def look() -> int | None:
        for pid in processes():
            found = environment(pid)
            if found.get("ALLPASS_JOB_ID") == job.id and found.get("ALLPASS_NODE_RANK") == str(rank):
                return pid
        return None

    return until(f"process {rank} of {job.id}", look)
