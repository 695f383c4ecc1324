"""A sharded training as users write it (FSDP2, torch.distributed.checkpoint), of which each machine saves a part."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allpass.training.parts import line_of
from allpass.training.session import EXIT_STOPPED, Session

pytestmark = [pytest.mark.training, pytest.mark.timeout(300)]
REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLE = REPOSITORY / "examples" / "sharded_machines.py"
STEPS = 40


class Processes:
    """Of one training, each on a machine of its own unless `on_one`; their folders are below `folder`."""

    def __init__(self, folder: Path, count: int, script: Path = EXAMPLE, *, on_one: bool = False, **more: Any) -> None:
        self.folder, self.count, self.on_one = folder, count, on_one
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "parameters.json").write_text(json.dumps({"steps": STEPS, **more.pop("parameters", {})}))
        self.started = [self._start(rank, script, port, more) for rank in range(count)]

    def _start(self, rank: int, script: Path, port: str, more: dict[str, str]) -> subprocess.Popen[bytes]:
        place = self.place(rank)
        place.mkdir(exist_ok=True)
        environ = {
            **os.environ, "RANK": str(rank), "WORLD_SIZE": str(self.count), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo", "LOCAL_RANK": str(rank if self.on_one else 0),
            "ALLPASS_NODES": "1" if self.on_one else str(self.count), "ALLPASS_PARTS": "1", "ALLPASS_JOB_ID": "job_1",
            "ALLPASS_PARAMETERS_FILE": str(self.folder / "parameters.json"),
            "ALLPASS_METRICS_FILE": str(place / "metrics.jsonl"), "ALLPASS_CHECKPOINT_DIR": str(place / "saved"),
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY / "sdk"), os.environ.get("PYTHONPATH", "")]), **more,
        }  # fmt: skip
        with (self.folder / f"output-{rank}").open("wb") as output:
            return subprocess.Popen(
                [sys.executable, str(script)], env=environ, cwd=place, stdout=output, stderr=subprocess.STDOUT
            )

    def place(self, rank: int) -> Path:
        return self.folder / str(0 if self.on_one else rank)

    def output(self, rank: int) -> str:
        return (self.folder / f"output-{rank}").read_text(errors="replace")

    def end(self, *codes: int) -> Processes:
        """As expected, each with its code."""
        ends = [process.wait(180) for process in self.started]
        assert ends == list(codes), [self.output(rank) for rank in range(self.count)]
        return self

    def lines(self, rank: int = 0) -> list[dict[str, Any]]:
        file = self.place(rank) / "metrics.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def losses(self) -> dict[int, float]:
        return {line["step"]: line["loss"] for line in self.lines() if "loss" in line}

    def saved(self, rank: int, key: str = "checkpoint_part") -> list[int]:
        return [line["step"] for line in self.lines(rank) if key in line]

    def union(self) -> Path:
        """The newest checkpoint as each machine of the next run has it."""
        step = self.saved(0)[-1]
        made = self.folder / f"step-{step:08d}"
        if made.exists():
            return made
        made.mkdir()
        for rank in range(self.count):
            for path in (self.place(rank) / "saved" / made.name).iterdir():
                assert not (made / path.name).exists(), "each writes files of its own"
                shutil.copy(path, made / path.name)
        return made


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """The losses of two machines that nobody interrupts."""
    return Processes(tmp_path_factory.mktemp("whole"), 2).end(0, 0).losses()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Processes:
    """One of two machines is asked to stop; the other never is."""
    both = Processes(tmp_path_factory.mktemp("stopped"), 2, parameters={"step_ms": 50})
    wait(lambda: len(both.losses()) > 5, both)
    both.started[1].send_signal(signal.SIGTERM)
    return both.end(EXIT_STOPPED, EXIT_STOPPED)


def wait(holds: Callable[[], bool], both: Processes) -> None:
    end_s = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < end_s, [both.output(rank) for rank in range(both.count)]
        time.sleep(0.02)


def test_all_machines_save_a_part_of_the_step_after_which_they_leave(stopped: Processes) -> None:
    """Whichever of them was asked."""
    assert stopped.saved(0) == stopped.saved(1) == [max(stopped.losses())]
    assert stopped.saved(0, "checkpoint") == stopped.saved(1, "checkpoint") == []
    names = {path.name for path in stopped.union().iterdir()}
    assert names == {".metadata", "__0_0.distcp", "__1_0.distcp"}


def test_two_machines_go_on_bit_for_bit(stopped: Processes, whole: dict[int, float], tmp_path: Path) -> None:
    again = Processes(tmp_path, 2, ALLPASS_RESUME_DIR=str(stopped.union())).end(0, 0)
    assert stopped.losses() | again.losses() == whole
    assert not stopped.losses().keys() & again.losses().keys(), "no step is done twice"


@pytest.mark.parametrize("count", [1, 3])
def test_another_number_of_machines_goes_on_from_all_parts(
    stopped: Processes, whole: dict[int, float], tmp_path: Path, count: int
) -> None:
    """torch.distributed.checkpoint deals them anew. Sums have another order, so floats may differ in the last bits."""
    rows = {"batch": 8} if count == 1 else {"batch": 6}
    again = Processes(tmp_path, count, ALLPASS_RESUME_DIR=str(stopped.union()), parameters=rows).end(*[0] * count)
    begins = stopped.saved(0)[-1] + 1
    assert min(again.losses()) == begins
    if count == 1:
        assert again.losses() == pytest.approx({step: loss for step, loss in whole.items() if step >= begins}, rel=1e-4)


def test_processes_of_one_machine_write_into_one_folder(tmp_path: Path) -> None:
    """And it is a checkpoint by itself: a job on one machine has no parts."""
    both = Processes(tmp_path, 2, on_one=True, parameters={"steps": 3}, ALLPASS_CHECKPOINT_INTERVAL_S="0.0001").end(
        0, 0
    )
    assert both.saved(0, "checkpoint") and both.saved(0) == []
    newest = both.place(0) / "saved" / f"step-{both.saved(0, 'checkpoint')[-1]:08d}"
    assert {path.name for path in newest.iterdir()} == {".metadata", "__0_0.distcp", "__1_0.distcp"}


FAILS = """
import os, sys
from allpass import training
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()

