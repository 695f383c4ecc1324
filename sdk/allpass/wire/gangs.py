"""Jobs on several machines: what their agents say of where they meet, and are told."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from allpass.wire.base import Message, Response, Unguessed

BitsPerSecond = Annotated[int, Field(ge=1, le=2**53), Unguessed]
Port = Annotated[int, Field(ge=1, lt=65_536), Unguessed]


class Meeting(Message):
    """Where the first machine of a job on several is reached by the others: at `port` its agent listens until the job's
    code begins, and at `code_port`, which is kept free for it, the code."""

    address: str = Field(pattern=r"^[0-9A-Fa-f.:]{2,45}$")
    port: Port
    code_port: Port
    key: str = Field(pattern=r"^[0-9a-f]{64}$", repr=False, description="shown by whoever asks at `port`")


class GangSpec(Response):
    """Of a job on several machines: how many there are, which one this is (0 leads), and where they meet. `parts`: the
    agents of all of them send parts of checkpoints; `part_step`: the step of which the first machine sends its own."""

    nodes: int
    rank: int
    meeting: Meeting | None = None
    parts: bool = False
    part_step: int | None = None


class CheckpointCommitted(Response):
    """Answer of POST /checkpoints/{checkpoint_id}/commit. It is a checkpoint, unless it is a part and those of the
    machines `waits_for` are not stored yet; of `unheard` among them nothing is known. Commit it again to hear more.
    `why`: it will never be one, in words for its owner."""

    waits_for: list[int] = Field(default_factory=list)
    unheard: list[int] = Field(default_factory=list)
    why: str | None = None
