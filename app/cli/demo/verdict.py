"""What came of the demo: compared, added up, shown as a table and as one JSON object."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from allpass.client import Client
from allpass.job import Job as Handle
from allpass.wire.jobs import Job, Timeline
from app.cli.demo.jobs import DemoJobs
from app.cli.demo.reference import ReferenceRun, adapter_sha256
from app.stack.supervisor import Stack

_RELEASE_WITHIN_S = 30.0
_EXPECTED = {"short": ("succeeded", None), "long": ("succeeded", None), "failing": ("failed", "user_code_failed")}
_LIVE = frozenset({"booting", "running", "stopped"})


@dataclass(frozen=True, slots=True)
class VerdictRow:
    job: Job
    timeline: Timeline
    pause_ms: int | None = None  # of its move, from the last step to the next

    @property
    def moved_at_step(self) -> int | None:
        return next((stay.resumed_from_step for stay in self.timeline.stays if stay.resumed_from_step), None)

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.job.id,
            "name": self.job.name,
            "status": self.job.status,
            "reason": self.job.reason,
            "tiers": [stay.tier for stay in self.timeline.stays],
            "steps": self.job.step,
            "moved_at_step": self.moved_at_step,
            "pause_s": None if self.pause_ms is None else self.pause_ms / 1000,
            "waiting_s": round(self.timeline.waiting_ms / 1000, 1),
            "cost_usd": self.timeline.cost / 1e6,
            "all_serverless_usd": self.timeline.all_serverless / 1e6,
        }


@dataclass(frozen=True, slots=True)
class DemoVerdict:
    """`problems` is empty exactly when everything is as promised."""

    rows: tuple[VerdictRow, ...]
    losses_identical: bool
    adapter_identical: bool
    orphan_nodes: int
    bill_matches: bool
    seconds: float
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        return {
            "demo": "ok" if self.ok else "failed",
            "jobs": [row.as_json() for row in self.rows],
            "losses_identical": self.losses_identical,
            "adapter_identical": self.adapter_identical,
            "orphan_nodes": self.orphan_nodes,
            "bill_matches": self.bill_matches,
            "seconds": round(self.seconds, 1),
            **({"problems": list(self.problems)} if self.problems else {}),
        }


def judge(
    stack: Stack,
    client: Client,
    jobs: DemoJobs,
    reference: ReferenceRun,
    console: Console,
    *,
    started_s: float,
    stalled: str | None = None,
) -> DemoVerdict:
    """Compare the moved job with the uninterrupted one, and the ledger with the cloud's bill. `stalled`: why it is done
    before all are over; the table is shown all the same."""
    if stalled is None:
        _wait_until_all_nodes_are_gone(client)
    rows = tuple(
        VerdictRow(client.get_job(job.id), client.timeline(job.id), _pause_ms(client, job.id)) for job in jobs.all()
    )
    losses = {point.step: point.values["loss"] for point in client.metrics(jobs.long.id) if "loss" in point.values}
    adapter = _adapter_of(jobs.long) if rows[1].job.status == "succeeded" else None
    losses_identical = bool(losses) and losses == reference.losses()
    adapter_identical = adapter is not None and adapter == reference.adapter_sha256()
    orphans, bill_matches = _compare_with_clouds(stack, client)
    verdict = DemoVerdict(
        rows,
        losses_identical,
        adapter_identical,
        orphans,
        bill_matches,
        time.monotonic() - started_s,
        (
            *([] if stalled is None else [stalled]),
            *_problems(rows, reference, losses_identical, adapter_identical, orphans, bill_matches),
        ),
    )
    _show(verdict, jobs, console)
    return verdict


def _pause_ms(client: Client, job_id: str) -> int | None:
    """Of the job's newest move whose first step was measured."""
    told = [event.data["pause_ms"] for event in client.events(job_id) if event.kind == "move_measured"]
    return int(told[-1]) if told else None


