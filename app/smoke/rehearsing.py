"""Play the rehearsal against a service that runs: one job, two machines one after the other, and the end of both."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import allpass
from allpass.errors import AllpassError as ClientError
from allpass.errors import Conflict, ConnectionFailed, RateLimited, ServerError
from allpass.wire.jobs import TERMINAL_STATUSES, Job, Node
from app.errors import AllpassError
from app.smoke.report import Report
from app.smoke.spending import Spending

SCRIPT = Path(__file__).with_name("rehearsal.py")
LABEL = "allpass-smoke"
GONE = frozenset({"terminated", "failed"})
_MARK = "rehearsal "
_FIRST_STEPS = 3
_PASSING = (ConnectionFailed, RateLimited, ServerError)


class RehearsalFailed(AllpassError):
    """What was to happen did not."""

    code = "rehearsal_failed"


class Rehearsal:
    """`admin` sees everything, also what was submitted by a call whose answer was lost."""

    def __init__(
        self,
        admin: allpass.Client,
        spending: Spending,
        report: Report,
        say: Callable[[str], None],
        *,
        poll_s: float = 2.0,
    ) -> None:
        self._admin, self._spending, self._report, self._tell = admin, spending, report, say
        self._poll_s = poll_s
        self._begun = time.monotonic()
        self._mark = secrets.token_hex(6)
        self.job_id: str | None = None
        self.nodes: dict[str, Node] = {}

    @property
    def label(self) -> str:
        return f"{LABEL}={self._mark}"

    def cancel(self) -> None:
        """Whatever state the job is in."""
        if self.job_id is not None:
            with suppress(Conflict):
                self._admin.cancel_job(self.job_id)

    # -- what is played

    def play(self, client: allpass.Client) -> None:
        """Raises RehearsalFailed, and the client's errors. Whoever calls it ends everything afterwards."""
        self.say(f"send the script of the rehearsal, and submit it as a job (at {self._spending.offer.provider})")
        app = allpass.build("allpass-smoke", code=SCRIPT, client=client)
        job = app.run(template=self._template(), soft_deadline="6hr")
        assert isinstance(job, allpass.Job)
        self.job_id = job.id
        self.say(f"wait until {job.id} trains on its first machine")
        self._until("train", lambda one: one.step >= _FIRST_STEPS)
        first = set(self.nodes)
        self.say("ask it to save and to leave, as for a move")
        self._patiently(lambda: client.pause_job(job.id))
        saved = self._until("save and leave", lambda one: one.status == "paused").checkpoint_step
        if saved is None:
            raise RehearsalFailed("the job left its first machine without a checkpoint")
        self.say(f"it saved step {saved}; wait until the first machine is ended")
        self.await_end(first)
        self.say(f"let it go on from step {saved} on a second machine")
        self._patiently(lambda: client.resume_job(job.id))
        self._until("go on", lambda one: one.step > saved)
        self.say("wait until it is done")
        self._until("finish", lambda one: one.status == "succeeded")
        self._check_move(job.id, saved)

    def _template(self) -> dict[str, Any]:
        spending, offer = self._spending, self._spending.offer
        return {
            "gpu": {"count": 1},
            "start": "now" if offer.tier == "serverless" else "when-cheap",
            "placement": {"locked": True},
            "sharing": False,
            "labels": {LABEL: self._mark},
            "caps": {
                "max_cost_usd": spending.job_micros / 1e6,
                "max_hourly_usd": spending.most_hourly_micros / 1e6,
                "max_duration_s": spending.most_s,
                "max_wait_s": 60,
            },
            "checkpoint_interval_s": 60,
            "retries": 0,
        }

    def check_gpus(self) -> None:
        """Raises RehearsalFailed where a machine of a company shows its script no GPU."""
        looks = self.looks()
        if not looks or any(one.get("gpu") is None for one in looks):
            raise RehearsalFailed("the script saw no GPU: nvidia-smi does not answer it (look at image and driver)")
        if any(one.get("torch") and one.get("device") != "cuda" for one in looks):
            raise RehearsalFailed("torch is in the image and finds no GPU: its CUDA does not go with the driver")
        self.say(f"the script sees {looks[0]['gpu']}, and trained on {looks[0]['device']}")

    def _check_move(self, job_id: str, saved: int) -> None:
        stays = [stay for stay in self._admin.timeline(job_id).stays if stay.running_at is not None]
        if len({stay.node_id for stay in stays}) < 2:
            raise RehearsalFailed("the job went on on the machine where it had begun")
        if stays[-1].resumed_from_step != saved:
            raise RehearsalFailed(f"it saved step {saved} and went on from {stays[-1].resumed_from_step}")
        elsewhere = {stay.provider for stay in stays} - {self._spending.offer.provider}
        if elsewhere:
            raise RehearsalFailed(f"it also ran at {', '.join(sorted(elsewhere))}")
        self.say(f"it went on at exactly step {saved}, on another machine")

    # -- how it is followed

    def say(self, what: str) -> None:
        """On the screen and in the report."""
        at_s = time.monotonic() - self._begun
        self._tell(f"{at_s:7.1f} s  {what}")
        self._report.note(at_s, what)

    def _until(self, what: str, holds: Callable[[Job], bool]) -> Job:
        """The job, once it holds. Fails when it ends without, or when the time is over."""
        told = ""
        while True:
            job: Job | None = self._patiently(self.job)
            assert job is not None
            self.note_nodes()
            if holds(job):
                return job
            if job.status in TERMINAL_STATUSES or (job.status == "paused" and job.reason != "user"):
                raise RehearsalFailed(f"the job did not {what}: {job.status}, {job.message or job.reason}")
            self._check_time(what)
            told = self._say_if_new(job, told)
            time.sleep(self._poll_s)

    def _say_if_new(self, job: Job, told: str) -> str:
        where = f" on {job.where.provider} {job.where.gpu_type} {job.where.node_id}" if job.where else ""
        now = f"{job.status}{where}{f' ({job.message})' if job.message else ''}"
        if now != told:
            self._tell(f"{'':10}  {now}")
        return now

    def _check_time(self, what: str) -> None:
        if time.monotonic() - self._begun > self._spending.most_s:
            raise RehearsalFailed(f"the job did not {what} within {self._spending.most_s // 60} minutes")

    def _patiently(self, call: Callable[[], Any]) -> Any:
        """Again, while the service cannot be reached for a moment."""
        while True:
            try:
                return call()
            except _PASSING as error:
                self._check_time(f"go on ({error})")
                time.sleep(self._poll_s)

    def job(self) -> Job | None:
        """Found by its label where the answer to its submission was lost."""
        if self.job_id is None:
            self.job_id = next((one.id for one in self._admin.jobs(label=self.label)), None)
        return None if self.job_id is None else self._admin.get_job(self.job_id)

    def note_nodes(self) -> None:
        """Keep in mind every machine that was ever rented for the job."""
        with suppress(*_PASSING):
            known = {stay.node_id for stay in self._admin.timeline(self.job_id).stays} if self.job_id else set()
            known |= set(self.nodes)
            for node in self._admin.nodes(include_gone=True):
                if node.id in known or (self.job_id and self.job_id in (node.rented_for_job_id, *node.job_ids)):
                    self.nodes[node.id] = node

    def await_end(self, node_ids: set[str]) -> None:
        while True:
            self.note_nodes()
            if all(self.nodes[one].state in GONE for one in node_ids):
                return
            self._check_time("see its machine ended")
            time.sleep(self._poll_s)

    # -- what was seen

    def looks(self) -> list[dict[str, Any]]:
        """What the script told of each machine; nothing where its log cannot be had."""
        if self.job_id is None:
            return []
        with suppress(ClientError, ValueError):
            text = "".join(page.text for page in self._admin.log_pages(self.job_id))
            lines = [line.partition(_MARK)[2] for line in text.splitlines() if line.partition(_MARK)[2].startswith("{")]
            return [one for line in lines for one in [json.loads(line)] if isinstance(one, dict)]
        return []
