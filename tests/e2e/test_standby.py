"""A guaranteed job lends its GPUs to spot jobs for a while and comes back to its machine, exactly where it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

import allpass
from allpass.errors import Conflict
from app.stack.supervisor import Clouds, Stack, StackOptions
from tests.documents import blocks_of
from tests.e2e.conftest import client_of
from tests.e2e.own_hosts import OwnHostProcess
from tests.e2e.service import EXAMPLES, Service, uninterrupted, until
from tests.folders import open_to_all

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

SPOT = {"priority_class": "spot"}
OWNER = {"steps": 500, "step_ms": 40, "seed": 21}
LONG = {"steps": 4_000, "step_ms": 40, "seed": 5}


@pytest.fixture(scope="module")
def lab() -> Iterator[Service]:
    """A stack without a cloud; pool `lab` has one host with two GPUs."""
    with open_to_all() as folder:
        settings = {"ALLPASS_STOP_GRACE_S": "8"}
        stack = Stack(StackOptions(folder / "data", port=0, clouds=Clouds.NONE, settings=settings), tell=print)
        stack.start()
        host = OwnHostProcess(folder, "one", gpus=2)
        try:
            with client_of(stack.layout.client_file) as client:
                client.create_pool("lab", price_usd=3.6)
                done = host.join(client.url, client.create_pool_token("lab").token)
                assert done.returncode == 0, done.stderr
                yield Service(stack, client)
        finally:
            host.clear()
            stack.stop()


def running(service: Service, job: allpass.Job, step: int = 5) -> None:
    service.wait_for(job, "running", lambda info: info.status == "running" and (info.step or 0) > step)


def test_two_gpus_are_lent_to_two_spot_jobs_and_come_back_after_a_crash(lab: Service, tmp_path: Path) -> None:
    """The server dies while its job is called back. Whatever came between, its losses and model are those of a run left
    alone, it begins again on the very machine, and what stood by is rebated."""
    losses, model = uninterrupted(tmp_path / "alone", "plain_loop.py", {**OWNER, "step_ms": 0})
    owner = lab.submit("plain_loop.py", OWNER, gpu={"count": 2})
    running(lab, owner)
    machine = lab.client.get_job(owner.id).where
    assert machine is not None
    owner.stand_by("2h")
    spot = [lab.submit("plain_loop.py", LONG, **SPOT) for _ in range(2)]
    for job in spot:
        running(lab, job)
    told = " ".join(one.text for one in lab.client.explain_job(owner.id).because)
    assert "its owner lends its 2 GPUs" in told
    assert "spot jobs use 2 of them; $3.60/h is paid meanwhile" in told
    (then, *_) = lab.client.explain_job(owner.id).next
    assert then.text.endswith("on its machine when its window is over, or its owner calls it back"), then.text
    assert "on GPUs that a guaranteed job lends until" in " ".join(
        one.text for one in lab.client.explain_job(spot[0].id).because
    )
    called = time.monotonic()
    owner.end_standby()
    lab.crash_server()
    lab.restart_server()
    lab.wait_for(owner, "a further step", lambda info: info.status == "running")
    print(f"back {time.monotonic() - called:.1f} s after the call, a crash of the server included")
    where = lab.client.get_job(owner.id).where
    assert where is not None
    assert where.node_id == machine.node_id
    assert lab.wait_for_end(owner).status == "succeeded", lab.story(owner)
    assert {point.step: point.values["loss"] for point in owner.metrics()} == losses
    owner.download(tmp_path / "owner")
    assert (tmp_path / "owner" / "model.json").read_bytes() == model
    (one,) = lab.client.list_standbys(owner.id)
    until("the bill", lambda: lab.client.list_standbys(owner.id)[0].rebate > 0)
    assert (one.state, one.why, one.gpus) == ("over", "it trains again", 2)
    assert lab.client.get_job(owner.id).faults == 0
    for job in spot:
        assert "preempted" not in {event.kind for event in job.events()}
        job.cancel()
    with pytest.raises(Conflict, match="has succeeded"):
        owner.stand_by("2h")


def _far_from_eight() -> str:
    """A zone in which the next 08:00 is hours away: a window is a minute long at least."""
    rome = ZoneInfo("Europe/Rome")
    return "Asia/Tokyo" if datetime.now(rome).hour in {7, 8} else rome.key


def test_the_guide_is_followed_to_the_letter(lab: Service, tmp_path: Path) -> None:
    """On a host that has two GPUs, every command of it."""
    script = "".join(one.text for one in blocks_of(EXAMPLES.parent / "docs" / "guides" / "standby.md", "sh"))
    known = json.loads(lab.stack.layout.client_file.read_text())
    settings = {name: value for name, value in os.environ.items() if not name.startswith("ALLPASS_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    given = {"PATH": path, "ALLPASS_URL": known["url"], "ALLPASS_API_KEY": known["api_key"], "TZ": _far_from_eight()}
    done = subprocess.run(
        ["sh", "-euc", script],
        cwd=tmp_path,
        env={**settings, **given},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    told = " ".join(done.stdout.split())  # lines are broken where a terminal ends
    for words in ("spot jobs use 1 of them", "on GPUs that a guaranteed job lends until", "after its call", "rebate"):
        assert words in told, done.stdout
    assert lab.client.pool("lab").rebate == 0.7
