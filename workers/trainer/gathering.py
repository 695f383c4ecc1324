"""The processes of a job on several GPUs: which there are to be, and that they are there while it trains."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from allpass.recipe.settings import Recipe
from allpass.training.session import Session
from workers.trainer.gang import VISIBLE, Gang
from workers.trainer.ranks import Join, alone
from workers.trainer.wanted_gpus import WantedGpus


def own_gpus(session: Session) -> tuple[str, ...]:
    """A name for each process that the job is to have, and this process narrowed to the first of them: to be called
    before CUDA is. Of played GPUs too, which are processors. What is wanted by now counts; where nobody says it, what
    the job was submitted with."""
    visible = [name for one in os.environ.get(VISIBLE, "").split(",") if (name := one.strip())]
    count = max(1, int((session.template().get("gpu") or {}).get("count") or 1))
    wanted = WantedGpus.of(visible[:count] or tuple(map(str, range(count))), may_change=True)
    wanted.look()
    names = wanted.names
    if visible:
        os.environ[VISIBLE] = names[0]
    return names


@contextlib.contextmanager
def gathered(folder: Path, recipe: Recipe, session: Session, gpus: Sequence[str]) -> Iterator[Join]:
    """While this lasts there is a process for each of `gpus`, or of those that are wanted by then, and this one may
    join the others when it has loaded. Of one that stays one, nothing is started."""
    wanted = WantedGpus.of(gpus, may_change=recipe.draws_by_part)
    if len(gpus) == 1 and not wanted.may_change:
        yield alone
        return
    gang = Gang(folder, recipe, wanted, session)
    try:
        gang.start()
        yield gang.join
    finally:
        gang.close()
