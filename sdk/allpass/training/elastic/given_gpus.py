"""A job that was given GPUs trains on them, or not at all: on the CPU it would take weeks, and the GPUs be paid for."""

from __future__ import annotations

import os
import sys

import torch

from allpass.training.session import Session

GIVEN = "ALLPASS_GPUS"  # their names, where the machine has real ones
_FIRST_DRIVERS = {"11": 450, "12": 525, "13": 580}  # that run a CUDA of this major version


def check(session: Session) -> None:
    """Leave the process where torch cannot use the GPUs that the job was given. A driver that is too old, or a GPU that
    does not answer, is the machine's fault; a torch without CUDA is not."""
    given = os.environ.get(GIVEN, "")
    if not given or torch.cuda.is_available():
        return
    if torch.version.cuda is None:
        sys.exit(
            f"error: the job was given {given}, and torch {torch.__version__} here is a build without CUDA; "
            f"leave torch out of the packages of the job and use an image with a CUDA build, or name one there"
        )
    why = f"the job was given {given}, and torch cannot use it: {needs(torch.__version__, torch.version.cuda)}"
    session.tell(unusable=why)
    sys.exit(f"error: {why}")


def needs(version: str, cuda: str) -> str:
    """What a build of torch asks of the machine, in words."""
    driver = _FIRST_DRIVERS.get(cuda.partition(".")[0])
    asked = f", which needs driver {driver} or newer" if driver else ""
    return f"torch {version} is built for CUDA {cuda}{asked}"
