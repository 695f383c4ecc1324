"""For which jobs spot jobs leave what was reserved: those for which nothing else is free."""

from __future__ import annotations

import time
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from app.core import queue
from app.core.left_out import any_waits, left_out
from app.core.market import is_for, offer_fits
from app.core.model.job import JobState, PriorityClass, Resources
from app.core.model.offer import Offer
from app.core.model.pool import HostGpu, OwnHost, Pool
from app.core.model.snapshot import JobView
from app.core.pools import offers_of
from tests.core.samples import GIB, NOW_MS, job, snapshot

MINE = "proj_a"


def hosts(*free: int) -> list[Offer]:
    """What hosts of eight GPUs offer, so many of which are free on each."""
    gpus = tuple(HostGpu(index, "A100", 80 * GIB) for index in range(8))
    made = [
        OwnHost(f"host_{number:04}", "lab", 64, 2**38, gpus, tuple(range(8 - left))) for number, left in enumerate(free)
    ]
    return offers_of((Pool("lab"),), made, NOW_MS)


def waits(name: str, gpus: int = 1, project_id: str = MINE, **changes: object) -> JobView:
    return job(name, project_id=project_id, resources=Resources(gpus, gpus), **changes)


def plainly(jobs: list[JobView], offers: list[Offer]) -> set[str]:
    """The same, looked for job by job in all that is on offer."""
    taken: Counter[str] = Counter()
    found = set()
    for one in sorted(jobs, key=queue.edf_key):
        fits = [
            offer
            for offer in offers
            if one.resources.gpus_min <= offer.shared_gpus - taken[offer.host]
            and offer_fits(one.resources, offer)
            and is_for(one, offer)
        ]
        if fits:
            taken[min(fits, key=lambda it: (it.gpu_count, it.key)).host] += one.resources.gpus_min
        elif one.project_id == MINE:
            found.add(one.job_id)
    return found


def test_whoever_comes_first_has_what_is_free_whoever_it_is() -> None:
    line = [waits("job_x", 2, "proj_b", deadline_ms=1), waits("job_y", 2, deadline_ms=2), waits("job_z", deadline_ms=3)]
    assert left_out(snapshot(jobs=line, offers=hosts(3)), {MINE}) == {"job_y"}
    assert left_out(snapshot(jobs=line, offers=hosts(2)), {MINE}) == {"job_y", "job_z"}
    assert left_out(snapshot(jobs=line, offers=hosts(8)), {MINE}) == set()


def test_who_does_not_wait_or_is_spot_or_on_several_machines_is_none() -> None:
    others = [
        waits("job_a", priority_class=PriorityClass.SPOT),
        waits("job_b", state=JobState.RUNNING),
        waits("job_c", not_before_ms=NOW_MS + 1),
        waits("job_d", leaving=True),
        job("job_e", project_id=MINE, resources=Resources(1, 1, nodes=2)),
        waits("job_f", project_id="proj_b"),
    ]
    seen = snapshot(jobs=others, offers=())
    assert not any_waits(seen, {MINE}) and left_out(seen, {MINE}) == set()
    assert any_waits(snapshot(jobs=[waits("job_g")], offers=()), {MINE})


@given(
    st.lists(st.tuples(st.integers(1, 8), st.sampled_from([MINE, "proj_b"]), st.integers(0, 5)), max_size=12),
    st.lists(st.integers(0, 8), max_size=5),
)
def test_it_is_what_a_look_at_everything_finds(asks: list[tuple[int, str, int]], free: list[int]) -> None:
    line = [waits(f"job_{n:02}", gpus, project, deadline_ms=due) for n, (gpus, project, due) in enumerate(asks)]
    offers = hosts(*free)
    assert left_out(snapshot(jobs=line, offers=offers), {MINE}) == plainly(line, offers)


def test_many_jobs_and_many_hosts_take_no_time() -> None:
    """Two thousand on a thousand hosts: job by job it would be eight million looks."""
    line = [waits(f"job_{n:05}", 1 + n % 8, deadline_ms=n) for n in range(2_000)]
    seen = snapshot(jobs=line, offers=hosts(*[8] * 1_000))
    began = time.process_time()
    assert left_out(seen, {MINE})
    assert time.process_time() - began < 1.0


def test_a_project_of_many_kinds_keeps_no_other_one_waiting() -> None:
    theirs = [
        job(f"job_{n:04}", project_id="proj_c", deadline_ms=n, resources=Resources(1, 1, cpus_min=1 + n))
        for n in range(200)
    ]
    mine = waits("job_z", 8, deadline_ms=10_000)
    seen = snapshot(jobs=[*theirs, mine], offers=hosts(7))
    found = left_out(seen, {MINE, "proj_c"})
    assert "job_z" in found and len(found) <= 21
