"""Nothing of a machine stays behind when a disk is full while it is made or ended, least of all its join token."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from providers.local.company import CompanyOptions, LocalCompany, Rental
from providers.local.market import LocalCatalogue
from providers.local.store import MachineState, Store
from tests.living import files_with
from workers.machines.launch import AgentSetup, MachineFiles
from workers.machines.leftovers import sweep_leftovers

_PATIENCE_S = 30.0
_TOKEN = "join-token-of-this-machine"
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_RENTAL = Rental("node_1", "serverless-a100-x1", 10**9, "image", {"ALLPASS_JOIN_TOKEN": _TOKEN})
_AGENT = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]


class FullDisk:
    """Refuses one act of writing below a folder: the first, the second, and so on. Off unless `at` is set."""

    def __init__(self) -> None:
        self.below, self.at, self.acts = "", 0, 0

    def hook(self, event: str, arguments: tuple[object, ...]) -> None:
        if not self.at or event not in {"open", "os.mkdir", "os.chmod", "os.rename"}:
            return
        path, *rest = arguments
        if not isinstance(path, str | bytes | os.PathLike) or not os.fsdecode(path).startswith(self.below):
            return
        if event == "open" and not (isinstance(rest[1], int) and rest[1] & _WRITES):
            return
        self.acts += 1
        if self.acts == self.at:
            raise OSError(errno.ENOSPC, "No space left on device", path)


_disk = FullDisk()
sys.addaudithook(_disk.hook)  # for the life of this process: there is no way to take it away again


@contextlib.contextmanager
def full_at(act: int, folder: Path) -> Iterator[FullDisk]:
    _disk.below, _disk.at, _disk.acts = str(folder), act, 0
    try:
        yield _disk
    finally:
        _disk.at = 0


@contextlib.asynccontextmanager
async def company(folder: Path) -> AsyncIterator[LocalCompany]:
    folder.mkdir(exist_ok=True)  # noqa: ASYNC240 - a test waits for its own disk
    store = Store(folder / "cloud.sqlite")
    one = LocalCompany(
        CompanyOptions(folder, AgentSetup(_AGENT, folder / "cache")),
        store,
        LocalCatalogue(1, 0.0),
        lambda: time.time_ns() // 1_000_000,
    )
    try:
        await one.start()
        yield one
    finally:
        await one.stop()
        store.close()


def tokens_below(folder: Path) -> list[Path]:
    return files_with(_TOKEN, folder)


def folders(folder: Path) -> list[str]:
    machines = folder / "machines"
    return sorted(entry.name for entry in machines.iterdir()) if machines.exists() else []


async def is_up_or_gone(one: LocalCompany, machine_id: str) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        while (machine := one.store.get(machine_id)) is None or machine.state is MachineState.BOOTING:
            await asyncio.sleep(0.02)


async def is_wiped(folder: Path, machine_id: str) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        while MachineFiles(folder, machine_id).root.exists():
            await asyncio.sleep(0.02)


async def state_is(one: LocalCompany, machine_id: str, state: MachineState) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        while (machine := one.store.get(machine_id)) is None or machine.state is not state:
            await asyncio.sleep(0.02)


async def test_whichever_write_fails_while_a_machine_is_made_nothing_of_it_stays(tmp_path: Path) -> None:
    """Every act of writing fails once. Either nothing was rented and nothing is there, or the machine ends whole."""
    refused = 0
    for act in range(1, 40):
        folder = tmp_path / str(act)
        async with company(folder) as one:
            with full_at(act, folder / "machines") as disk:
                try:
                    machine = one.create(_RENTAL)
                except OSError:
                    refused += 1
                    assert folders(folder) == []
                    assert one.store.all() == []
                    continue
                await is_up_or_gone(one, machine.machine_id)
                made_whole = disk.acts < act
            await one.terminate(machine.machine_id)
            await is_wiped(folder, machine.machine_id)  # one that could not be started has ended by itself
            assert tokens_below(folder) == []
        if made_whole:
            break
    assert refused >= 4  # its folders, their modes, its order
    assert made_whole, "there are more acts than were tried"


@pytest.mark.parametrize("method", ["add", "set_running", "set_ended"])
async def test_a_database_that_cannot_be_written_leaves_no_token_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """The machine's folder goes although its end could not be written down; that follows when there is room again."""
    folder = tmp_path / "cloud"
    monkeypatch.setattr("providers.local.company._WATCH_AFTER_FAILURE_S", 0.1)

    def full(*_arguments: object, **_options: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    async with company(folder) as one:
        with monkeypatch.context() as patched:
            patched.setattr(one.store, method, full)
            if method == "add":
                with pytest.raises(sqlite3.OperationalError):
                    one.create(_RENTAL)
                assert folders(folder) == []
                return
            machine_id = one.create(_RENTAL).machine_id
            if method == "set_running":
                await state_is(one, machine_id, MachineState.ENDED)
            else:
                await state_is(one, machine_id, MachineState.RUNNING)
                with pytest.raises(sqlite3.OperationalError):
                    await one.terminate(machine_id)
            await is_wiped(folder, machine_id)  # a moment after it has ended
            assert tokens_below(folder) == []
            assert not MachineFiles(folder, machine_id).root.exists()
        await state_is(one, machine_id, MachineState.ENDED)


async def test_a_cloud_goes_on_watching_after_its_database_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that was full for a moment must not leave machines that end unnoticed."""
    monkeypatch.setattr("providers.local.company._WATCH_AFTER_FAILURE_S", 0.05)
    failures = 0

    def full(*_arguments: object) -> None:
        nonlocal failures
        failures += 1
        raise sqlite3.OperationalError("database or disk is full")

    async with company(tmp_path / "cloud") as one:
        with monkeypatch.context() as patched:
            patched.setattr(one.store, "set_fact", full)
            monkeypatch.setattr("providers.local.company._ALIVE_EVERY_MS", 0)
            async with asyncio.timeout(_PATIENCE_S):
                while failures < 3:
                    await asyncio.sleep(0.02)
        machine_id = one.create(_RENTAL).machine_id
        await state_is(one, machine_id, MachineState.RUNNING)
        machine = one.store.get(machine_id)
        assert machine is not None
        assert machine.keeper is not None
        os.kill(machine.keeper.pid, 9)
        await state_is(one, machine_id, MachineState.ENDED)


async def test_what_an_earlier_cloud_left_is_swept_and_nothing_else(tmp_path: Path) -> None:
    """Of machines that nobody knows, and of ended ones whose disk could not be removed. Links lead nowhere."""
    folder, outside = tmp_path / "cloud", tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("kept")
    async with company(folder) as one:
        ended = one.create(_RENTAL).machine_id
        await state_is(one, ended, MachineState.RUNNING)
        await one.terminate(ended)
    machines = folder / "machines"
    for name in (ended, "m-000099-unknown"):
        (machines / name / "root").mkdir(parents=True, exist_ok=True)
        (machines / name / "root" / "link").symlink_to(outside)
        (machines / name / "order").write_text(_TOKEN)
    (machines / "linked").symlink_to(outside)
    (machines / "notes-of-somebody").mkdir()
    (machines / "notes-of-somebody" / "notes.txt").write_text("kept")
    async with company(folder):
        assert folders(folder) == sorted([ended, "linked", "notes-of-somebody"])
        assert tokens_below(folder) == []
        assert (machines / ended / "machine.log").exists()
    assert (outside / "precious").read_text() == "kept"


def test_a_folder_of_machines_that_is_a_link_is_left_alone(tmp_path: Path) -> None:
    """Whatever it leads to is not the cloud's."""
    outside = tmp_path / "outside"
    (outside / "m-000001-abcd" / "root").mkdir(parents=True)
    cloud = tmp_path / "cloud"
    cloud.mkdir()
    (cloud / "machines").symlink_to(outside)
    swept = sweep_leftovers(cloud, live=(), ended=(), files_of=lambda name: MachineFiles(cloud, name))
    assert swept == 0
    assert (outside / "m-000001-abcd" / "root").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a small disk")
async def test_a_disk_that_is_really_full_keeps_no_folder(tmp_path: Path) -> None:
    """The order cannot be written; when there is room again, the next machine runs."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], check=True)  # noqa: ASYNC221
    try:
        async with company(disk / "cloud") as one:
            ballast = disk / "ballast"
            with contextlib.suppress(OSError):
                ballast.write_bytes(b"\0" * 2**23)
            with pytest.raises((OSError, sqlite3.Error)):
                one.create(_RENTAL)
            assert folders(disk / "cloud") == []
            ballast.unlink()
            machine_id = one.create(_RENTAL).machine_id
            await state_is(one, machine_id, MachineState.RUNNING)
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)  # noqa: ASYNC221