def write(folder):
    (folder / str(rank)).write_text("x")
    if rank == 1:
        raise OSError(28, "No space left on device")

try:
    training.save(5, write=write, part=True)
except Exception as error:
    print("failed:", error, flush=True)
training.save(6, write=lambda folder: (folder / str(rank)).write_text("x"), part=True)
print("again:", training.save(6, write=write, part=True).name, flush=True)
dist.destroy_process_group()
"""


def test_where_one_cannot_write_nobody_announces_the_step(tmp_path: Path) -> None:
    """The others hear of it, and the next step is saved by all."""
    script = tmp_path / "fails.py"
    script.write_text(FAILS)
    both = Processes(tmp_path / "run", 2, script).end(0, 0)
    assert both.saved(0) == both.saved(1) == [6]
    assert "failed: another process of this training could not write its part of the checkpoint of step 5" in (
        both.output(0)
    )
    assert "failed: [Errno 28] No space left on device" in both.output(1)
    for rank in range(2):
        assert [path.name for path in (both.place(rank) / "saved").iterdir()] == ["step-00000006"]
        assert "again: step-00000006" in both.output(rank), "a step that is saved is not saved again"


HELPED = """
import os, signal
from allpass import training
import torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from allpass.training.torch_checkpoints import Checkpoints
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (2,)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
torch.manual_seed(rank)
checkpoints = Checkpoints(model, optimizer=optimizer)
state = checkpoints.resume()
for step in range(state.step + 1 if state else 1, 21):
    loss = (model(torch.randn(4, 8)) - 1.0).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total = loss.detach().clone()
    dist.all_reduce(total)
    if rank == 0:
        training.report(step, loss=float(total))
    if rank == 1 and os.environ.get("STOPS_AT") == str(step):
        os.kill(os.getpid(), signal.SIGTERM)
    checkpoints.after_step(step, data={"seen": step})
