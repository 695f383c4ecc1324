"""What ends all processes of a machine's users: hostile ones included, and nobody else's."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from workers.agent import blocks, sweep

SYSTEM_PYTHON = "/usr/bin/python3"
pytestmark = pytest.mark.skipif(
    os.getuid() != 0 or not sweep.LINUX or not Path(SYSTEM_PYTHON).exists(), reason="own users need root"
)
PROGRAM = Path(sweep.__file__)
# While the bomb of another test goes off beside it, the host may have no room for a process for a moment.
DAEMON = """
import os, time
def fork():
    while True:
        try: return os.fork()
        except OSError: time.sleep(0.01)
if fork(): os._exit(0)
os.setsid()
if fork(): os._exit(0)
time.sleep(600)
"""
# Never the same process for longer than a moment, and each one nobody's child.
FORK_CHAIN = """
import os, time
while True:
    try: child = os.fork()
    except OSError:  # those that have ended are not all collected
        time.sleep(0.001)
        continue
    if child: os._exit(0)
    os.setsid()
"""
BOMB = """
import os
while True:
    try: os.fork()
    except OSError: pass
"""
FIGHTER = """
import os, signal
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True:
    try: os.kill(-1, signal.SIGKILL)
    except OSError: pass
"""
# Its first thread is gone; the process looks like one that only awaits its parent.
HEADLESS = """
import ctypes, threading, time
while threading.active_count() < 2:
    try: threading.Thread(target=time.sleep, args=(600,)).start()
    except RuntimeError: time.sleep(0.01)
ctypes.CDLL(None).syscall(60, 0)
"""


@pytest.fixture
def block() -> Iterator[blocks.Block]:
    block = blocks.claim(blocks.DEFAULT)
    yield block
    sweep.end_users(block.first, block.uids[:10])
    block.close()


def begin(uid: int, script: str, most_processes: int = 200) -> subprocess.Popen[bytes]:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NPROC, (most_processes, most_processes))

    return subprocess.Popen(
        [SYSTEM_PYTHON, "-I", "-S", "-c", script],
        user=uid,
        group=uid,
        extra_groups=[],
        cwd="/",
        preexec_fn=limit,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"no {what}"
        time.sleep(0.01)


def sweep_one(block: blocks.Block, uid: int) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-I", "-S", str(PROGRAM), *map(str, (block.first, uid, uid))],
        env={},
        capture_output=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("script", [DAEMON, FORK_CHAIN, BOMB, FIGHTER, HEADLESS])
def test_nothing_of_a_user_survives_and_nobody_else_is_touched(block: blocks.Block, script: str) -> None:
    """Daemons, chains of forks, bombs, those that ignore and those that kill whatever they can: all are gone when the
    sweep ends. The next user's process lives on."""
    uid, neighbour = block.uids[0], begin(block.uids[1], "import time; time.sleep(600)")
    begun = begin(uid, script)
    mine = range(uid, uid + 1)
    until(lambda: begun.poll() is not None or sweep.processes_of(mine), "process")
    until(lambda: sweep.processes_of(mine), "process of the user")
    done = sweep_one(block, uid)
    assert (done.returncode, done.stdout, done.stderr) == (0, b'{"left": {}}\n', b"")
    for _ in range(5):
        assert sweep.processes_of(mine) == {}
    begun.wait(60)
    assert neighbour.poll() is None
    neighbour.kill()
    neighbour.wait()


def test_a_sweep_of_a_whole_block_finds_each_user(block: blocks.Block) -> None:
    """Also those who are not children of anybody known, in one call."""
    for uid in block.uids[:3]:
        begin(uid, DAEMON).wait(60)
    until(lambda: len(sweep.processes_of(block.uids)) == 3, "three users")
    assert sweep.end_users(block.first, block.uids[:10]) == {}
    assert sweep.processes_of(block.uids) == {}


