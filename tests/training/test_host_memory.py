"""What a save, the best state and a resume take of the host's memory: little where there is little, and the same bytes
come of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from allpass.training import torch_checkpoints
from allpass.training.host_memory import available_bytes
from allpass.training.session import Session
from allpass.training.snapshots import size_of
from allpass.training.torch_checkpoints import Checkpoints
from allpass.training.torch_state import trainable_weights
from workers.trainer import best
from workers.trainer.best import BestWeights

pytestmark = pytest.mark.training
GIB, MIB = 1 << 30, 1 << 20


def session_in(folder: Path, **environment: str) -> Session:
    return Session(
        {
            "ALLPASS_JOB_ID": "job_1",
            "ALLPASS_CHECKPOINT_DIR": str(folder / "checkpoints"),
            "ALLPASS_METRICS_FILE": str(folder / "metrics"),
            **environment,
        }
    )


def trained() -> tuple[Any, Any]:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        model(torch.randn(4, 6)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "checkpoints" / "step-00000003").iterdir())}


def test_a_state_without_room_is_written_from_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same files, whole when the call returns: the next step may change what was written."""
    model, optimizer = trained()
    saved = {}
    monkeypatch.setattr(torch_checkpoints, "_SMALL_BYTES", 0)
    for free in (None, 64 * GIB, 0):
        monkeypatch.setattr(torch_checkpoints, "available_bytes", lambda free=free: free)
        folder = tmp_path / str(free)
        session = session_in(folder, ALLPASS_CHECKPOINT_INTERVAL_S="1e-9")
        checkpoints = Checkpoints(model, optimizer=optimizer, session=session)
        torch.manual_seed(7)
        checkpoints.after_step(3, data={"at": [1, 2]})
        if free == 0:
            assert not session.is_saving()
            before = files(folder)
            with torch.no_grad():
                model[0].weight.add_(1)
            assert files(folder) == before
        session.finish_saving()
        saved[free] = files(folder)
    assert saved[None] == saved[64 * GIB] == saved[0]
    assert len(saved[0]) >= 2


def test_small_states_are_always_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An adapter's state is no burden, however little is free."""
    monkeypatch.setattr(torch_checkpoints, "available_bytes", lambda: 0)
    model, optimizer = trained()
    checkpoints = Checkpoints(model, optimizer=optimizer, session=session_in(tmp_path))
    assert checkpoints._has_room_for({"weights": dict(model.state_dict())})


def test_it_is_asked_again_when_the_state_has_grown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at every save, since what is free is less by the copies that are there already."""
    free, asked = [1000 * MIB], [0]

    def available() -> int:
        asked[0] += 1
        return free[0]

    monkeypatch.setattr(torch_checkpoints, "available_bytes", available)
    monkeypatch.setattr(torch_checkpoints, "_SMALL_BYTES", 0)
    checkpoints = Checkpoints(torch.nn.Linear(1, 1), session=session_in(tmp_path))
    trees = {size: {"x": torch.empty(size * MIB, dtype=torch.uint8, device="meta")} for size in (100, 110, 130, 400)}
    assert [checkpoints._has_room_for(trees[100]), checkpoints._has_room_for(trees[110])] == [True, True]
    free[0] = 100 * MIB
    assert checkpoints._has_room_for(trees[110])
    assert asked == [1]
    assert not checkpoints._has_room_for(trees[130])
    free[0] = 1000 * GIB
    assert not checkpoints._has_room_for(trees[130])
    assert checkpoints._has_room_for(trees[400])
    assert asked == [3]


def test_a_full_disk_costs_a_checkpoint_in_between_and_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where copies are written beside the training."""
    monkeypatch.setattr(torch_checkpoints, "available_bytes", lambda: 0)
    monkeypatch.setattr(torch_checkpoints, "_SMALL_BYTES", 0)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch_checkpoints, "save_tree", full)
    model, optimizer = trained()
    checkpoints = Checkpoints(
        model, optimizer=optimizer, session=session_in(tmp_path, ALLPASS_CHECKPOINT_INTERVAL_S="1e-9")
    )
    checkpoints.after_step(3)
    assert "the checkpoint of step 3 was not saved, the disk is full" in capsys.readouterr().err


