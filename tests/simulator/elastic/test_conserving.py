"""What no policy may do, held against what it gave and took at each moment, and not against the engine's own books."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.elastic.kinds import ElasticKind
from app.core.elastic.queues import COLD_INTERACTIVE_S, TIMES_THE_MEAN
from app.simulator.elastic.comparing import ONE_LITERAL, POLICIES, policy_named
from app.simulator.elastic.costs import FREE, LORA_8B, ResizeModel
from app.simulator.elastic.engine import ElasticEngine, PlayedJob, SizePolicy
from app.simulator.elastic.workload import MixedJob

GPUS = 8
OURS = ("cornucopia", "cornucopia-literal", *ONE_LITERAL)
NEVER_DEMOTED_S = TIMES_THE_MEAN * COLD_INTERACTIVE_S


class Watched:
    """A policy, and everything that it gave and took."""

    def __init__(self, policy: SizePolicy, jobs: Sequence[MixedJob]) -> None:
        self._policy = policy
        self.sizes: list[list[tuple[float, int]]] = [[] for _ in jobs]
        self.arrive, self.ran = policy.arrive, policy.ran
        self.check, self.check_in_s = policy.check, policy.check_in_s
        self._now_s = 0.0
        self.ends: list[int] = []

    def end(self, place: int) -> None:
        self.ends.append(place)
        self._policy.end(place)

    def settle(self, now_s: float) -> Iterable[tuple[int, int]]:
        changes = list(self._policy.settle(now_s))
        for place, gpus in changes:
            self.sizes[place].append((now_s, gpus))
        return changes


def watched(name: str, jobs: Sequence[MixedJob], costs: ResizeModel = FREE) -> tuple[Watched, list[PlayedJob]]:
    policy = Watched(policy_named(name, jobs, GPUS, costs), jobs)
    return policy, ElasticEngine(jobs, GPUS, policy, costs).play()


@st.composite
def workloads(draw: st.DrawFn) -> list[MixedJob]:
    """Up to fourteen jobs that want more than there is; instants in whole seconds, so that many coincide."""
    found = []
    for _ in range(draw(st.integers(1, 14))):
        short = draw(st.booleans())
        request = draw(st.integers(1, GPUS))
        label = ElasticKind.INTERACTIVE if short or draw(st.booleans()) else ElasticKind.BATCH
        found.append(
            MixedJob(
                float(draw(st.integers(0, 600))),
                float(draw(st.integers(1, 900 if short else 9000))),
                request,
                short,
                label,
                is_elastic=draw(st.booleans()),
                is_linear=draw(st.booleans()),
                shards=draw(st.none() | st.integers(request, 4 * request)),
            )
        )
    return sorted(found, key=lambda one: one.submit_s)


@settings(max_examples=60)
@given(workloads(), st.sampled_from((*POLICIES, *ONE_LITERAL)))
def test_work_is_conserved(jobs: list[MixedJob], name: str) -> None:
    """What each job did at each size it had, for as long as it had it, adds up to all of its work: nothing is lost when
    a job is resized or stopped, and nothing is done twice."""
    policy, played = watched(name, jobs)
    for job, sizes, one in zip(jobs, policy.sizes, played, strict=True):
        profile = job.profile()
        course = [*((at_s, job.rate(profile, gpus)) for at_s, gpus in sizes), (one.end_s, 0.0)]
        done_s = sum((until_s - at_s) * rate for (at_s, rate), (until_s, _) in pairwise(course))
        assert done_s == pytest.approx(job.duration_s, rel=1e-6, abs=1e-3)


@settings(max_examples=60)
@given(workloads(), st.sampled_from((*POLICIES, *ONE_LITERAL)), st.sampled_from((FREE, LORA_8B)))
def test_no_gpu_is_given_twice(jobs: list[MixedJob], name: str, costs: ResizeModel) -> None:
    """At no instant do all jobs together hold more than there are, and each ends once."""
    policy, played = watched(name, jobs, costs)
    held = [
        (from_s, until_s, gpus)
        for sizes, one in zip(policy.sizes, played, strict=True)
        for (from_s, gpus), (until_s, _) in pairwise([*sizes, (one.end_s, 0)])
    ]
    for at_s, _, _ in held:
        assert sum(gpus for from_s, until_s, gpus in held if from_s <= at_s < until_s) <= GPUS
    assert sorted(policy.ends) == list(range(len(jobs)))


@settings(max_examples=60)
@given(workloads(), st.sampled_from(OURS), st.sampled_from((FREE, LORA_8B)))
def test_an_interactive_job_is_never_preempted(jobs: list[MixedJob], name: str, costs: ResizeModel) -> None:
    """It never has fewer GPUs than before, unless it runs so long that it is taken for a batch job."""
    policy, played = watched(name, jobs, costs)
    for job, sizes, one in zip(jobs, policy.sizes, played, strict=True):
        if job.label is ElasticKind.INTERACTIVE and one.end_s - one.first_gpu_s < NEVER_DEMOTED_S:
            assert all(after >= before for (_, before), (_, after) in pairwise(sizes))


@settings(max_examples=40)
@given(workloads(), st.sampled_from(("tiresias", "srtf", "fifo")))
def test_rigid_policies_give_the_request_or_nothing(jobs: list[MixedJob], name: str) -> None:
    policy, _ = watched(name, jobs)
    for job, sizes in zip(jobs, policy.sizes, strict=True):
        assert {gpus for _, gpus in sizes} <= {0, job.request}


@settings(max_examples=40)
@given(workloads(), st.sampled_from((*OURS, "elasticflow")))
def test_a_job_that_is_not_elastic_has_its_exact_size_or_nothing(jobs: list[MixedJob], name: str) -> None:
    """Under policies that resize all others; and nobody has more than twice the request."""
    policy, _ = watched(name, jobs)
    for job, sizes in zip(jobs, policy.sizes, strict=True):
        found = {gpus for _, gpus in sizes}
        assert max(found) <= 2 * job.request
        if not job.is_elastic:
            assert found <= {0, job.request}
