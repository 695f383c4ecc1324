"""Helpers for training scripts: parameters, metrics, checkpoints, and leaving politely when asked.

    from allpass import training

    resume = training.resume()
    start = load(resume.path) if resume else 0
    for step in range(start + 1, steps + 1):
        loss = train_one_step(step)
        training.report(step, loss=loss)
        if training.should_checkpoint(step):
            training.save(step, write=lambda folder: save_everything(folder))
        training.exit_if_stopping(step)

A step number counts finished steps: a checkpoint at step 40 continues with step 41.

Only the standard library is used, on Python 3.9 and newer. Without Allpass (no `ALLPASS_*` environment) the same
script runs unchanged on a laptop: checkpoints and `metrics.jsonl` go to `./allpass-checkpoints`, results to
`./allpass-output`, and nothing is resumed unless ALLPASS_RESUME_DIR names a checkpoint folder.

Under Allpass, import this module before the heavy ones: from then on SIGTERM is a request that is served at the first
step boundary, also when it comes while torch is still loading.

PyTorch scripts do it in fewer lines, beside the training, with `allpass.training.torch_checkpoints`.

The helpers serve the one process that reports and saves. In a distributed script call them on rank 0, and
`stop_together` on every rank at each step: see `examples/two_machines.py`. Where each process saves what it has (FSDP,
`torch.distributed.checkpoint`), call `should_checkpoint_together` and `save(..., part=True)` on every rank: see
`examples/sharded_machines.py`.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any, Callable, Optional

from allpass.training.layout import Plan
from allpass.training.scaling import gpus_factor, scale_learning_rate
from allpass.training.session import EXIT_STOPPED, Resume, Session
from allpass.training.silent import FOLLOWS, Silent
from allpass.training.together import agreed, due_together

__all__ = [
    "EXIT_STOPPED",
    "Plan",
    "Resume",
    "Session",
    "announce_saves",
    "describe",
    "exit_if_stopping",
    "gpus_factor",
    "link",
    "output_dir",
    "parameters",
    "plan",
    "report",
    "resume",
    "save",
    "scale_learning_rate",
    "session",
    "should_checkpoint",
    "should_checkpoint_together",
    "stop_requested",
    "stop_together",
    "template",
]

_session: Optional[Session] = None


def session() -> Session:
    """The session of this process. Made on first use (under Allpass: on import), which also installs the handler."""
    global _session  # noqa: PLW0603 - one process, one job: there is one of it
    if _session is None:
        _session = Silent() if FOLLOWS in os.environ else Session()
        _session.listen()
    return _session


def resume() -> Optional[Resume]:
    """The checkpoint to continue from (`path`, `step`), or None for a fresh start."""
    return session().resume()


def parameters(**defaults: Any) -> "dict[str, Any]":
    """The job's parameters over these defaults. Raises TypeError when they were given as a list of words, which
    arrive in `sys.argv` instead."""
    return session().parameters(**defaults)


def template() -> "dict[str, Any]":
    """The job's template; empty without Allpass."""
    return session().template()


def plan() -> Optional[Plan]:
    """How to lay this run out on the GPUs that it was given, keeping the batch of the template: see `Plan`. None
    without Allpass, and where the template does not state the training."""
    return session().plan()


def report(step: int, **metrics: Any) -> None:
    """Report numbers of a finished step, such as `loss=0.25`; see `Session.report`."""
    session().report(step, **metrics)


def describe(**facts: Any) -> None:
    """Tell how the training is laid out, e.g. `total_steps=400, micro_batch=4`; see `Session.describe`."""
    session().describe(**facts)


def link(name: str, url: str) -> None:
    """Have a link shown with the job, such as the one to its run in a tracker; see `Session.link`."""
    session().link(name, url)


def should_checkpoint(step: int) -> bool:
    """Whether to save now: a stop was asked for, or the checkpoint interval has passed. False right after a save."""
    return session().should_checkpoint(step)


def should_checkpoint_together(step: int) -> bool:
    """In a distributed training of which every process saves a part: whether all of them save now, as
    `should_checkpoint` says it on any. Every process has to call it at the same point of each step, as with
    `stop_together`, which is not needed then; `exit_if_stopping` has all of them leave after the same step."""
    return due_together(session(), step)


def stop_requested() -> bool:
    """Whether SIGTERM was received: save at the next step boundary and leave."""
    return session().stop_requested()


def stop_together() -> bool:
    """In a distributed training: whether any of its processes was asked to stop; then all of them are. Every process
    has to call it at the same point of each step: it is a collective of torch.distributed. Save on rank 0 then, and
    leave on all."""
    return agreed(session())


def announce_saves() -> None:
    """For a script with a SIGTERM handler of its own: from now on it saves and leaves when asked. Whoever asks
    `should_checkpoint` or `stop_requested` has said so already."""
    session().announce_saves()


def save(
    step: int,
    write: Callable[[Path], None],
    metrics: "Optional[dict[str, Any]]" = None,
    *,
    part: bool = False,
) -> Path:
    """Make a checkpoint: `write` fills an empty folder, which appears complete or not at all. `part`: every process
    calls it, and what they write on all machines is one checkpoint; see `Session.save`."""
    return session().save(step, write, metrics, part=part)


def exit_if_stopping(step: int) -> None:
    """Leave the process with code 75 when a stop was asked for and `step` is saved; see `Session.exit_if_stopping`."""
    session().exit_if_stopping(step)


def output_dir() -> Path:
    """Where results go: its files are kept, however the script ends."""
    return session().output_dir()


# A hook that is loaded into a script that knows nothing of us asks for the session itself, where it can be heeded.
_is_the_scripts = "allpass.hooks" not in sys.modules
if _is_the_scripts and "ALLPASS_JOB_ID" in os.environ and threading.current_thread() is threading.main_thread():
    session()
