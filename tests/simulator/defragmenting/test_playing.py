"""A pool over months: every GPU is one job's, whoever is moved does all of its work, and what is vacated is what the
control loop would vacate."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.simulator.defragmenting import playing
from app.simulator.defragmenting.figures import PoolFigures
from app.simulator.defragmenting.hosts import PoolHosts
from app.simulator.defragmenting.jobs import HOST_GPUS, PoolJob, pool_jobs
from app.simulator.defragmenting.playing import USUAL_HABITS, PoolSetting, play_pool
from app.simulator.defragmenting.vacating import Looks, Schedule
from app.simulator.traces.job import TraceJob

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
STRETCH_HOURS = 40  # until the last submission, so that all is played that begins before


def _job(name: str, hour: float, hours: float, gpus: int, parts: int = 1, *, locked: bool = False) -> PoolJob:
    return PoolJob(name, round(hour * HOUR_MS), round(hours * HOUR_MS), gpus, parts, locked)


def _last(hour: float = STRETCH_HOURS) -> PoolJob:
    """The last submission: the play goes on until it comes."""
    return _job("last", hour, 1, 1)


def _play(jobs: list[PoolJob], hosts: int, looks: Looks, **more: int) -> PoolFigures:
    return play_pool(jobs, PoolSetting(hosts, Schedule(looks, **more), switch_hosts=2))


def _half_used(*, locked: bool = False) -> list[PoolJob]:
    """Four jobs of four GPUs fill two hosts; of each host one ends, and the others go on for a day."""
    lives = (("a", 1), ("b", 30), ("c", 1), ("d", 30))
    return [_job(name, 0.001 * at, hours, 4, locked=locked) for at, (name, hours) in enumerate(lives)]


def test_a_job_that_waits_for_a_whole_host_has_one_after_a_move() -> None:
    """It waits from the second hour on, for a host that two jobs of four GPUs have half of each; the look of the third
    hour lets it begin minutes later, and not a day."""
    jobs = [*_half_used(), _job("whole", 2.5, 1, 8), _last()]
    without, with_moves = _play(jobs, 2, Looks.NEVER), _play(jobs, 2, Looks.WANTED)
    assert without.whole.mean_s > 20 * 3600
    assert 1800 < with_moves.whole.mean_s < 1800 + 600
    assert (with_moves.moves, with_moves.moved_gpus, with_moves.vacated) == (1, 4, 1)
    assert with_moves.paused_gpu_s == 4 * USUAL_HABITS.pause_ms / 1000
    assert (without.moves, without.vacated, without.paused) == (0, 0, 0)


def test_by_schedule_nothing_moves_while_nobody_waits_for_a_whole_host() -> None:
    jobs = [*_half_used(), _job("small", 2.5, 1, 2), _last()]
    assert _play(jobs, 2, Looks.WANTED).moves == 0
    asked_for = _play(jobs, 2, Looks.ALWAYS)
    assert asked_for.moves == 1
    assert asked_for.partly < _play(jobs, 2, Looks.NEVER).partly


@pytest.mark.parametrize("looks", [Looks.WANTED, Looks.ALWAYS])
def test_what_is_locked_is_not_moved(looks: Looks) -> None:
    jobs = [*_half_used(locked=True), _job("whole", 2.5, 1, 8), _last()]
    assert _play(jobs, 2, looks) == _play(jobs, 2, Looks.NEVER)


def test_a_job_on_several_hosts_has_them_vacated() -> None:
    """Three hosts half used: two of them for it, by moves onto the third and onto each other's rest."""
    jobs = [
        *(_job(f"long{at}", 0.001 * at, 30, 4) for at in range(2)),  # fill the first host
        *(_job(f"a{at}", 0.01 + 0.001 * at, 30 if at % 2 else 1, 4) for at in range(4)),
        _job("gang", 2.5, 1, HOST_GPUS, 2),
        _last(),
    ]
    without, with_moves = _play(jobs, 3, Looks.NEVER), _play(jobs, 3, Looks.WANTED)
    assert without.gangs.mean_s > 20 * 3600
    assert with_moves.gangs == without.gangs, "one host is full for a day: no moves could give it two"
    four = [job for job in jobs if not job.job_id.startswith("long")]
    assert _play(four, 3, Looks.WANTED).gangs.mean_s < 1800 + 600


def test_no_more_moves_than_each_look_may_have() -> None:
    """Eight hosts with one job of two GPUs each become two by six moves or more; by two an hour that takes hours."""
    fill = [_job(f"fill{at}", 0.0001 * at, 1, 6) for at in range(8)]
    small = [_job(f"s{at}", 0.01 + 0.0001 * at, 39, 2) for at in range(8)]
    jobs = [*fill, *small, _last()]
    many, few = (_play(jobs, 8, Looks.ALWAYS, moves=most) for most in (20, 2))
    assert min(many.moves, few.moves) >= 6
    assert few.partly > many.partly


def test_a_day_that_is_not_counted_is_not() -> None:
    jobs = [*_half_used(), _job("whole", 2.5, 1, 8), _last()]
    found = play_pool(jobs, PoolSetting(2, Schedule(Looks.WANTED), counts_from_ms=4 * HOUR_MS))
    assert (found.whole.jobs, found.moves, found.vacated) == (0, 0, 1)
    assert found.days == (STRETCH_HOURS - 4) / 24


