"""G10 and G11: uploading a checkpoint, and writing its file, against the least that either could take.

    python -m benchmarks.checkpoints [--rounds 5] [--mib 1024] [--folder /dev/shm]

Upload (`value`): one file of so many MiB on tmpfs to a server on loopback that drops what comes. Ours is what the agent
does with a file that `allpass.training` wrote and hashed: cut by its note, ask, send in parallel, each piece retried on
its own; and with one that nobody hashed (`hashed_by_agent`: SHA-256 of all of it first). Against it, in turn in every
round: one connection with one sendfile of the whole file, unhashed; and boto3's `upload_file` with its defaults.

Writer: a state of as many bytes in 64 tensors as a safetensors file, against one write of as many bytes from memory,
and `safetensors.torch.save_file`; none of them synced. `noted` hashes what it writes, as under Allpass.

Stall: what a save beside the training makes it wait for (a copy of that state), against one copy of as many bytes in
memory that is in use already.

Ratios of rates, medians over the rounds' ratios. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from allpass.training.noted_file import PIECE_BYTES_VARIABLE, NotedFile
from allpass.training.safe_file import write_tensors
from allpass.training.snapshots import HostCopies
from workers.agent.files import Fence
from workers.agent.pieces import PIECE_BYTES, cut
from workers.agent.transfer import store
from workers.agent.transport import Transport

GOAL = 0.60
GOAL_BOTO3 = 2.5
GOAL_WRITER = 0.85
GOAL_STALL = 1.5
MIB = 1024 * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        uploads = upload_times(Path(folder), options.mib, options.rounds)
        writes = write_times(Path(folder), options.mib, options.rounds)
    stalls = stall_times(options.mib, options.rounds)
    rate = options.mib / 1024
    detail = {
        "mib": options.mib,
        "goal_against_boto3": GOAL_BOTO3,
        "against_boto3": ratio(uploads["boto3"], uploads["ours"]),
        "hashed_by_agent": ratio(uploads["raw"], uploads["hashed_by_agent"]),
        "upload_gib_per_s": {name: rate / statistics.median(times) for name, times in uploads.items()},
        "goal_writer": GOAL_WRITER,
        "writer": ratio(writes["raw"], writes["ours"]),
        "writer_with_note": ratio(writes["raw"], writes["noted"]),
        "writer_of_the_package": ratio(writes["raw"], writes["safetensors"]),
        "write_gib_per_s": {name: rate / statistics.median(times) for name, times in writes.items()},
        "goal_stall": GOAL_STALL,
        "stall": ratio(stalls["ours"], stalls["copy"]),
        "stall_ms": {name: 1000 * statistics.median(times) for name, times in stalls.items()},
    }
    value = ratio(uploads["raw"], uploads["ours"])
    print(
        json.dumps({"name": "checkpoint_upload", "value": value, "goal": GOAL, "unit": "x sendfile", "detail": detail})
    )


def ratio(one: list[float], other: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(one, other, strict=True))


def in_turn(rounds: int, works: dict[str, Callable[[], None]]) -> dict[str, list[float]]:
    """Seconds by name, one of each per round; the first round warms up and does not count."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            begin_s = time.perf_counter()
            work()
            if number > 0:
                times[name].append(time.perf_counter() - begin_s)
    return times


def upload_times(folder: Path, mib: int, rounds: int) -> dict[str, list[float]]:
    source = folder / "checkpoint"
    chance = torch.Generator().manual_seed(1)
    with NotedFile(source, mib * MIB, PIECE_BYTES) as file:
        for _ in range(mib):
            file.write(torch.randint(0, 256, (MIB,), dtype=torch.uint8, generator=chance).numpy().data)
    with drop_server() as port:
        works = {
            "ours": _uploader(folder, port, believing=True),
            "raw": _sendfile(source, port),
            "boto3": _boto3(source, port),
            "hashed_by_agent": _uploader(folder, port, believing=False),
        }
        times = in_turn(rounds, works)
    source.unlink()
    return times


def _uploader(folder: Path, port: int, *, believing: bool) -> Callable[[], None]:
    fence, transport, gone = Fence(folder, None), Transport(), threading.Event()

    def upload() -> None:
        saved = cut(fence, folder, ["checkpoint"], gone, believing=believing)
        assert bool(saved.unproven) == believing
        urls = {sha256: f"http://127.0.0.1:{port}/{sha256}" for sha256 in saved.contents}
        sent = store(transport, saved.contents, lambda: urls, lambda: None, gone)
        assert sent == saved.size_bytes

    return upload


def _sendfile(source: Path, port: int) -> Callable[[], None]:
    import socket

    def upload() -> None:
        with socket.create_connection(("127.0.0.1", port)) as connection, source.open("rb") as file:
            size = source.stat().st_size
            connection.sendall(b"PUT /raw HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % size)
            connection.sendfile(file)
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")

    return upload


def _boto3(source: Path, port: int) -> Callable[[], None]:
    import boto3

    client: Any = boto3.client(
        "s3", endpoint_url=f"http://127.0.0.1:{port}", region_name="us-east-1",
        aws_access_key_id="a", aws_secret_access_key="b",
    )  # fmt: skip
    return lambda: client.upload_file(str(source), "bucket", "key")


def write_times(folder: Path, mib: int, rounds: int) -> dict[str, list[float]]:
    from safetensors.torch import save_file

    tensors = state_of(mib)
    whole = memoryview(bytearray(mib * MIB))
    place = folder / "file"

    def raw() -> None:
        place.unlink(missing_ok=True)
        with place.open("wb", buffering=0) as file:
            left = whole
            while left:
                left = left[file.write(left) :]

    def ours() -> None:
        place.unlink(missing_ok=True)
        write_tensors(place, tensors)

    def noted() -> None:
        os.environ[PIECE_BYTES_VARIABLE] = str(PIECE_BYTES)
        try:
            ours()
        finally:
            del os.environ[PIECE_BYTES_VARIABLE]

    def package() -> None:
        place.unlink(missing_ok=True)
        save_file(tensors, str(place))

    return in_turn(rounds, {"raw": raw, "ours": ours, "noted": noted, "safetensors": package})


def stall_times(mib: int, rounds: int) -> dict[str, list[float]]:
    tensors = state_of(mib)
    copies = HostCopies()
    flat = torch.zeros(mib * MIB, dtype=torch.uint8)
    target = torch.zeros(mib * MIB, dtype=torch.uint8)

    def ours() -> None:
        _, give_back = copies.take({"weights": tensors})
        give_back()

    # The two return unlike things, which nobody looks at.
    return in_turn(rounds, {"ours": ours, "copy": lambda: bool(target.copy_(flat).numel())})  # type: ignore[dict-item]


def state_of(mib: int) -> dict[str, torch.Tensor]:
    """64 tensors of equal size, all of it touched."""
    return {f"layer.{number}": torch.full((mib * MIB // 64 // 4,), float(number)) for number in range(64)}


@contextmanager
def drop_server() -> Iterator[int]:
    """A process of its own; its port."""
    command = [sys.executable, "-m", "benchmarks.drop_server"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


if __name__ == "__main__":
    main()
