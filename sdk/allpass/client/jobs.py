"""The clients' methods about jobs and sweeps: submitting, finding, steering, waiting."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime
from functools import partial

from allpass import calls, flows
from allpass.client.awaited import Awaited
from allpass.client.blocking import Blocking
from allpass.client.setup import new_key
from allpass.wire import controls as wire_controls
from allpass.wire import jobs as wire_jobs
from allpass.wire import plan as wire_plan
from allpass.wire import standby as wire_standby
from allpass.wire.calibrations import Calibration, CalibrationUpdate


class JobMethods(Blocking):
    """Of `Client`."""

    def submit_job(self, request: wire_jobs.JobRequest, *, idempotency_key: str | None = None) -> wire_jobs.Job:
        """Submit one job. Repeating a call with the same `idempotency_key` gives the job that exists."""
        return self._call(calls.submit_job(request, key=idempotency_key or new_key()))

    def submit_sweep(self, request: wire_jobs.SweepRequest, *, idempotency_key: str | None = None) -> wire_jobs.Sweep:
        """Submit one job per parameter set, all or none."""
        return self._call(calls.submit_sweep(request, key=idempotency_key or new_key()))

    def plan(self, request: wire_plan.PlanRequest) -> wire_plan.Plan:
        """What the job would need, and on which GPUs that can be rented now it fits. Nothing is submitted."""
        return self._call(calls.plan_job(request, key=new_key()))

    def calibrations(self) -> Iterator[Calibration]:
        """How far memory predictions were off for the project's runs, by kind: plans are corrected by it."""
        return self._each(flows.every(self._protocol, calls.list_calibrations))

    def get_calibration(self, calibration_id: str) -> Calibration:
        """One of them."""
        return self._call(calls.get_calibration(calibration_id))

    def switch_calibration(self, calibration_id: str, *, enabled: bool) -> Calibration:
        """Switched off it goes on learning and corrects nothing; needs a key with scope `admin`."""
        return self._call(calls.update_calibration(calibration_id, CalibrationUpdate(enabled=enabled)))

    def delete_calibration(self, calibration_id: str) -> Calibration:
        """Have plans of this kind go by the model alone again; needs a key with scope `admin`."""
        return self._call(calls.delete_calibration(calibration_id))

    def get_sweep(self, sweep_id: str) -> wire_jobs.Sweep:
        return self._call(calls.get_sweep(sweep_id))

    def jobs(
        self,
        *,
        status: str | None = None,
        app: str | None = None,
        label: str | None = None,
        name: str | None = None,
        submitted_after: datetime | None = None,
        submitted_before: datetime | None = None,
    ) -> Iterator[wire_jobs.Job]:
        """Jobs of the project, newest first. `label` is `key=value`, `name` a part of the name in any case; times
        are instants with their zone, from `submitted_after` on and before `submitted_before`."""
        listed = partial(
            calls.list_jobs,
            status=status,
            app=app,
            label=label,
            name=name,
            submitted_after=submitted_after,
            submitted_before=submitted_before,
        )
        return self._each(flows.every(self._protocol, listed))

    def get_job(self, job_id: str) -> wire_jobs.Job:
        return self._call(calls.get_job(job_id))

    def cancel_job(self, job_id: str) -> wire_jobs.Job:
        """Stop the job for good. Cancelling one that has ended is a Conflict."""
        return self._call(calls.cancel_job(job_id, key=new_key()))

    def pause_job(self, job_id: str, *, lose_steps: bool = False) -> wire_jobs.Job:
        """Let the job save, leave, and wait until it is resumed. Conflict if it has ended; with the code
        `steps_would_be_lost` if its checkpoints are not kept: `lose_steps` pauses it all the same."""
        return self._call(calls.pause_job(job_id, lose_steps=lose_steps, key=new_key()))

    def resume_job(self, job_id: str) -> wire_jobs.Job:
        """Let a paused job go on. Conflict if it has ended, or its limit would stop it again (`param` names it)."""
        return self._call(calls.resume_job(job_id, key=new_key()))

    def resize_job(self, job_id: str, gpus: int | None = None, *, nodes: int | None = None) -> wire_jobs.Job:
        """Have the job go on with so many GPUs, or on so many machines: one of the two. Conflict with the code
        `not_elastic` if its training keeps those that it began with, and `no_room` if its machine has not so many GPUs
        that are free."""
        return self._call(calls.resize_job(job_id, gpus, nodes, key=new_key()))

    def begin_standby(self, job_id: str, until: str, *, lose_steps: bool = False) -> wire_standby.Standby:
        """Lend the job's GPUs to spot jobs until then: "8h" from now, or an instant with its zone. Conflict with the
        code `not_lendable` if they cannot be lent: the message says what would have to change."""
        return self._call(calls.begin_standby(job_id, until, lose_steps=lose_steps, key=new_key()))

    def end_standby(self, job_id: str) -> wire_standby.Standby:
        """Call the job back now. Conflict if it does not stand by."""
        return self._call(calls.end_standby(job_id, key=new_key()))

    def list_standbys(self, job_id: str) -> list[wire_standby.Standby]:
        """When the job stood by, newest first, with what was paid for it and what was not."""
        return self._call(calls.list_standbys(job_id)).items

    def update_job(self, job_id: str, change: wire_controls.JobUpdate) -> wire_jobs.Job:
        """Change deadline, limits or labels of a job that is not over; see `allpass.changes.job_update`."""
        return self._call(calls.update_job(job_id, change))

    def explain_job(self, job_id: str) -> wire_controls.Explanation:
        """Why the job is where it is, what comes next, and whether it will meet its deadline."""
        return self._call(calls.explain_job(job_id))

    def wait(
        self,
        job_id: str,
        *,
        timeout_s: float | None = None,
        poll_s: float = 2.0,
        until: Callable[[wire_jobs.Job], bool] | None = None,
    ) -> wire_jobs.Job:
        """The job once it has ended, or once `until` holds; WaitTimeout if that takes longer than `timeout_s`."""
        return self._run(flows.wait(self._protocol, job_id, timeout_s, poll_s, self._clock, until))


