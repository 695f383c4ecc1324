"""The whole service as processes on this host, and ways to disturb it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import httpx

import allpass
from allpass.wire.jobs import Job as JobInfo
from app.stack.supervisor import Stack
from workers.machines.order import MACHINE_ID_VARIABLE

Found = TypeVar("Found")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PATIENCE_S = 90.0


def until(what: str, look: Callable[[], Found | None], within_s: float = PATIENCE_S) -> Found:
    """The first truthy thing that `look` finds. Fails saying `what` was waited for."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"waited {within_s:.0f} s for {what}")


@dataclass
class Service:
    """A running stack, its client, and what its parts say when they are asked behind its back."""

    stack: Stack
    client: allpass.Client
    _apps: dict[str, allpass.App] = field(default_factory=dict)

    def submit(self, script: str, parameters: Mapping[str, Any], **template: Any) -> allpass.Job:
        """Run an example as a job."""
        if script not in self._apps:
            name = f"story-{script.removesuffix('.py')}"
            self._apps[script] = allpass.build(name, "ada", code=EXAMPLES / script, client=self.client)
        return self._apps[script].run(template=template, parameters=parameters, soft_deadline="6hr")

    def wait_for(self, job: allpass.Job, what: str, holds: Callable[[JobInfo], bool]) -> JobInfo:
        """The job once `holds`; fails at once when it ended without."""

        def look() -> JobInfo | None:
            info = job.info()
            if holds(info):
                return info
            assert info.status not in ("succeeded", "failed", "cancelled"), f"{what}: {self.story(job)}"
            return None

        return until(f"{what}: {job.id}", look)

    def wait_for_end(self, job: allpass.Job) -> JobInfo:
        return job.wait(timeout=PATIENCE_S, poll_s=0.1)

    def story(self, job: allpass.Job) -> str:
        """What happened, for the message of a failing test."""
        events = "\n".join(f"{event.at:%H:%M:%S.%f} {event.kind}: {event.message}" for event in job.events())
        return f"{job.info().status}\n{events}\n{self.stack.children['server'].log_tail(6000)}"

    def crash_server(self) -> None:
        """SIGKILL, as a crash would be."""
        self.kill(self.stack.children["server"].pid)
        until("the server's end", lambda: not self.stack.children["server"].alive())

    def restart_server(self) -> None:
        """At once, however often it was killed before: the stack itself would take its time."""
        server = self.stack.children["server"]
        server.restart()
        server.wait_until_ready(60)

    def training_process(self, job: allpass.Job) -> int:
        """The process of the job's own code."""

        def look() -> int | None:
            found = [pid for pid in processes() if job.id == environment(pid).get("ALLPASS_JOB_ID")]
            return max(found, default=None)

        return until(f"the process of {job.id}", look)

    def agent_process(self, job: allpass.Job) -> int:
        """The agent above the job's process."""

        def look() -> int | None:
            pid = self.training_process(job)
            while str(self.stack.layout.agent) not in command_line(pid):
                above = parent(pid)
                if above is None:  # it has ended meanwhile: the job may be on its way to another machine
                    return None
                assert above > 1, "no agent above the job's process"
                pid = above
            return pid

        return until(f"the agent above the process of {job.id}", look)

    def agent_of(self, node_id: str) -> int:
        """The agent on the machine of this node."""
        machines = self.cloud("/v1/machines")["machines"]
        (machine_id,) = (machine["id"] for machine in machines if machine["label"] == node_id)
        agent = str(self.stack.layout.agent)

        def look() -> int | None:
            found = [pid for pid in processes() if environment(pid).get(MACHINE_ID_VARIABLE) == machine_id]
            return min((pid for pid in found if agent in command_line(pid)), default=None)

        return until(f"the agent of {node_id}", look)

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    def kill_code(self, job: allpass.Job) -> None:
        """The process of the job's own code, on whatever machine it is by then."""

        def killed() -> bool:
            try:
                self.kill(self.training_process(job))
            except ProcessLookupError:  # it has left meanwhile
                return False
            return True

        until(f"a process of {job.id} to kill", killed)

    def cloud(self, path: str) -> Any:
        """Ask the local cloud itself."""
        key = self.stack.secrets()["local_cloud_key"]
        with httpx.Client(trust_env=False, timeout=10) as http:
            answer = http.get(self.stack.cloud_url + path, headers={"Authorization": f"Bearer {key}"})
        answer.raise_for_status()
        return answer.json()

    def rows(self, query: str) -> list[Any]:
        """Ask the database itself."""
        assert self.stack._postgres is not None
        url = self.stack._postgres.url()

        async def fetch() -> list[Any]:
            connection = await asyncpg.connect(url)
            try:
                return list(await connection.fetch(query))
            finally:
                await connection.close()

        return asyncio.run(fetch())

    def execute(self, statement: str) -> None:
        """Do something to the database itself."""
        assert self.stack._postgres is not None
        url = self.stack._postgres.url()

        async def run() -> None:
            connection = await asyncpg.connect(url)
            try:
                await connection.execute(statement)
            finally:
                await connection.close()

        asyncio.run(run())

    def settled(self) -> int:
        """Wait until no machine is left and every meter is closed; then the ledger must equal the bill (micro-USD).
        What own machines cost is on nobody's bill."""
        until("the last machine's end", lambda: not self.live_machines())
        until("the last meter's end", lambda: not self.rows("SELECT id FROM nodes WHERE NOT meter_closed"))
        bill = self.cloud("/v1/bill")
        labels = [line["label"] for line in bill["lines"]]
        assert len(labels) == len(set(labels)), "a node was rented twice"
        billed = {line["label"]: line["amount_micros"] for line in bill["lines"]}
        ledger = self.rows(
            """SELECT node_id, sum(amount_micros)::bigint AS micros FROM ledger JOIN nodes ON nodes.id = node_id
               WHERE provider = 'local' GROUP BY node_id"""
        )
        booked = {row["node_id"]: row["micros"] for row in ledger}
        differ = {
            node: (booked.get(node, 0), billed.get(node, 0), self._past_of(node))
            for node in booked.keys() | billed.keys()
            if booked.get(node, 0) != billed.get(node, 0)
        }
        assert not differ, f"booked and billed, in micro-dollars: {differ}"
        total: int = bill["total_micros"]
        return total

    def _past_of(self, node_id: str) -> str:
        """A node's row, what happened to it, and the machines that bear its name, for the message of a failing test."""
        rows = self.rows(f"SELECT * FROM nodes WHERE id = '{node_id}'")
        events = self.rows(
            f"SELECT at_ms, kind, message FROM node_events WHERE node_id = '{node_id}' ORDER BY position"
        )
        asked = self.rows(f"SELECT * FROM provider_operations WHERE node_id = '{node_id}' ORDER BY created_ms")
        booked = self.rows(f"SELECT payer, from_ms, to_ms, amount_micros FROM ledger WHERE node_id = '{node_id}'")
        machines = [one for one in self.cloud("/v1/machines")["machines"] if one["label"] == node_id]
        return "\n".join(str(dict(one)) for one in (*rows, *events, *asked, *booked, *machines))

    def live_machines(self) -> list[str]:
        machines = self.cloud("/v1/machines")["machines"]
        return [machine["id"] for machine in machines if machine["status"] != "ended"]


def uninterrupted(folder: Path, script: str, parameters: Mapping[str, Any]) -> tuple[dict[int, float], bytes]:
    """The script run alone, start to end: its losses by step, and the model it leaves."""
    folder.mkdir()
    (folder / "parameters.json").write_text(json.dumps(parameters))
    variables = {
        "ALLPASS_PARAMETERS_FILE": "parameters.json",
        "ALLPASS_CHECKPOINT_DIR": "checkpoints",
        "ALLPASS_OUTPUT_DIR": "output",
        "ALLPASS_METRICS_FILE": "metrics.jsonl",
    }
    subprocess.run(
        [sys.executable, str(EXAMPLES / script)], cwd=folder, env={**os.environ, **variables}, check=True, timeout=60
    )
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = {line["step"]: line["loss"] for line in lines if "loss" in line}
    return losses, (folder / "output" / "model.json").read_bytes()


def processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def environment(pid: int) -> dict[str, str]:
    """Of another process; empty when it is gone."""
    try:
        pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return dict(pair.decode(errors="replace").split("=", 1) for pair in pairs if b"=" in pair)


def command_line(pid: int) -> list[str]:
    """Empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def parent(pid: int) -> int | None:
    """None when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[1])
