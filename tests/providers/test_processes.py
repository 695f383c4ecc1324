"""Processes are told apart for good, and trees of them end whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.providers.cloud_process import eventually
from workers.machines import processes
from workers.machines.processes import (
    ProcessIdentity,
    ProcessRow,
    descendants,
    identify,
    is_alive,
    kill_tree,
    marked,
    process_table,
    send_signal,
)

MARK = ("ALLPASS_TEST_MARK", f"m{os.getpid()}")


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"], env={**os.environ, MARK[0]: MARK[1]}) as process:
        yield process
        process.kill()


def identity_of(process: subprocess.Popen[bytes]) -> ProcessIdentity:
    identity = identify(process.pid)
    assert identity is not None
    return identity


def test_a_process_is_itself_until_it_ends(sleeper: subprocess.Popen[bytes]) -> None:
    """An identity is alive while its process runs, and no longer, even before its parent has collected it."""
    identity = identity_of(sleeper)
    assert is_alive(identity)
    assert identity in {row.identity for row in process_table()}
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)  # ended, and still a zombie
    assert not is_alive(identity)
    assert identity not in {row.identity for row in process_table()}


@pytest.mark.parametrize("other", [{"started": "1"}, {"boot": "another boot"}])
def test_another_process_with_the_same_pid_is_never_signalled(
    sleeper: subprocess.Popen[bytes], other: dict[str, str]
) -> None:
    """A pid with another start time, or from another boot, is not the process: it is neither alive nor reached."""
    stale = replace(identity_of(sleeper), **other)
    assert not is_alive(stale)
    assert not send_signal(stale, signal.SIGKILL)
    assert kill_tree(stale, None)
    assert sleeper.poll() is None


def test_a_signal_reaches_the_process_it_is_for(sleeper: subprocess.Popen[bytes]) -> None:
    """Sending to a live process says so and arrives; sending to a gone one says no."""
    identity = identity_of(sleeper)
    assert send_signal(identity, signal.SIGTERM)
    assert sleeper.wait(10) == -signal.SIGTERM
    assert not send_signal(identity, signal.SIGTERM)


def test_a_mark_is_found_whole(sleeper: subprocess.Popen[bytes]) -> None:
    """A mark finds the process that carries it, not one whose mark merely begins the same."""
    identity = identity_of(sleeper)
    eventually(lambda: identity in marked(process_table(), *MARK))
    assert identity not in marked(process_table(), MARK[0], MARK[1][:-1])


def test_a_family_that_keeps_growing_is_ended_all_the_same() -> None:
    """Children that are born while their parents are being killed do not escape."""
    busy = "import subprocess, time\nfor _ in range(40): subprocess.Popen(['sleep', '60']); time.sleep(.002)\n"
    children = f"[subprocess.Popen([sys.executable, '-S', '-c', {busy!r}]) for _ in range(3)]"
    breeder = f"import subprocess, sys, time\n{children}\ntime.sleep(60)"
    with subprocess.Popen([sys.executable, "-S", "-c", breeder], env={**os.environ, MARK[0]: MARK[1]}) as root:
        identity = identity_of(root)
        eventually(lambda: len(descendants(process_table(), root.pid)) > 6)
        assert kill_tree(identity, MARK)
        assert marked(process_table(), *MARK) == []


def test_a_root_that_keeps_starting_processes_is_stopped_first() -> None:
    """A root that starts a child every millisecond, for ever, is ended with all of them, well within patience."""
    tireless = "import subprocess, time\nwhile True: subprocess.Popen(['sleep', '60']); time.sleep(.001)"
    with subprocess.Popen([sys.executable, "-S", "-c", tireless], env={**os.environ, MARK[0]: MARK[1]}) as root:
        identity = identity_of(root)
        eventually(lambda: len(descendants(process_table(), root.pid)) > 3)
        assert kill_tree(identity, MARK)
        assert marked(process_table(), *MARK) == []


def test_a_slow_host_is_no_survivor(sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """When it takes longer than the patience to end the rest, and then nothing is left, all of it has ended."""
    now_s = 0.0

    def slow() -> None:
        nonlocal now_s
        sleeper.wait(10)
        now_s += 60.0

    clock = SimpleNamespace(monotonic=lambda: now_s, sleep=time.sleep)
    eventually(lambda: identity_of(sleeper) in marked(process_table(), *MARK))
    monkeypatch.setattr(processes, "time", clock)
    assert kill_tree(None, MARK, also=slow)


def test_what_is_seen_after_the_patience_has_survived(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes that SIGKILL does not end are told, however long the attempts took."""
    now_s = 0.0

    def slow() -> None:
        nonlocal now_s
        now_s += 3.0

    clock = SimpleNamespace(monotonic=lambda: now_s, sleep=time.sleep)
    eventually(lambda: identity_of(sleeper) in marked(process_table(), *MARK))
    monkeypatch.setattr(processes, "time", clock)
    monkeypatch.setattr(processes, "send_signal", lambda *_: True)  # as if it were stuck in the kernel
    assert not kill_tree(None, MARK, also=slow)
    assert now_s == 6.0


@given(parents=st.lists(st.integers(0, 30), max_size=40), root=st.integers(1, 41))
def test_descendants_are_those_whose_line_leads_to_the_root(parents: list[int], root: int) -> None:
    """A process is below the root exactly if walking up its parents meets the root; loops do no harm."""
    parent_of = dict(enumerate(parents, start=1))
    table = [ProcessRow(ProcessIdentity(pid, "0", ""), parent) for pid, parent in parent_of.items()]

    def below(pid: int) -> bool:
        seen: set[int] = set()
        while pid in parent_of and pid not in seen:
            seen.add(pid)
            pid = parent_of[pid]
            if pid == root:
                return True
        return False

    found = [identity.pid for identity in descendants(table, root)]
    assert len(found) == len(set(found))
    assert set(found) == {pid for pid in parent_of if below(pid)}


def test_ps_tells_the_same_story(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where there is no /proc, `ps` gives identities that hold as well."""
    monkeypatch.setattr(processes, "PROC", tmp_path)
    processes.boot_id.cache_clear()
    try:
        identity = identity_of(sleeper)
        rows = {row.identity: row.parent_pid for row in process_table()}
        assert rows[identity] == os.getpid()
        assert is_alive(identity)
        assert not is_alive(replace(identity, started="yesterday"))
        assert kill_tree(identity, None)
        assert sleeper.wait(10) == -signal.SIGKILL
        assert not is_alive(identity)
    finally:
        processes.boot_id.cache_clear()