def test_a_sweep_whose_child_is_ended_finds_each_user_all_the_same(
    block: blocks.Block, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by another sweep of the same machine, in the middle of it."""
    for uid in block.uids[:3]:
        begin(uid, DAEMON).wait(60)
    until(lambda: len(sweep.processes_of(block.uids)) == 3, "three users")
    seteuid = os.seteuid
    monkeypatch.setattr(os, "seteuid", lambda uid: (seteuid(uid), os.kill(os.getpid(), signal.SIGKILL)))
    sweep.strike(block.first, block.uids[:10])
    until(lambda: not sweep.processes_of(block.uids), "end of them")


def test_what_was_left_on_the_host_is_removed(block: blocks.Block) -> None:
    """Files in folders that are open to all, shared memory, semaphores and queues of the user; those of others stay."""
    uid, other = block.uids[0], block.uids[1]
    script = """
import ctypes, os, pathlib, sys
me = os.getuid()
for folder in ("/tmp", "/var/tmp", "/dev/shm"):
    home = pathlib.Path(folder, f"allpass-left-{me}")
    home.mkdir()
    (home / "deep").mkdir(mode=0o700)
    (home / "deep" / "file").write_text("x")
    pathlib.Path(folder, f"allpass-left-{me}.txt").write_text("x")
    os.symlink("/etc/passwd", f"{folder}/allpass-left-{me}.link")
libc = ctypes.CDLL(None)
assert libc.shmget(0, 4096, 0o1600) >= 0 and libc.semget(0, 1, 0o1600) >= 0 and libc.msgget(0, 0o1600) >= 0
"""
    for user in (uid, other):
        assert begin(user, script).wait(60) == 0
    assert sweep.have_left(range(uid, uid + 1))
    assert sweep_one(block, uid).returncode == 0
    assert not sweep.have_left(range(uid, uid + 1))
    assert len(list(Path("/dev/shm").glob(f"allpass-left-{other}*"))) == 3
    assert sweep_one(block, other).returncode == 0
    assert not sweep.have_left(range(other, other + 1))
    assert Path("/etc/passwd").exists()


def test_what_vanishes_meanwhile_hides_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others make and remove files all the time in the folders that are open to all."""
    for name in "abc":
        (tmp_path / name).touch()
    scan = os.scandir

    def scan_late(folder: str) -> contextlib.nullcontext[list[os.DirEntry[str]]]:
        with scan(folder) as entries:
            found = list(entries)
        Path(found[0].path).unlink()
        return contextlib.nullcontext(found)

    monkeypatch.setattr(os, "scandir", scan_late)
    monkeypatch.setattr(sweep, "OPEN_TO_ALL", (str(tmp_path),))
    assert sweep._owners_of_files([os.getuid()]) == [os.getuid()] * 2


@pytest.mark.parametrize(
    ("warden", "uids", "said"),
    [
        (70_000, range(0, 1), "not one of a machine's"),
        (70_000, range(999, 1000), "not one of a machine's"),
        (0, range(70_001, 70_002), "not one of a machine's"),
        (70_000, range(65_530, 65_540), "can log in"),  # nobody
        (70_000, range(70_000, 70_001), "by itself"),
    ],
)
def test_nobody_but_users_of_machines_is_swept(warden: int, uids: range, said: str) -> None:
    """Not the system's users, not ours, not one who can log in."""
    with pytest.raises(ValueError, match=said):
        sweep.end_users(warden, uids)


def test_a_process_that_cannot_be_ended_is_told(block: blocks.Block, monkeypatch: pytest.MonkeyPatch) -> None:
    """What survives (it waits for a disk that does not answer, say) is named: its number is never given out again."""
    stubborn = begin(block.uids[0], "import time; time.sleep(600)")
    until(lambda: sweep.processes_of(block.uids), "process")
    monkeypatch.setattr(sweep, "_kill", lambda _warden, _uids: None)  # a kernel that does not come to it
    assert sweep.end_users(block.first, block.uids[:10], 0.1) == {block.uids[0]: [stubborn.pid]}
    monkeypatch.undo()
    assert sweep.end_users(block.first, block.uids[:10]) == {}
    assert stubborn.wait(60) == -signal.SIGKILL


@pytest.mark.parametrize("saved", ["root", "warden"])
def test_who_is_swept_cannot_reach_who_sweeps(block: blocks.Block, saved: str) -> None:
    """The child that signals has the warden as its real user, and root or the warden as its saved one: it cannot be
    signalled or traced by them."""
    uid = block.uids[0]
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(block.first, uid, 0 if saved == "root" else block.first)
        os.write(writer, b"x")
        signal.pause()
        os._exit(0)
    os.read(reader, 1)
    tried = subprocess.run(
        [
            SYSTEM_PYTHON,
            "-I",
            "-S",
            "-c",
            f"import os\ntry: os.kill({child}, 9)\nexcept PermissionError: print('denied')",
        ],
        user=uid,
        group=uid,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        check=True,
    )
    assert tried.stdout == b"denied\n"
    assert sweep.end_users(block.first, range(uid, uid + 1)) == {}  # the warden's own goes with it
    os.close(reader)
    os.close(writer)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
