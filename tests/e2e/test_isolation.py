"""What a job's code can reach of the host that its machine shares with the service and with other jobs: nothing."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import allpass
from tests.e2e.service import Service
from tests.living import paths_below

pytestmark = [
    pytest.mark.stack,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="code of a service that is not root runs as the service's user"),
]
NEIGHBOUR = """
import os, time
open("private", "w").write("of the neighbour")
print("uid", os.getuid(), flush=True)
time.sleep(600)
"""
# Tries to read each path that it is told of, and all that the kernel shows of processes.
SPY = """
import json, os, signal
from allpass import training
paths, found = training.parameters()["paths"], []
def tries(path):
    try:
        if os.path.isdir(path) and not os.path.islink(path): os.listdir(path)
        elif not open(path, "rb").read(1): return  # as the kernel's own threads show: nothing
        found.append(path)
    except OSError: pass
for path in paths: tries(path)
own = str(os.getuid())
for pid in filter(str.isdigit, os.listdir("/proc")):
    try: uids = open(f"/proc/{pid}/status").read().split("Uid:")[1].split()[:4]
    except OSError: continue
    if uids != [own] * 4:
        for name in ("environ", "mem", "maps", "cwd", "fd", "root"): tries(f"/proc/{pid}/{name}")
        try:
            os.kill(int(pid), 0)
            found.append(f"signal {pid}")
        except OSError: pass
print("found", json.dumps(found))
print("as", own)
"""


@pytest.fixture
def neighbour(service: Service, tmp_path: Path) -> Iterator[allpass.Job]:
    """A job that runs until the test is over, however it ends."""
    job = started(service, tmp_path, "neighbour", NEIGHBOUR)
    yield job
    job.cancel()
    service.wait_for_end(job)


def test_code_can_read_nothing_of_the_host_that_is_not_its_own(
    service: Service, neighbour: allpass.Job, tmp_path: Path
) -> None:
    """Not the secrets, keys and database of the service, not its stored objects and logs, not an agent's token and
    folder, not another job's files, and of no process but its own the environment or memory. It cannot signal any."""
    service.wait_for(neighbour, "the neighbour's code", lambda _: any("uid" in line for line in neighbour.logs()))
    paths = hidden(service.stack.layout.root)
    assert {"secrets.json", "client.json", "cloud.sqlite", "private", "PG_VERSION"} <= {Path(one).name for one in paths}
    spy = started(service, tmp_path, "spy", SPY, paths=paths)
    assert service.wait_for_end(spy).status == "succeeded", service.story(spy)
    said = dict(line.partition(" ")[::2] for line in spy.logs() if line.startswith(("found", "as")))
    assert json.loads(said["found"]) == []
    assert int(said["as"]) not in (0, int(next(line.split()[1] for line in neighbour.logs() if "uid" in line)))


def started(service: Service, tmp_path: Path, name: str, script: str, **parameters: object) -> allpass.Job:
    (tmp_path / f"{name}.py").write_text(script)
    app = allpass.build(f"isolation-{name}", "ada", code=tmp_path / f"{name}.py", client=service.client)
    return app.run(parameters=parameters, soft_deadline="6hr")


def hidden(root: Path) -> list[str]:
    """All files of the installation, and its folders, but for what machines are meant to show: the agent, what it lays
    ready for imports and for its guards, and the environments that runs share."""
    shown = [root / "agent.pyz", root / "cloud" / "cache"]
    shown += [folder for name in ("lib", "programs") for folder in root.glob(f"cloud/machines/*/root/{name}")]
    found = []
    for path in (root, *paths_below(root)):
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            continue
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            found.append(path)
    return [str(path) for path in found if not any(path == one or path.is_relative_to(one) for one in shown)][:20_000]
