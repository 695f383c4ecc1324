"""G12: saving, sending, fetching and loading a checkpoint at once, against the slowest of the four alone.

    .venv/bin/python -m benchmarks.pipeline [--state-mb 200] [--rounds 5] [--folder /tmp]

A move's path without the control plane, whose words are given at once: the writer of `allpass.training.noted_file`
(synced to disk), the agent's parts that send while it is written and fetch while it is sent, and the object store, a
process of its own that verifies and syncs what it takes. In every round the four stages one after the other, then all
of them overlapped, each time with a new state. `value` is the median over the rounds of overlapped / slowest stage. All
of it wants processors, so what they worked is told too: with two of them, half of it is the least that it can take. The
last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from allpass.training.noted_file import NotedFile
from app.ports.objects import content_key
from app.storage.directory import DirectoryStore
from app.storage.server import KEY_VARIABLE, WallClock
from workers.agent.api import Writer
from workers.agent.arriving import Arriving
from workers.agent.early import Early
from workers.agent.fetching import Fetcher, LocalPieces, Staged, fetch_checkpoint
from workers.agent.files import Fence
from workers.agent.pieces import PIECE_BYTES, CutFolder, Manifest
from workers.agent.transfer import store
from workers.agent.transport import Transport
from workers.agent.uploading import Candidate, in_pieces

GOAL = 1.3
MB = 1_000_000
STAGES = ("save", "upload", "download", "load")
_PROJECT = "prj_benchmark"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state-mb", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    rounds = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder, object_store(Path(folder)) as objects:
        for number in range(options.rounds + 1):  # the first one warms up
            rounds.append(one_round(Path(folder), *objects, options.state_mb * MB, number))
    times = {name: [one[name][0] for one in rounds[1:]] for name in rounds[0]}
    works = {name: [one[name][1] for one in rounds[1:]] for name in rounds[0]}
    cores = len(os.sched_getaffinity(0))
    slowest = [max(one[name][0] for name in STAGES) for one in rounds[1:]]
    in_turn = [sum(one[name][0] for name in STAGES) for one in rounds[1:]]
    detail = {
        "state_mb": options.state_mb,
        "rounds": options.rounds,
        "median_s": {name: round(statistics.median(found), 3) for name, found in times.items()},
        "one_after_the_other": ratio(in_turn, slowest),
        "processors_s": {name: round(statistics.median(found), 3) for name, found in works.items()},
        "floor": ratio([sum(one) / cores for one in zip(*(works[name] for name in STAGES), strict=True)], slowest),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }
    value = ratio(times["overlapped"], slowest)
    print(json.dumps({"name": "pipeline", "value": value, "goal": GOAL, "unit": "x slowest stage", "detail": detail}))


def ratio(one: list[float], other: list[float]) -> float:
    return round(statistics.median(a / b for a, b in zip(one, other, strict=True)), 3)


class Words:
    """The control plane's answers, of what is in the store: the agents' `Api`, as far as they ask here."""

    def __init__(self, objects: DirectoryStore) -> None:
        self._objects = objects
        self._expires_ms = WallClock().now_ms() + 3_600_000
        self._stored: list[Mapping[str, Any]] = []
        self.tell: Callable[[Sequence[Mapping[str, Any]]], None] = lambda _: None

    def coming(self, _writer: Writer, *, step: int, spans: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        urls = self.puts({span["sha256"]: span["size_bytes"] for span in spans})
        self._stored = [*self._stored, *(span for span in spans if span["sha256"] not in urls)]
        self.tell(self._stored)
        return urls

    def puts(self, sizes: Mapping[str, int]) -> dict[str, str]:
        lacking = {sha256: size for sha256, size in sizes.items() if not self._path(sha256).exists()}
        return {
            sha256: self._objects.sign_put(
                content_key(_PROJECT, sha256), sha256=sha256, size_bytes=size, expires_ms=self._expires_ms
            )
            for sha256, size in lacking.items()
        }

    def downloads(self, _writer: Writer, sha256s: Sequence[str]) -> dict[str, str]:
        return {
            sha256: self._objects.sign_get(content_key(_PROJECT, sha256), expires_ms=self._expires_ms)
            for sha256 in sha256s
        }

    def _path(self, sha256: str) -> Path:
        return self._objects.root / content_key(_PROJECT, sha256)


class Machines:
    """Source and target: what each of them does in a stage."""

    def __init__(self, folder: Path, objects: DirectoryStore, state: bytes) -> None:
        self.words = Words(objects)
        self._state = state
        self._gone = threading.Event()
        writer = Writer(run_id="run_1", job_id="job_1", epoch=1)
        self._link = Fetcher(self.words, Transport(), writer, self._gone)  # type: ignore[arg-type]  # what of Api is used
        self._source, self._target = folder / "source", folder / "target"
        self._fence = Fence(folder, None)
        self._source.mkdir()
        self._target.mkdir()

    def save(self) -> None:
        hidden = self._source / ".partial"
        hidden.mkdir()
        with NotedFile(hidden / "state", len(self._state), PIECE_BYTES) as file:
            file.write(memoryview(self._state))
        with (hidden / "state").open("rb") as written:
            os.fsync(written.fileno())
        hidden.rename(self._source / "step-1")

    def cut(self) -> CutFolder:
        return in_pieces(self._fence, Candidate(self._source / "step-1", 1), self._gone)

    def upload(self, saved: CutFolder) -> None:
        sizes = {sha256: content.size_bytes for sha256, content in saved.contents.items()}
        store(self._link.transport, saved.contents, lambda: self.words.puts(sizes), lambda: None, self._gone)

    def download(self, saved: CutFolder, staged: Staged | None = None) -> None:
        into = self._target / "resume"
        fetch_checkpoint(self._link, Manifest("ckpt_1", 1, saved.files), into, LocalPieces(), staged)

    def load(self) -> None:
        loaded = bytearray(len(self._state))
        with (self._target / "resume/state").open("rb", buffering=0) as file:
            view = memoryview(loaded)
            while view:
                view = view[file.readinto(view) :]  # type: ignore[attr-defined]  # a raw file has it
        assert loaded[-MB:] == self._state[-MB:]

    def overlapped(self) -> None:
        """As the agents do it: sent early, fetched as it is stored, and what is lacking at the end."""
        api, transport, writer, gone = self._link[:4]
        arriving = Arriving(self._link, self._target / "coming", LocalPieces())
        early = Early(api, transport, writer, self._fence, self._source, lambda: 1, gone)
        self.words.tell = arriving.tell
        arriving.start()
        early.start()
        self.save()
        saved = self.cut()
        early.finish(saved, self.words.puts({sha256: one.size_bytes for sha256, one in saved.contents.items()}))
        self.upload(saved)
        self.download(saved, arriving.finish())
        self.load()


def one_round(
    folder: Path, objects: DirectoryStore, store_pid: int, size: int, number: int
) -> dict[str, tuple[float, float]]:
    """Seconds that each stage took, and all of them at once; and seconds that processors worked for it."""
    times: dict[str, tuple[float, float]] = {}

    def timed(name: str, work: Callable[[], None]) -> None:
        worked_s, begin_s = processor_s(store_pid), time.perf_counter()
        work()
        times[name] = time.perf_counter() - begin_s, processor_s(store_pid) - worked_s

    def on_machines(name: str, use: Callable[[Machines], None]) -> None:
        place = folder / f"{name}-{number}"
        place.mkdir()
        machines = Machines(place, objects, secrets.token_bytes(size))
        use(machines)
        shutil.rmtree(place)
        shutil.rmtree(objects.root / "projects", ignore_errors=True)

    def apart(machines: Machines) -> None:
        timed("save", machines.save)
        timed("upload", lambda: machines.upload(machines.cut()))
        saved = machines.cut()
        timed("download", lambda: machines.download(saved))
        timed("load", machines.load)

    on_machines("apart", apart)
    on_machines("together", lambda machines: timed("overlapped", machines.overlapped))
    return times


def processor_s(store_pid: int) -> float:
    """Seconds that processors have worked for this process and the store's."""
    fields = Path(f"/proc/{store_pid}/stat").read_text().rpartition(")")[2].split()
    return time.process_time() + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def object_store(folder: Path) -> Iterator[tuple[DirectoryStore, int]]:
    """A store served by a process of its own, and its process id."""
    key = secrets.token_hex(32)
    root = folder / "objects"
    command = [sys.executable, "-m", "app.storage.server", "--root", str(root), "--port", "0", "--die-with-parent"]
    environ = {**os.environ, KEY_VARIABLE: key}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().split()[2]
            yield DirectoryStore(root, url, key, max_object_bytes=2**40, clock=WallClock()), process.pid
        finally:
            process.kill()


if __name__ == "__main__":
    main()