@pytest.mark.parametrize("most", [0, 1 << 40])
def test_the_best_state_is_the_same_wherever_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """A later state takes its place; what a save was given before stays what it was. No file of it is seen."""
    monkeypatch.setattr(best, "IN_MEMORY_BYTES", most)
    model, _ = trained()
    kept = BestWeights(model, tmp_path / "checkpoints")
    kept.put_back()  # nothing yet
    kept.keep()
    first = kept.state()
    expected = {name: value.detach().clone() for name, value in trainable_weights(model).items()}
    with torch.no_grad():
        for value in model.parameters():
            value.mul_(2)
    kept.keep()
    assert all(torch.equal(first[name], value) for name, value in expected.items())
    assert {name: value.dtype for name, value in first.items()} == {
        name: value.dtype for name, value in expected.items()
    }
    with torch.no_grad():
        for value in model.parameters():
            value.zero_()
    kept.put_back()
    assert torch.equal(model[0].weight, expected["0.weight"] * 2)
    assert not list((tmp_path / "checkpoints").glob("*")) or most == 0
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_without_room_on_the_disk_it_is_kept_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the log says so."""

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(best, "IN_MEMORY_BYTES", 0)
    monkeypatch.setattr(os, "posix_fallocate", full)
    model, _ = trained()
    kept = BestWeights(model, tmp_path)
    kept.keep()
    assert torch.equal(kept.state()["0.weight"], model[0].weight)
    assert "training: the best weights are kept in memory: [Errno 28]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ({}, None),
        ({"proc/meminfo": "MemTotal: 99 kB\nMemAvailable: 4096 kB\n"}, 4 * MIB),
        ({"proc/meminfo": "MemAvailable: nonsense\n"}, None),
        ({"sys/fs/cgroup/memory.max": "max\n"}, None),
        (
            {
                "proc/meminfo": "MemAvailable: 9999999 kB\n",
                "sys/fs/cgroup/memory.max": f"{8 * GIB}\n",
                "sys/fs/cgroup/memory.current": f"{6 * GIB}\n",
                "sys/fs/cgroup/memory.stat": f"anon 5\ninactive_file {2 * GIB}\nactive_file {GIB}\n\nodd line here\n",
            },
            5 * GIB,
        ),
        (
            {
                "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2 * GIB}\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{3 * GIB}\n",
                "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 0\n",
            },
            0,
        ),
        ({"sys/fs/cgroup/memory/memory.limit_in_bytes": f"{1 << 62}\n"}, None),
    ],
)
def test_what_is_free_is_what_the_host_and_the_container_have(
    tmp_path: Path, there: dict[str, str], expected: int | None
) -> None:
    for name, text in there.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available_bytes(tmp_path) == expected


def test_the_size_of_a_state_is_that_of_its_tensors() -> None:
    tree = {"a": [torch.zeros(4, dtype=torch.int16), {"b": (torch.zeros(3), None, "text")}], "c": 1.5}
    assert size_of(tree) == 8 + 12


PROGRAM = """
import json, os, sys, threading
from pathlib import Path

def anonymous():
    for line in open("/proc/self/status"):
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024

class Watch:
    def __enter__(self):
        self.most = self.before = anonymous()
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.look)
        self.thread.start()
        return self
    def look(self):
        while not self.done.wait(0.002):
            self.most = max(self.most, anonymous())
    def __exit__(self, *_):
        self.done.set()
        self.thread.join()
        self.grown = max(self.most, anonymous()) - self.before

import torch
from allpass.training import safe_file, torch_checkpoints
from allpass.training.session import Session
from allpass.training.torch_checkpoints import Checkpoints
from workers.trainer import best

place, free, limit = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
torch_checkpoints.available_bytes = lambda: free
safe_file.MAPPED_FROM_BYTES = best.IN_MEMORY_BYTES = limit
torch.set_num_threads(1)
layers = [torch.nn.Linear(2048, 2048, bias=False) for _ in range(12)]
for layer in layers:  # what has gaps is copied on its way to the file, as what is on a GPU
    layer.weight = torch.nn.Parameter(layer.weight.detach().t())
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
for layer in layers:
    layer.weight.grad = torch.ones_like(layer.weight)
optimizer.step()
optimizer.zero_grad(set_to_none=True)
environment = {"ALLPASS_JOB_ID": "job_1", "ALLPASS_CHECKPOINT_DIR": str(place / "checkpoints"),
               "ALLPASS_METRICS_FILE": str(place / "metrics"), "ALLPASS_PIECE_BYTES": str(4 << 20)}
os.environ["ALLPASS_PIECE_BYTES"] = environment["ALLPASS_PIECE_BYTES"]
kept = best.BestWeights(model, place / "checkpoints")
with Watch() as keeping:
    kept.keep()
checkpoints = Checkpoints(model, optimizer=optimizer, session=Session(environment))
with Watch() as saving:
    checkpoints.save(1, data={"best": kept.state()})
again = Session({**environment, "ALLPASS_RESUME_DIR": str(place / "checkpoints" / "step-00000001"),
                 "ALLPASS_RESUME_STEP": "1"})
with Watch() as resuming:
    state = Checkpoints(model, optimizer=optimizer, session=again).resume()
assert torch.equal(state.data["best"]["0.weight"], model[0].weight)
print(json.dumps([keeping.grown, saving.grown, resuming.grown]))
"""
WEIGHTS = 12 * 2048 * 2048 * 4


def grown(place: Path, free: int, limit: int) -> list[int]:
    """Bytes by which keeping the best, a save and a resume made memory grow that is no file's."""
    place.mkdir()
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
    argv = [sys.executable, "-c", PROGRAM, str(place), str(free), str(limit)]
    ended = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    found: list[int] = json.loads(ended.stdout)
    return found


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is measured as Linux tells it")
def test_what_a_large_state_takes_of_the_host_does_not_grow_with_it(tmp_path: Path) -> None:
    """Of 200 MB of weights, and 600 MB of state in all: some tensors, where it took several times the whole."""
    lean = grown(tmp_path / "lean", 0, 1 << 20)
    wide = grown(tmp_path / "wide", 1 << 50, 1 << 50)
    assert max(lean) < WEIGHTS, lean
    assert lean[0] < WEIGHTS // 2
    assert wide[0] > 0.9 * WEIGHTS, wide
    assert wide[1] > 3.5 * WEIGHTS, wide
    same = [(tmp_path / name / "checkpoints" / "step-00000001") for name in ("lean", "wide")]
    one, other = ((place / "training_state.safetensors") for place in same)
    assert one.stat().st_size == other.stat().st_size > 4 * WEIGHTS