class AsyncJobMethods(Awaited):
    """Of `AsyncClient`: as `JobMethods`, awaited."""

    async def submit_job(self, request: wire_jobs.JobRequest, *, idempotency_key: str | None = None) -> wire_jobs.Job:
        """As `Client.submit_job`."""
        return await self._call(calls.submit_job(request, key=idempotency_key or new_key()))

    async def submit_sweep(
        self, request: wire_jobs.SweepRequest, *, idempotency_key: str | None = None
    ) -> wire_jobs.Sweep:
        """As `Client.submit_sweep`."""
        return await self._call(calls.submit_sweep(request, key=idempotency_key or new_key()))

    async def plan(self, request: wire_plan.PlanRequest) -> wire_plan.Plan:
        """As `Client.plan`."""
        return await self._call(calls.plan_job(request, key=new_key()))

    def calibrations(self) -> AsyncIterator[Calibration]:
        return self._each(flows.every(self._protocol, calls.list_calibrations))

    async def get_calibration(self, calibration_id: str) -> Calibration:
        """As `Client.get_calibration`."""
        return await self._call(calls.get_calibration(calibration_id))

    async def switch_calibration(self, calibration_id: str, *, enabled: bool) -> Calibration:
        """As `Client.switch_calibration`."""
        return await self._call(calls.update_calibration(calibration_id, CalibrationUpdate(enabled=enabled)))

    async def delete_calibration(self, calibration_id: str) -> Calibration:
        """As `Client.delete_calibration`."""
        return await self._call(calls.delete_calibration(calibration_id))

    async def get_sweep(self, sweep_id: str) -> wire_jobs.Sweep:
        return await self._call(calls.get_sweep(sweep_id))

    def jobs(
        self,
        *,
        status: str | None = None,
        app: str | None = None,
        label: str | None = None,
        name: str | None = None,
        submitted_after: datetime | None = None,
        submitted_before: datetime | None = None,
    ) -> AsyncIterator[wire_jobs.Job]:
        """As `Client.jobs`."""
        listed = partial(
            calls.list_jobs,
            status=status,
            app=app,
            label=label,
            name=name,
            submitted_after=submitted_after,
            submitted_before=submitted_before,
        )
        return self._each(flows.every(self._protocol, listed))

    async def get_job(self, job_id: str) -> wire_jobs.Job:
        return await self._call(calls.get_job(job_id))

    async def cancel_job(self, job_id: str) -> wire_jobs.Job:
        """As `Client.cancel_job`."""
        return await self._call(calls.cancel_job(job_id, key=new_key()))

    async def pause_job(self, job_id: str, *, lose_steps: bool = False) -> wire_jobs.Job:
        """As `Client.pause_job`."""
        return await self._call(calls.pause_job(job_id, lose_steps=lose_steps, key=new_key()))

    async def resume_job(self, job_id: str) -> wire_jobs.Job:
        """As `Client.resume_job`."""
        return await self._call(calls.resume_job(job_id, key=new_key()))

    async def resize_job(self, job_id: str, gpus: int | None = None, *, nodes: int | None = None) -> wire_jobs.Job:
        """As `Client.resize_job`."""
        return await self._call(calls.resize_job(job_id, gpus, nodes, key=new_key()))

    async def begin_standby(self, job_id: str, until: str, *, lose_steps: bool = False) -> wire_standby.Standby:
        """As `Client.begin_standby`."""
        return await self._call(calls.begin_standby(job_id, until, lose_steps=lose_steps, key=new_key()))

    async def end_standby(self, job_id: str) -> wire_standby.Standby:
        """As `Client.end_standby`."""
        return await self._call(calls.end_standby(job_id, key=new_key()))

    async def list_standbys(self, job_id: str) -> list[wire_standby.Standby]:
        """As `Client.list_standbys`."""
        return (await self._call(calls.list_standbys(job_id))).items

    async def update_job(self, job_id: str, change: wire_controls.JobUpdate) -> wire_jobs.Job:
        """As `Client.update_job`."""
        return await self._call(calls.update_job(job_id, change))

    async def explain_job(self, job_id: str) -> wire_controls.Explanation:
        """As `Client.explain_job`."""
        return await self._call(calls.explain_job(job_id))

    async def wait(
        self,
        job_id: str,
        *,
        timeout_s: float | None = None,
        poll_s: float = 2.0,
        until: Callable[[wire_jobs.Job], bool] | None = None,
    ) -> wire_jobs.Job:
        """As `Client.wait`."""
        return await self._run(flows.wait(self._protocol, job_id, timeout_s, poll_s, self._clock, until))
