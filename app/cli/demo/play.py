"""The demo: bring the stack up, run three jobs through the SDK, watch them, judge the result."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from allpass.client import Client
from allpass.errors import AllpassError as ClientError
from app.cli.demo.jobs import DemoJobs, submit_jobs
from app.cli.demo.reference import ReferenceRun
from app.cli.demo.verdict import DemoVerdict, judge
from app.cli.demo.view import watch
from app.cli.up import Providers
from app.errors import AllpassError
from app.stack.supervisor import Clouds, Stack, StackOptions

CLOUD_SPEED = 0.1
# The policy's durations, for jobs of a minute on a cloud that starts machines ten times as fast as a real one.
_RULES = {
    "least_run_ms": 10_000,
    "move_pause_share": 0.25,
    "patience_ms": 6_000,
    "reuse_half_life_ms": 6_000,
    "warm_most_ms": 10_000,
}
_SETTINGS = {
    "ALLPASS_POLICY": "allpass",
    "ALLPASS_POLICY_RULES": json.dumps(_RULES),
    "ALLPASS_MOVE_SAVE_S": "1",
    "ALLPASS_MOVE_LOAD_S": "1",
    "ALLPASS_MOVE_PREPARE_S": "3",
    "ALLPASS_SERVERLESS_BUDGET_S": "20",
    "ALLPASS_TICK_S": "2",
    "ALLPASS_METER_S": "1",
    "ALLPASS_SWEEP_S": "5",
}


def play(*, keep: bool, steps: int, providers: Providers) -> int:
    """Run the demo on this machine; the exit code: 0 only if all of it came out right."""
    on_terminal = sys.stdout.isatty()
    console = Console(stderr=not on_terminal, highlight=False, width=None if on_terminal else 130)
    data_dir = Path(tempfile.mkdtemp(prefix="allpass-demo-"))
    clouds = Clouds(providers.value)
    options = StackOptions(data_dir, port=0, cloud_speed=CLOUD_SPEED, settings=_SETTINGS, clouds=clouds)
    stack = Stack(options, tell=lambda line: console.print(line, markup=False))
    try:
        verdict = _run(stack, console, steps)
    except (AllpassError, ClientError) as error:
        console.print(f"[red]error:[/red] {escape(str(error))}")
        return 1
    except KeyboardInterrupt:
        console.print("stopped")
        return 130
    finally:
        stack.stop()
        if keep:
            console.print(f"kept: {data_dir}", markup=False)
        else:
            shutil.rmtree(data_dir, ignore_errors=True)
    sys.stdout.write(json.dumps(verdict.as_json()) + "\n")
    return 0 if verdict.ok else 1


def _run(stack: Stack, console: Console, steps: int) -> DemoVerdict:
    started = time.monotonic()
    console.print("Starting PostgreSQL, object store, clouds, API and control loop ...", style="dim")
    stack.start()
    console.print(f"Up after {time.monotonic() - started:.1f} s on {stack.url}", style="dim")
    connection = json.loads(stack.layout.client_file.read_text())
    with (
        Client(connection["url"], connection["api_key"]) as client,
        ReferenceRun(stack.layout.root / "reference", steps) as reference,
    ):
        jobs: DemoJobs = submit_jobs(client, steps)
        stalled = watch(client, jobs, reference, console, stack.restart_dead)
        return judge(stack, client, jobs, reference, console, started_s=started, stalled=stalled)
