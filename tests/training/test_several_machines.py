"""The built-in recipe on several machines is the one on a single GPU, bit for bit, and ends as one, whoever is lost."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from tests.training.scripts import Host, HostedProcess, Machine, files_of, wait_for_step
from tests.training.test_lost_ranks import GANG, QUICK, ground, left_of, machine

__all__ = ["ground"]
pytestmark = pytest.mark.training
LONG = 100_000


@pytest.fixture(scope="module")
def alone(
    hosts: tuple[Host, Host], followers: str, ground: tuple[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Machine:
    """On a single GPU."""
    place = machine(tmp_path_factory.mktemp("alone") / "job", ground, 1, followers)
    assert hosts[0].start(GANG, place).exit_code() == 0
    return place


KEY = "7" * 64


class Gang:
    """A job on two machines, each a process tree of its own, in `folder`. `more`: what the recipe is told otherwise."""

    def __init__(
        self,
        folder: Path,
        ground: tuple[str, Path],
        gpus: int,
        followers: str,
        resume_from: Path | None = None,
        fault: str = "",
        **more: Any,
    ) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.places = [
            machine(folder / str(rank), ground, gpus, followers, resume_from, fault, **more) for rank in range(2)
        ]
        for rank, place in enumerate(self.places):
            place.environment |= {
                "ALLPASS_NODES": "2",
                "ALLPASS_NODE_RANK": str(rank),
                "ALLPASS_NODES_KEY": KEY,
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(self.port),
                "WORLD_SIZE": "2",
                "RANK": str(rank),
                "GLOO_SOCKET_IFNAME": "lo",
            }
        self.processes: list[HostedProcess] = []

    @property
    def first(self) -> Machine:
        return self.places[0]

    def start(self, hosts: tuple[Host, Host]) -> Gang:
        self.processes = [host.start(GANG, place) for host, place in zip(hosts, self.places, strict=True)]
        return self

    def codes(self) -> tuple[int, ...]:
        return tuple(process.exit_code() for process in self.processes)

    def words(self) -> str:
        return "\n---\n".join(process.output for process in self.processes)

    def left(self) -> list[str]:
        return [one for place in self.places for one in left_of(place)]


def _told(*places: Machine) -> list[Path]:
    """What their code has said: whether it may be moved from machine to machine, among others."""
    return [place.folder / "metrics.jsonl" for place in places]


@pytest.mark.parametrize("gpus", [1, 2])
def test_two_machines_leave_what_one_gpu_leaves(
    hosts: tuple[Host, Host], followers: str, ground: tuple[str, Path], alone: Machine, gpus: int, tmp_path: Path
) -> None:
    """Losses, files and the last checkpoint. The further machine says hardly anything, and leaves nothing."""
    gang = Gang(tmp_path, ground, gpus, followers).start(hosts)
    assert gang.codes() == (0, 0), gang.words()
    assert gang.first.losses() == alone.losses()
    assert files_of(gang.first.folder / "output") == files_of(alone.folder / "output")
    assert files_of(gang.first.announced()[-1]) == files_of(alone.announced()[-1])
    first, second = (process.output for process in gang.processes)
    assert f"training: on 2 machines with {gpus} GPU{'s' * (gpus > 1)} each" in first
    assert f"training: on {2 * gpus} GPUs, which share the 4 parts of 2 rows of a step" in first
    assert second == "training: takes part as machine 1 of 2, which machine 0 speaks for\n"
    assert [one.read_text().count('"stops_together": true') for one in _told(gang.first, alone)] == [1, 0]
    assert (gang.places[1].losses(), gang.places[1].announced()) == ({}, [])
    assert not (gang.places[1].folder / "output").exists()
    assert not gang.left()


@pytest.mark.parametrize("older", [0, 1])
def test_a_machine_of_an_older_release_is_told_all_gradients(
    hosts: tuple[Host, Host], followers: str, ground: tuple[str, Path], alone: Machine, older: int, tmp_path: Path
) -> None:
    """Whichever it is, all do as it does."""
    gang = Gang(tmp_path, ground, 2, followers)
    gang.places[older].environment["OLDER"] = "1"
    assert gang.start(hosts).codes() == (0, 0), gang.words()
    assert gang.first.losses() == alone.losses()
    assert files_of(gang.first.folder / "output") == files_of(alone.folder / "output")


@pytest.mark.parametrize("asked", [0, 1])
def test_whichever_is_asked_all_leave_at_one_step_and_any_number_goes_on(
    hosts: tuple[Host, Host], followers: str, ground: tuple[str, Path], tmp_path: Path, asked: int
) -> None:
    """To one machine with three GPUs, and from one GPU to two machines."""
    whole = machine(tmp_path / "whole", ground, 1, followers, steps=60)
    assert hosts[0].start(GANG, whole).exit_code() == 0
    gang = Gang(tmp_path / "gang", ground, 2, followers, steps=60).start(hosts)
    wait_for_step(gang.first, 1)
    gang.processes[asked].stop()
    assert gang.codes() == (75, 75), gang.words()
    assert "Traceback" not in gang.words()
    (checkpoint,) = gang.first.announced()
    assert not gang.left()
    if asked:
        on = machine(tmp_path / "on", ground, 3, followers, checkpoint, steps=60)
        assert hosts[0].start(GANG, on).exit_code() == 0
    else:
        again = Gang(tmp_path / "again", ground, 1, followers, checkpoint, steps=60).start(hosts)
        assert again.codes() == (0, 0), again.words()
        on = again.first
    assert gang.first.losses() | on.losses() == whole.losses()
    assert files_of(on.folder / "output") == files_of(whole.folder / "output")


def test_a_process_that_is_killed_is_named_with_its_machine_and_all_end(
    hosts: tuple[Host, Host], followers: str, ground: tuple[str, Path], tmp_path: Path
) -> None:
    """Where it was, the job's process ends as a killed one, which is no fault of the code; the other one has words of
    a lost connection, by which nobody is blamed."""
    gang = Gang(tmp_path, ground, 2, followers, fault="3 2 kill", steps=LONG).start(hosts)
    assert gang.codes() == (1, -signal.SIGKILL), gang.words()
    why = "rank 3 of 4, on machine 1, was killed (SIGKILL)"
    first, second = (process.output.splitlines()[-1] for process in gang.processes)
    assert second == f"error: {why}: all processes of the training end"
    assert first == f"error: connection closed by machine 1: {why}: all processes of the training end"
    assert sorted(gang.first.losses()) == [1]
    assert not gang.left()


@pytest.mark.parametrize("lost", [0, 1])
def test_a_machine_that_is_lost_ends_the_other(
    hosts: tuple[Host, Host], followers: str, ground: tuple[str, Path], lost: int, tmp_path: Path
) -> None:
    """As one that was killed: where nobody has said what failed, no code did."""
    gang = Gang(tmp_path, ground, 1, followers, steps=LONG).start(hosts)
    wait_for_step(gang.first, 1)
    os.kill(gang.processes[lost].pid, signal.SIGKILL)
    assert gang.codes() == (-signal.SIGKILL, -signal.SIGKILL), gang.words()
    last = gang.processes[1 - lost].output.splitlines()[-1]
    assert last == f"error: connection closed by machine {lost}: all processes of the training end"
    assert not gang.left()


def test_an_error_of_a_further_machine_is_told_by_both(
    hosts: tuple[Host, Host], followers: str, ground: tuple[str, Path], tmp_path: Path
) -> None:
    gang = Gang(tmp_path, ground, 2, followers, fault="3 2 raise", steps=LONG).start(hosts)
    assert gang.codes() == (1, 1), gang.words()
    for process in gang.processes:
        assert "rank 3 of 4, on machine 1: ValueError: no such number" in process.output.splitlines()[-1]
    assert "rank 3: ValueError: no such number" in gang.processes[1].output
    assert not gang.left()


def test_a_machine_that_cannot_load_ends_the_training_with_its_words(
    hosts: tuple[Host, Host], followers: str, ground: tuple[str, Path], tmp_path: Path
) -> None:
    gang = Gang(tmp_path, ground, 1, followers)
    gang.places[1].environment["ROWS"] = str(tmp_path / "nowhere")
    gang.start(hosts)
    assert gang.codes() == (1, 1), gang.words()
    first, second = (process.output.splitlines()[-1] for process in gang.processes)
    assert second.startswith("error: [Errno 2] No such file or directory"), second
    assert first.startswith("error: connection closed by machine 1: FileNotFoundError: [Errno 2]"), first


def test_machines_with_other_gpus_are_told_apart(
    hosts: tuple[Host, Host], followers: str, ground: tuple[str, Path], tmp_path: Path
) -> None:
    """Ranks could not be dealt."""
    gang = Gang(tmp_path, ground, 1, followers)
    two = Gang(tmp_path / "two", ground, 2, followers)
    gang.places[1].environment |= {
        name: two.places[1].environment[name] for name in ("ALLPASS_TEMPLATE_FILE", "CUDA_VISIBLE_DEVICES")
    }
    gang.start(hosts)
    assert gang.codes() == (1, 1), gang.words()
    for process in gang.processes:
        assert process.output.splitlines()[-1].startswith("error: machine 1 trains with 2 GPUs, and machine 0 with 1")


def test_strangers_are_not_let_in(
    hosts: tuple[Host, Host], followers: str, ground: tuple[str, Path], alone: Machine, tmp_path: Path
) -> None:
    """Whoever calls with nonsense, with another key, or with much, hears nothing, and the training goes its way."""
    gang = Gang(tmp_path, ground, 1, followers)
    first = hosts[0].start(GANG, gang.first)
    end_s = time.monotonic() + 120
    while True:
        try:
            strangers = [socket.create_connection(("127.0.0.1", gang.port), timeout=30) for _ in range(3)]
            break
        except OSError:
            assert time.monotonic() < end_s
            time.sleep(0.05)
    said = (
        b"GET / HTTP/1.1\r\n\r\n",
        b'{"key": "' + KEY[:-1].encode() + b'", "machine": 1, "gpus": 1}\n',
        b'{"key": "' + KEY.encode() + b'", "machine": 7, "gpus": 1}\n',
    )
    for stranger, words in zip(strangers, said, strict=True):
        stranger.sendall(words)
        assert stranger.recv(100) == b""
        stranger.close()
    gang.processes = [first, hosts[1].start(GANG, gang.places[1])]
    assert gang.codes() == (0, 0), gang.words()
    assert gang.first.losses() == alone.losses()


def test_a_machine_that_says_nothing_is_given_up(
    hosts: tuple[Host, Host], followers: str, ground: tuple[str, Path], tmp_path: Path
) -> None:
    """It is halted, as one is whose network is gone: connections stay open."""
    gang = Gang(tmp_path, ground, 1, followers, steps=LONG)
    for place in gang.places:
        place.environment["QUIET_S"] = "6"
    gang.start(hosts)
    wait_for_step(gang.first, 1)
    os.kill(gang.processes[1].pid, signal.SIGSTOP)
    assert gang.processes[0].exit_code() == -signal.SIGKILL
    os.kill(gang.processes[1].pid, signal.SIGKILL)
    assert gang.processes[1].exit_code() == -signal.SIGKILL
    last = gang.processes[0].output.splitlines()[-1]
    assert last.startswith("error: connection timed out: machine 1 was not heard of for 6 s"), gang.words()


def test_an_older_edition_is_refused_with_what_helps(
    hosts: tuple[Host, Host], followers: str, ground: tuple[str, Path], tmp_path: Path
) -> None:
    assert QUICK["edition"] == 4
    gang = Gang(tmp_path, ground, 1, followers, edition=3)
    first = hosts[0].start(GANG, gang.first)
    assert first.exit_code() == 1
    last = first.output.splitlines()[-1]
    assert last.startswith("error: this training began in edition 3, whose steps are one process's"), last
    assert "Leave out --nodes" in last