checkpoints.finish()
dist.destroy_process_group()
"""


def test_checkpoints_beside_a_training_are_in_parts_as_well(tmp_path: Path) -> None:
    """`Checkpoints` on two machines, one of which is asked to stop: weights and random generators of both, bit for
    bit."""
    script = tmp_path / "helped.py"
    script.write_text(HELPED)
    whole = Processes(tmp_path / "whole", 2, script).end(0, 0)
    first = Processes(tmp_path / "first", 2, script, STOPS_AT="9").end(EXIT_STOPPED, EXIT_STOPPED)
    assert first.saved(0) == first.saved(1) == [9]
    kinds = ("json", "safetensors")
    names = {f"training_state-{rank}-of-2.{kind}" for rank in (1, 2) for kind in kinds}
    assert {path.name for path in first.union().iterdir()} == names
    again = Processes(tmp_path / "again", 2, script, ALLPASS_RESUME_DIR=str(first.union())).end(0, 0)
    assert first.losses() | again.losses() == whole.losses()
    assert not first.losses().keys() & again.losses().keys()


# Without torch


def session(tmp_path: Path, **environ: str) -> Session:
    return Session({"ALLPASS_CHECKPOINT_DIR": str(tmp_path / "saved"), "ALLPASS_JOB_ID": "job_1", **environ})


def test_where_parts_are_not_put_together_the_script_is_told_at_once(tmp_path: Path) -> None:
    """By an older release of an agent or of the service, which would lose the others' parts; nothing is written."""
    old = session(tmp_path, ALLPASS_NODES="2")
    with pytest.raises(RuntimeError, match="of a release that does not put parts of several machines together"):
        old.save(1, lambda folder: None, part=True)
    assert not (tmp_path / "saved").exists()


def test_a_script_without_torch_saves_a_part_on_each_machine(tmp_path: Path) -> None:
    """Its first process does; another one of the machine is told so."""
    first = session(tmp_path, ALLPASS_NODES="2", ALLPASS_PARTS="1")
    folder = first.save(4, lambda into: (into / "shard").write_text("x") and None, part=True)
    assert json.loads((tmp_path / "saved" / "metrics.jsonl").read_text()) == {"step": 4, "checkpoint_part": folder.name}
    assert first.save(5, lambda into: None, part=True).is_dir(), "a machine may have nothing to write"
    second = session(tmp_path, ALLPASS_NODES="2", ALLPASS_PARTS="1", LOCAL_RANK="1")
    with pytest.raises(RuntimeError, match="call it on the first process of each machine"):
        second.save(6, lambda into: None, part=True)


def test_a_full_disk_costs_the_checkpoint_unless_it_is_the_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of `Checkpoints`: the next one is tried. Whoever was asked to leave does not leave without."""

    def write(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    alone = session(tmp_path)
    alone.save_parts(3, write)
    assert "the checkpoint of step 3 was not saved: [Errno 28]" in capsys.readouterr().err
    assert alone.saved_step != 3
    alone.request_stop()
    with pytest.raises(OSError, match="No space left"):
        alone.save_parts(4, write)


def test_on_one_machine_a_part_is_the_whole_and_not_empty(tmp_path: Path) -> None:
    alone = session(tmp_path)
    with pytest.raises(ValueError, match="is empty"):
        alone.save(3, lambda into: None, part=True)
    alone.save(4, lambda into: (into / "all").write_text("x") and None, part=True)
    assert line_of({"ALLPASS_NODES": "1"}) == "checkpoint"
    assert json.loads((tmp_path / "saved" / "metrics.jsonl").read_text()) == {"step": 4, "checkpoint": "step-00000004"}


def test_one_that_is_asked_between_deciding_and_leaving_goes_on_with_the_others(tmp_path: Path) -> None:
    """It would leave them waiting in a collective; all leave after the next step."""
    from allpass.training.together import due_together

    alone = session(tmp_path, ALLPASS_CHECKPOINT_INTERVAL_S="0.000001")
    assert due_together(alone, 7)
    alone.save(7, lambda into: (into / "all").write_text("x") and None, part=True)
    alone.request_stop()
    alone.exit_if_stopping(7)
    assert due_together(alone, 8)
    alone.save(8, lambda into: (into / "all").write_text("x") and None, part=True)
    with pytest.raises(SystemExit):
        alone.exit_if_stopping(8)
