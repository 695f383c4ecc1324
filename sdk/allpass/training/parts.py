"""Checkpoints of which each machine writes a part: saved by all processes of a distributed training together.

Each machine has a folder of its own, which its first process makes; every process of the machine writes into it, as
`torch.distributed.checkpoint` does. It is announced once all processes of all machines have written, or nowhere."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Mapping, Optional

from allpass.training.checkpoints import CheckpointFolder
from allpass.training.together import any_of, are_many

if TYPE_CHECKING:
    from allpass.training.session import Session

PART = "checkpoint_part"  # a line of the metrics file; `checkpoint` is one that is whole


class PartNotWritten(RuntimeError):
    """Of a step that is no checkpoint: another process has failed to write what it has of it."""


def is_first_of_machine(environment: Mapping[str, str]) -> bool:
    """Whether this process makes the folder of its machine, and announces it."""
    return environment.get("LOCAL_RANK", "0") == "0"


def line_of(environment: Mapping[str, str]) -> str:
    """How a folder is announced that holds what this machine has written. Raises RuntimeError where parts are not put
    together: the others' would be lost."""
    if int(environment.get("ALLPASS_NODES", "1")) == 1:
        return "checkpoint"
    if environment.get("ALLPASS_PARTS") != "1":
        raise RuntimeError(
            "save(part=True): this service, or the agent of one of the machines, is of a release that does not put "
            "parts of several machines together; save everything on the first machine, without part=True"
        )
    return PART


def write_part(session: "Session", folders: CheckpointFolder, step: int, write: Callable[[Path], None]) -> Path:
    """Have every process write into the folder of its machine, and give that its name once all have. Raises what
    `write` raised here, or PartNotWritten where it was another process."""
    environment = session.environment
    is_first = is_first_of_machine(environment)
    if not is_first and not are_many():
        raise RuntimeError(
            "save(part=True) without torch.distributed: call it on the first process of each machine (LOCAL_RANK 0)"
        )
    alone = int(environment.get("ALLPASS_NODES", "1")) == 1
    folder = folders.partial_of(step)
    _all(step, (lambda: folders.begin(step)) if is_first else None)
    try:
        _all(step, lambda: write(folder))
        _all(step, (lambda: folders.settle(step, may_be_empty=not alone)) if is_first else None)
    except BaseException:
        if is_first:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return folders.path_of(step)


def announce(step: int, tell: "Optional[Callable[[], Any]]") -> None:
    """Returns when all machines have: nobody leaves the training before."""
    _all(step, tell)


def _all(step: int, work: "Optional[Callable[[], Any]]") -> None:
    """Do it, and go on when all processes have done theirs."""
    error: Optional[Exception] = None
    try:
        if work is not None:
            work()
    except Exception as raised:  # whatever it is: the others must not wait for ever
        error = raised
    (failed,) = any_of([error is not None])
    if error is not None:
        raise error
    if failed:
        raise PartNotWritten(
            f"another process of this training could not write its part of the checkpoint of step {step}: its log says "
            "why"
        )
