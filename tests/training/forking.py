"""A program that has loaded torch once and forks a process for each `forked.py`: loading it for every process of every
training would take most of the time of these tests."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from tests.training.scripts import REPOSITORY

CLIENT = (sys.executable, "-I", "-S", str(Path(__file__).with_name("forked.py")))


@contextlib.contextmanager
def forks(module: str, folder: Path) -> Iterator[str]:
    """The socket of this module's program, which calls `serve`: what FORKS of a `forked.py` is to name."""
    path = str(folder / "s")
    program = subprocess.Popen(
        [sys.executable, "-m", module, path],
        cwd=REPOSITORY,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    try:
        yield path
    finally:
        program.kill()
        program.communicate()


def serve(path: str, run: Callable[[list[str]], None]) -> NoReturn:
    """`run` with its arguments in a process for each that asks for one, in its place: folder, environment, streams."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen(64)
        print("ready", flush=True)
        while True:
            client, _ = server.accept()
            with client:
                if os.fork() == 0:
                    _answer(client, run)


def _answer(client: socket.socket, run: Callable[[list[str]], None]) -> NoReturn:
    """Fork once more, wait for the child and tell how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    data, streams, _, _ = socket.recv_fds(client, 1 << 20, 3)
    order = json.loads(data)
    child = os.fork()
    if child == 0:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        client.close()
        _become(order, run)
    for stream in streams:
        os.close(stream)
    ended = os.pidfd_open(child)
    if ended not in select.select([ended, client], [], [])[0]:  # whoever stands for it was killed
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(OSError):  # it is not waited for any more
        client.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _become(order: dict[str, Any], run: Callable[[list[str]], None]) -> NoReturn:
    code = 1
    try:
        os.environ.clear()
        os.environ.update(order["environ"])
        os.chdir(order["cwd"])
        signal.pthread_sigmask(signal.SIG_SETMASK, order["held"])
        sys.stdin = os.fdopen(0, "r")
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
        run(order["argv"])
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:  # as the interpreter does at its outermost frame
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