def _problems(
    rows: tuple[VerdictRow, ...], reference: ReferenceRun, losses: bool, adapter: bool, orphans: int, bill: bool
) -> list[str]:
    found = []
    for (kind, (status, reason)), row in zip(_EXPECTED.items(), rows, strict=True):
        wrong_reason = reason is not None and row.job.reason != reason
        if row.job.status != status or wrong_reason:
            found.append(f"the {kind} job is {row.job.status} ({row.job.reason}: {row.job.message})")
    short, long, failing = rows
    if [stay.tier for stay in short.timeline.stays] != ["serverless"]:
        found.append("the short job did not stay serverless")
    tiers = [stay.tier for stay in long.timeline.stays]
    if len(tiers) < 2 or tiers[0] != "serverless" or tiers[-1] == "serverless":
        found.append(f"the long job ran on {tiers}, not on serverless and then on a rented node")
    if failing.job.message is None or "Error" not in failing.job.message:
        found.append("the failing job's message does not show its exception")
    if (failure := reference.failure()) is not None:
        found.append(f"the uninterrupted run failed: {failure}")
    checks = {"per-step losses differ": losses, "adapter bytes differ": adapter, "ledger and bill differ": bill}
    found += [what for what, fine in checks.items() if not fine]
    if orphans:
        found.append(f"{orphans} machines are left at the cloud")
    return found


def _wait_until_all_nodes_are_gone(client: Client) -> None:
    deadline = time.monotonic() + _RELEASE_WITHIN_S
    while list(client.nodes()) and time.monotonic() < deadline:
        time.sleep(0.2)


def _adapter_of(job: Handle) -> str | None:
    with tempfile.TemporaryDirectory() as folder:
        job.download(folder)
        return adapter_sha256(Path(folder))


def _compare_with_clouds(stack: Stack, client: Client) -> tuple[int, bool]:
    """Machines still alive at the clouds, and whether our ledger adds up to their bills to the micro-dollar."""
    if stack.companies:
        books = [_books(one.admin_url, one.admin_key, "/admin/machines", "/admin/ledger") for one in stack.companies]
    else:
        books = [_books(stack.cloud_url, stack.secrets()["local_cloud_key"], "/v1/machines", "/v1/bill")]
    alive = sum(left for left, _ in books)
    ours = sum(node.cost for node in client.nodes(include_gone=True))
    return alive, ours == sum(total for _, total in books)


def _books(url: str, key: str, machines: str, bill: str) -> tuple[int, int]:
    """How many machines are left at a cloud, and its bill."""
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=10) as cloud:
        listed = cloud.get(machines).raise_for_status().json()["machines"]
        total = cloud.get(bill).raise_for_status().json()["total_micros"]
    return sum(one.get("status", one.get("state")) in _LIVE for one in listed), int(total)


def _show(verdict: DemoVerdict, jobs: DemoJobs, console: Console) -> None:
    table = Table(title="What happened", title_justify="left", box=None, pad_edge=False)
    for title in ("JOB", "STATUS", "TIERS", "STEPS", "WAITED", "COST", "ALL SERVERLESS"):
        table.add_column(title, no_wrap=True)
    for row in verdict.rows:
        stays = " -> ".join(f"{s.tier} ${s.price_per_hour / 1e6:.2f}/h" for s in row.timeline.stays)
        table.add_row(
            row.job.name,
            row.job.status if row.job.status == "succeeded" else f"{row.job.status}: {row.job.reason}",
            stays,
            str(row.job.step),
            f"{row.timeline.waiting_ms / 1000:.1f} s",
            f"${row.timeline.cost / 1e6:.5f}",
            f"${row.timeline.all_serverless / 1e6:.5f}",
        )
    console.print()
    console.print(table)
    for row in verdict.rows:
        if row.pause_ms is not None:
            paused = f"its training paused for {row.pause_ms / 1000:.1f} s"
            console.print(f"\n{row.job.name} moved at step {row.moved_at_step}: {paused}")
    console.print("\nThe failed job's log ends with:", style="dim")
    console.print("  " + "\n  ".join(list(jobs.failing.logs())[-3:]), markup=False)
    _show_checks(verdict, console)


def _show_checks(verdict: DemoVerdict, console: Console) -> None:
    console.print()
    checks = (
        ("per-step losses equal the uninterrupted run's, bit for bit", verdict.losses_identical),
        ("adapter bytes equal the uninterrupted run's", verdict.adapter_identical),
        ("no machine is left at the cloud", verdict.orphan_nodes == 0),
        ("the ledger equals the cloud's bill to the micro-dollar", verdict.bill_matches),
    )
    for what, fine in checks:
        console.print(f"[green]yes[/green]  {what}" if fine else f"[red]NO[/red]   {what}")
    for problem in verdict.problems:
        console.print(f"[red]problem:[/red] {escape(problem)}")
    console.print(f"{verdict.seconds:.0f} s from the stack's start", style="dim")
