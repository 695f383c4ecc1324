"""Processes of a distributed training agree on when to stop; one that trains alone answers for itself."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_SCRIPT = """
import atexit, os, signal, sys
from allpass import training

distributed = sys.argv[1] == "gloo"
if distributed:
    import torch.distributed as dist
    dist.init_process_group("gloo")
    atexit.register(lambda: print("group" if dist.is_initialized() else "no group", flush=True))
rank = int(os.environ.get("RANK", "0"))
training.session()
for step in range(1, 100):
    if step == 7 and rank == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGTERM)  # this one alone is asked
    if training.stop_together():
        print("left", rank, step, flush=True)
        sys.exit(training.EXIT_STOPPED)
    if step == 9 and sys.argv[3] == "fails":
        raise KeyError("text")
"""


def played(kind: str, world: int, asked: int, *, end: str = "stops", code: int = 75, **environment: str) -> list[str]:
    """What each of the processes says, by rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    started = []
    for rank in range(world):
        environ = {
            **os.environ, "PYTHONPATH": str(ROOT / "sdk"), "RANK": str(rank), "WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo",
            **{name: value.format(rank=rank) for name, value in environment.items()},
        }  # fmt: skip
        argv = [sys.executable, "-c", _SCRIPT, kind, str(asked), end]
        started.append(subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, text=True))
    said = [process.communicate(timeout=120)[0].strip() for process in started]
    assert {process.returncode for process in started} == {code}
    return said


def test_alone_it_is_what_stop_requested_says() -> None:
    assert played("alone", 1, 0) == ["left 0 7"]


@pytest.mark.parametrize("asked", [0, 2])
def test_all_stop_after_the_same_step_whichever_was_asked(asked: int) -> None:
    """None of them leaves the threads of gloo behind, which would abort a process in place of its exit code."""
    pytest.importorskip("torch", reason="torch is not installed: `./allpass test` installs it")
    assert played("gloo", 3, asked) == [f"left {rank} 7\nno group" for rank in range(3)]


def test_under_allpass_they_say_so_once(tmp_path: Path) -> None:
    """A job on several machines is moved by itself only where its code stops at one step."""
    pytest.importorskip("torch", reason="torch is not installed: `./allpass test` installs it")
    files = str(tmp_path / "{rank}.jsonl")
    assert played("gloo", 2, 1, ALLPASS_JOB_ID="job_x", ALLPASS_METRICS_FILE=files) == [
        f"left {rank} 7\nno group" for rank in range(2)
    ]
    lines = [json.loads(line) for line in (tmp_path / "0.jsonl").read_text().splitlines()]
    assert [line for line in lines if line.get("training", {}).get("stops_together")] == [
        {"step": 0, "training": {"stops_together": True}}
    ]


@pytest.mark.parametrize(("end", "code"), [("is done", 0), ("fails", 1)])
def test_who_is_done_or_fails_leaves_no_threads_either(end: str, code: int) -> None:
    pytest.importorskip("torch", reason="torch is not installed: `./allpass test` installs it")
    assert played("gloo", 2, 9, end=end, code=code) == ["no group"] * 2
