"""The other processes of a job of the recipe, one for each further GPU of each of its machines."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from allpass.recipe.libraries import installed
from allpass.recipe.settings import Recipe
from allpass.training.elastic import gathering, given_gpus
from allpass.training.elastic.first_machine import FirstMachine, leading
from allpass.training.elastic.further_machine import FurtherMachine, following
from allpass.training.elastic.gang import MOST_LOST
from allpass.training.elastic.ranks import Join
from allpass.training.elastic.seat import Seat
from allpass.training.session import Session

_NOT_FIRST = {"LOCAL_RANK": "1"}  # whoever makes the folder of a checkpoint in parts is the first of its machine
COMMAND: tuple[str, ...] = (sys.executable, "-m", "workers.trainer.follower")


def gathered(
    folder: Path, recipe: Recipe, session: Session, gpus: Sequence[str], seat: Seat | None = None
) -> contextlib.AbstractContextManager[Join]:
    """As `allpass.training.elastic.gathering`; those of a training whose bytes depend on its one process stay as they
    are. `seat`: of the first machine of several, whose processes stay as they are as well. Raises OSError."""
    task = replace(recipe, wandb=None, push_to=None)
    told = {"folder": str(folder), "recipe": task.parameters()}
    if seat is None:
        changes = recipe.draws_by_part and not recipe.sharded
        most_lost = 0 if recipe.sharded else MOST_LOST
        return gathering.gathered(
            COMMAND, told, session, gpus, may_change=changes, most_lost=most_lost, environment=_NOT_FIRST
        )
    print(f"training: on {seat.nodes} machines with {len(gpus)} GPU{'s' * (len(gpus) > 1)} each", flush=True)
    return leading(FirstMachine(seat, COMMAND, gpus, session, _NOT_FIRST, _facts()), told)


@contextlib.contextmanager
def joined(folder: Path, session: Session, gpus: Sequence[str], seat: Seat) -> Iterator[tuple[dict[str, object], Join]]:
    """On a further machine of several: what to do, as the first one tells it, and how to come to the others."""
    machine = FurtherMachine(seat, COMMAND, gpus, session, _NOT_FIRST)
    task = {**machine.connect(_facts()), "folder": str(folder)}
    print(f"training: takes part as machine {seat.rank} of {seat.nodes}, which machine 0 speaks for", flush=True)
    with following(machine, task) as join:
        yield task, join


def _facts() -> dict[str, str]:
    """What machines should have alike."""
    return {**installed(), "GPU": os.environ.get(given_gpus.GIVEN, "").partition(", ")[0]}
