"""What a user wants and what befalls the machines, told round by round. Each turn may be taken again after a crash."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from allpass.wire.controls import JobUpdate
from allpass.wire.jobs import JobRequest
from app.db import tables as t
from app.db.access.idempotency import RequestKey
from tests.control.fake_provider import Fault
from tests.crashes.agent import Program
from tests.crashes.stage import Stage


class User:
    """Submits one job under one key, asking again until it is answered, and then does what its story says."""

    def __init__(self, then: Callable[[Stage, User, Any], Awaitable[None]] | None, template: dict[str, Any]) -> None:
        self._then = then
        self._template = template
        self.job_id: str | None = None
        self.done: list[str] = []

    async def turn(self, stage: Stage) -> None:
        if self.job_id is None:
            self.job_id = await self._submit(stage)
        elif self._then is not None:
            await self._then(stage, self, await stage.job())

    async def _submit(self, stage: Stage) -> str:
        request = JobRequest.model_validate({"app_id": stage.app[0], "template": self._template})
        body = request.model_dump_json().encode()
        key = RequestKey("the one submission", "POST /v1/jobs", hashlib.sha256(body).digest())
        return await stage.call(lambda server: server.submit(stage.project_id, request, key))


_OF_THE_PLACE = frozenset({"stays", "sizes", "moves", "epoch", "starts", "prepared_moves"})


@dataclass(frozen=True)
class Story:
    """`ends`: state and reason. `stays`: the runs, by tier and end. `prepared_moves`: how many of its moves were made
    before the old place was broken.

    `may_change`: what of the summary a crash may change, since the user acts a round later then.
    `follows_place`: what may change when a create call was announced, not made, and announced again. That happens only
    after the company's grace for machines that are listed late, and by then another place may be the better one.
    """

    name: str
    ends: tuple[str, str]
    stays: tuple[tuple[str, str], ...]
    then: Callable[[Stage, User, Any], Awaitable[None]] | None = None
    program: Program = field(default_factory=Program)
    template: dict[str, Any] = field(default_factory=dict)
    create_faults: tuple[Fault | None, ...] = ()
    serverless_budget_s: int = 10
    policy: str = "fixed-threshold"
    gpus: int = 1  # of each machine
    sizes: tuple[list[int], ...] | None = None  # what its runs held, one after the other
    prepared_moves: int = 0
    may_change: frozenset[str] = frozenset()
    follows_place: frozenset[str] = _OF_THE_PLACE

    def begin(self, stage: Stage) -> User:
        stage.program = self.program
        stage.cloud.create_faults = list(self.create_faults)
        stage.settings.serverless_budget_s = self.serverless_budget_s
        stage.settings.policy = self.policy
        stage.cloud.on_offer = [replace(offer, gpu_count=self.gpus) for offer in stage.cloud.on_offer]
        if self.policy == "allpass":
            stage.settings.policy_rules = _RULES
            stage.settings.move_save_s = stage.settings.move_load_s = stage.settings.move_prepare_s = 0.1
        return User(self.then, self.template)

    def differences(self, reference: dict[str, Any], summary: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
        """What came out otherwise than in the reference and was not to."""
        excused = self.may_change | {"repeated_creates"}
        if summary["repeated_creates"] > reference["repeated_creates"]:
            excused |= self.follows_place
        return {
            name: (value, summary[name])
            for name, value in reference.items()
            if name not in excused and summary[name] != value
        }


async def _cancel(stage: Stage, user: User, job: Any) -> None:
    if job.state == "running" and job.step > 0:
        await stage.call(lambda server: server.cancel(stage.project_id, job.id))


async def _pause_and_resume(stage: Stage, user: User, job: Any) -> None:
    if job.state == "running" and job.step > 0 and "paused" not in user.done:
        await stage.call(lambda server: server.pause(stage.project_id, job.id))
        user.done.append("paused")
    elif job.state == "paused":
        user.done.append("paused")  # it was, if nobody told so
        await stage.call(lambda server: server.resume(stage.project_id, job.id))


async def _allow_more(stage: Stage, user: User, job: Any) -> None:
    if job.state == "paused":
        await stage.call(lambda server: server.update(stage.project_id, job.id, JobUpdate(max_cost_usd=5)))
        await stage.call(lambda server: server.resume(stage.project_id, job.id))


async def _resize(stage: Stage, user: User, job: Any) -> None:
    """From three of four GPUs to one, and to all four once that is so."""
    (size,) = [len(one.gpu_indices) for one in await stage.rows(t.allocations) if one.to_ms is None] or (0,)
    if job.state == "running" and job.step > 0 and "fewer" not in user.done:
        await stage.call(lambda server: server.resize(stage.project_id, job.id, 1))
        user.done.append("fewer")
    elif job.state == "running" and size == 1 and "more" not in user.done:
        await stage.call(lambda server: server.resize(stage.project_id, job.id, 4))
        user.done.append("more")


async def _lose_the_rented(stage: Stage, user: User, job: Any) -> None:
    """The machine that the job moved to dies once it has saved there."""
    if "died" in user.done or (job.checkpoint_step or 0) < _SAVED_THERE:
        return
    for node_id, agent in stage.agents.items():
        if job.moves == 1 and agent.runs_code_of(job.id):
            stage.cloud.die(node_id)
            user.done.append("died")


# Jobs that have run for one round move, and nothing is rented for jobs to come.
_RULES: dict[str, float] = {"least_run_ms": 2_000, "patience_ms": 0, "ahead_gain": 1e9}
_SAVED_THERE = 20
_MOVED = (("serverless", "demoted"), ("marketplace", "finished"))
STORIES = (
    Story("moved", ("succeeded", "finished"), _MOVED),
    Story(
        "moved ahead", ("succeeded", "finished"), _MOVED, policy="allpass", program=Program(steps=60), prepared_moves=1
    ),
    Story("code fails", ("failed", "user_code_failed"), (("serverless", "failed"),), program=Program(fails_at=5)),
    Story(
        "cancelled",
        ("cancelled", "cancelled"),
        (("serverless", "cancelled"),),
        then=_cancel,
        serverless_budget_s=600,
        may_change=frozenset({"step"}),  # the code trains on until the cancel arrives
    ),
    Story(
        "paused",
        ("succeeded", "finished"),
        (("serverless", "paused"), ("serverless", "finished")),
        then=_pause_and_resume,
        program=Program(steps=20),
        serverless_budget_s=600,
    ),
    Story(
        "answers lost",
        ("succeeded", "finished"),
        _MOVED,
        create_faults=(Fault.LOST_REPLY, Fault.LOST_REQUEST),
    ),
    Story(
        "machine lost",
        ("succeeded", "finished"),
        (("serverless", "demoted"), ("marketplace", "node_lost"), ("marketplace", "finished")),
        then=_lose_the_rented,
        program=Program(steps=40, save_every=10),
        follows_place=_OF_THE_PLACE | {"faults"},  # what never moves there is not there when it dies
    ),
    Story(
        "capped",
        ("succeeded", "finished"),
        (("serverless", "capped"), ("serverless", "finished")),
        then=_allow_more,
        program=Program(steps=40),
        template={"caps": {"max_cost_usd": 0.0125}},
        serverless_budget_s=600,
    ),
    Story(
        "resized",
        ("succeeded", "finished"),
        (("serverless", "finished"),),
        then=_resize,
        program=Program(steps=60, is_elastic=True),
        template={"gpu": {"count": 3}},
        gpus=4,
        sizes=([0, 1, 2, 3], [0], [0, 1, 2, 3]),
        serverless_budget_s=600,
    ),
)
