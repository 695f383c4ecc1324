"""How a job is known to be ours: by its comment, which repeats its name and says what was agreed.

A comment goes with the job into the queue. It names our node, whose id carries the installation's mark, so that a job
of another installation, of the same user by hand, or with a name like ours, is never taken for ours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from app.core.model.ids import is_id

_COMMENT = re.compile(r"allpass:([a-z]{2,5}_[0-9A-Z]{20}):([a-z][a-z0-9-]{0,39}):([0-9]{1,15})")
REF = re.compile(r"([0-9]{1,10})-(node_[0-9A-Z]{20})")


@dataclass(frozen=True, slots=True)
class SlurmMark:
    """`micros`: the price per hour that was agreed; Slurm knows none."""

    label: str
    shape: str
    micros: int

    @property
    def comment(self) -> str:
        return f"allpass:{self.label}:{self.shape}:{self.micros}"


def read_mark(comment: str) -> SlurmMark | None:
    """None for a comment that is not one of ours."""
    found = _COMMENT.fullmatch(comment)
    if found is None or not is_id(found.group(1), "node"):
        return None
    return SlurmMark(found.group(1), found.group(2), int(found.group(3)))


def ref_of(job_id: str, label: str) -> str:
    """Of a machine: a cluster that is set up anew counts its jobs from 1 again, and no label comes twice."""
    return f"{job_id}-{label}"
