"""The processes of a job on several GPUs: which there are to be, and that they are there while it trains."""

from __future__ import annotations

import contextlib
import os
from types import MappingProxyType
from typing import Any, Iterator, Mapping, Optional, Sequence, Tuple

from allpass.training.elastic.gang import MOST_LOST, VISIBLE, Gang
from allpass.training.elastic.ranks import Join, alone
from allpass.training.elastic.wanted_gpus import MOST, WantedGpus
from allpass.training.session import Session


def own_gpus(session: Session, processes: Optional[int] = None) -> Tuple[str, ...]:
    """A name for each process that the job is to have, and this process narrowed to the first of them: to be called
    before CUDA is. Of played GPUs too, which are processors. What is wanted by now counts; where nobody says it, what
    the job was submitted with; without Allpass `processes`, or one. Raises ValueError for more than can take part."""
    visible = [name for one in os.environ.get(VISIBLE, "").split(",") if (name := one.strip())]
    count = max(1, int((session.template().get("gpu") or {}).get("count") or processes or 1))
    if count > MOST:
        raise ValueError(f"at most {MOST} GPUs can take part in a training that may change them, not {count}")
    wanted = WantedGpus.of(visible[:count] or tuple(map(str, range(count))), may_change=True)
    wanted.look()
    names = wanted.names
    if visible:
        os.environ[VISIBLE] = names[0]
    return names


@contextlib.contextmanager
def gathered(
    command: Sequence[str],
    task: Mapping[str, Any],
    session: Session,
    gpus: Sequence[str],
    *,
    may_change: bool,
    most_lost: int = MOST_LOST,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Join]:
    """While this lasts there is a process for each of `gpus`, or of those that are wanted by then, and this one may
    join the others when it has loaded. Of one that stays one, nothing is started. `command`: starts one of the others,
    which is told `task` (`following.serve`), with `environment` over this process's own. `most_lost`: how many of them
    another one is begun for."""
    wanted = WantedGpus.of(gpus, may_change=may_change)
    if len(gpus) == 1 and not wanted.may_change:
        yield alone
        return
    gang = Gang(command, task, wanted, session, environment, most_lost)
    try:
        gang.start()
        yield gang.join
    finally:
        gang.close()