def test_who_never_begins_is_counted_as_waiting_until_the_end() -> None:
    jobs = [_job("a", 0, 100, 8), _job("b", 1, 1, 8), _last(10)]
    found = _play(jobs, 1, Looks.NEVER)
    assert (found.whole.jobs, found.whole.unbegun, found.whole.mean_s) == (2, 1, 9 * 3600 / 2)
    assert found.used == 1.0


def test_a_job_larger_than_the_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="big needs 3 of 2 hosts"):
        _play([_job("big", 0, 1, 8, 3)], 2, Looks.NEVER)


def _drawn(seed: int) -> list[PoolJob]:
    chance = Random(seed)
    jobs = [
        _job(
            f"j{number:03}", chance.random() * 30, chance.choice((0.1, 1, 5, 20)), chance.choice((1, 1, 2, 4, 8)),
            locked=chance.random() < 0.2,
        )
        for number in range(60)
    ]  # fmt: skip
    gangs = [_job(f"g{number}", chance.random() * 30, 2, HOST_GPUS, chance.choice((2, 3))) for number in range(4)]
    return [*jobs, *gangs, _last(400)]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(list(Looks)), st.integers(4, 7))
def test_every_job_ends_with_its_work_done_and_no_gpu_is_given_out_twice(seed: int, looks: Looks, hosts: int) -> None:
    """Whoever moves loses its pauses and no work (the hosts themselves raise where a GPU is given out twice): a job
    has run for its work and its pauses when it ends, and in the end all hosts are empty but for the last job's."""
    jobs = _drawn(seed)
    play = playing._Play(PoolSetting(hosts, Schedule(looks), switch_hosts=3))
    for job in jobs:
        play.submit(job)
    ended: dict[str, int] = {}
    begun: dict[str, int] = {}
    end, waited = play._end, play._watching.waited

    def noted_end(one: playing.RunningJob) -> None:
        ended[one.job.job_id] = play._now_ms
        assert one.done_ms + play._now_ms - one.since_ms >= one.job.work_ms
        end(one)

    def noted_begin(job: PoolJob, now_ms: int, *, has_begun: bool) -> None:
        if has_begun:
            begun[job.job_id] = now_ms
        waited(job, now_ms, has_begun=has_begun)

    play._end, play._watching.waited = noted_end, noted_begin  # type: ignore[method-assign]
    found = play.to_the_last_submission()
    assert ended.keys() == {job.job_id for job in jobs} - {"last"}
    over_ms = {job.job_id: ended[job.job_id] - begun[job.job_id] - job.work_ms for job in jobs if job.job_id in ended}
    assert all(one % USUAL_HABITS.pause_ms == 0 for one in over_ms.values())
    assert sum(over_ms.values()) == found.moves * USUAL_HABITS.pause_ms
    assert all(over_ms[job.job_id] == 0 for job in jobs if job.job_id in over_ms and (job.locked or job.parts > 1))
    assert sum(HOST_GPUS - free for free in play._hosts.free.values()) == 1
    assert play._hosts.used_gpus == 1


def test_the_same_jobs_come_to_the_same() -> None:
    assert _play(_drawn(3), 5, Looks.WANTED) == _play(_drawn(3), 5, Looks.WANTED)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 8)), max_size=40), st.integers(1, 8))
def test_hosts_know_who_is_tightest(taken: list[tuple[int, int]], gpus: int) -> None:
    """Against a look at each of them; and what is not free is not given out."""
    hosts = PoolHosts(6, 2)
    for at, need in taken:
        name = hosts.names[at]
        if hosts.free[name] < need:
            with pytest.raises(RuntimeError, match="are given out"):
                hosts.take(name, need)
        else:
            hosts.take(name, need)
    shut = {hosts.names[0]}
    able = [(free, name) for name, free in hosts.free.items() if free >= gpus and name not in shut]
    assert hosts.tightest(gpus, shut) == (min(able)[1] if able else None)
    assert hosts.partly_used == sum(0 < free < HOST_GPUS for free in hosts.free.values())
    assert hosts.used_gpus == sum(HOST_GPUS - free for free in hosts.free.values())
    assert hosts.emptiest(2, shut) == sorted(
        hosts.names, key=lambda name: (0 if name in shut else -hosts.free[name], name)
    )[:2]  # fmt: skip


def test_several_hosts_are_of_one_switch_where_one_has_them() -> None:
    hosts = PoolHosts(6, 3)
    hosts.take(hosts.names[0], 1)
    assert hosts.whole(3, ()) == hosts.names[3:]
    assert hosts.whole(2, ()) == hosts.names[1:3], "the tightest that holds them"
    assert hosts.whole(3, {hosts.names[5]}) is not None
    assert hosts.whole(5, {hosts.names[5]}) is None


def test_jobs_of_a_trace() -> None:
    """Sizes of whole hosts above one; what does not run is left out; the share that is locked is drawn by the seed."""
    trace = [TraceJob(f"j{at}", at, 60.0 if at else 0.0, (1, 8, 9, 32)[at % 4]) for at in range(400)]
    made = pool_jobs(trace, 0.4, 1)
    assert len(made) == 399
    assert {(job.parts, job.part_gpus) for job in made} == {(1, 1), (1, 8), (2, 8), (4, 8)}
    assert 120 < sum(job.locked for job in made) < 200
    assert made == pool_jobs(trace, 0.4, 1)
    assert not any(job.locked for job in pool_jobs(trace, 0.0, 1))
    assert made[-1].submit_ms == 399_000
    assert made[-1].gpus == 32
