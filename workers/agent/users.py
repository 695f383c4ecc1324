"""The users that code runs as on this machine: one of its own for each run, where the machine lets us.

An agent that is not root cannot choose: everything runs as its own user. One that is root, and cannot give rights up,
runs no code (`check`): as root it would read whatever this host has, other runs and projects included. Two kinds of
machines go on, and say so: one that is thrown away after its only run, and one whose owner allows it by name.

No number is given out twice while the machine lives, as long as there are others: what a run left anywhere is nobody's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

from workers.agent import blocks, sweep, views
from workers.agent.config import Config
from workers.agent.errors import MachineFailed
from workers.agent.process import User

FIX = (
    "Start Allpass as a user who is not root; or put Python, its virtual environment and the data folder where every"
    " user may read them (/opt, /srv); or set ALLPASS_USER_CODE_AS_ROOT=true if code may do whatever root can"
)
_TRIAL_S = 60.0
_MOST_OF_ALL = (  # how many processes there can be: of the kernel, and of a container
    "/proc/sys/kernel/threads-max",
    "/proc/sys/kernel/pid_max",
    "/sys/fs/cgroup/pids.max",
    "/sys/fs/cgroup/pids/pids.max",
)
_SAID_BYTES = 2000
# Loads what needs libraries of the system's, reads what is told, and proves that there is no way back.
_TRIAL = """
import os, ssl, sys
for path in sys.argv[2:]: open(path).close()
try: os.setuid(0)
except OSError: print('able', *os.getresuid())
"""


class Users:
    """Thread-safe. `on_news` is called when there is something new in `notices`.

    Made, it has begun to try (a Python takes a while to start); whoever asks waits until that is over. It forks: it is
    to be made before there are other threads. Needs the agent's folders.
    """

    def __init__(self, config: Config, on_news: Callable[[], None] = lambda: None) -> None:
        self._config = config
        self._on_news: Callable[[], None] = lambda: None  # nobody is told before all is there
        self._deciding = threading.RLock()  # guards the next six
        self._block: Optional[blocks.Block] = None
        self._first: Optional[int] = None  # of the block: its warden
        self._views: List[Dict[str, Any]] = []
        self._trial: Optional[_Trial] = None
        self._is_decided = False
        self._refusal: Optional[str] = None
        self._lock = threading.RLock()  # guards all below; nobody waits while holding it
        self._fault: Optional[str] = None
        self._notices: List[Dict[str, str]] = []
        self._next = 0
        self._returned: List[int] = []  # and nothing of them is left
        self._most_processes = _most_processes(config.most_processes)
        if os.geteuid() == 0:
            self._begin()
        self._on_news = on_news

    def open(self) -> None:
        """Wait until the trial is over, and end what an earlier agent of this machine left."""
        warden, earlier = self.warden, self._next - 1
        if warden is not None and earlier > warden:
            left = self.sweep(warden + 1, earlier)
            if left:
                self.condemn(f"processes of an earlier agent cannot be killed: {_listed(left)}")

    # What user code runs as.

    def take(self) -> Optional[int]:
        """A user that nobody is and, if possible, nobody was; None: the agent's own. Raises MachineFailed."""
        self.check()
        warden = self.warden
        if warden is None:
            return None
        with self._lock:
            if self._next in blocks.uids_of(warden):
                self._next += 1
                self._note_next()
                return self._next - 1
            if self._returned:
                return self._returned.pop(0)
        raise MachineFailed("all users of this machine's block have been given out, and none is free of processes")

    def give_back(self, uid: Optional[int]) -> None:
        """Its run is over: end what still runs as it, remove what it left outside of its folders."""
        if uid is None:
            return
        left = self.sweep(uid, uid)
        with self._lock:
            if left:
                self.condemn(f"{len(left)} processes of an ended run cannot be killed: {_listed(left)}")
            elif left is not None:
                self._returned.append(uid)

    def check(self) -> None:
        """Raises MachineFailed where no code may run here."""
        if self.fault is not None:
            raise MachineFailed(f"this machine is at fault: {self.fault}")
        with self._deciding:
            self._decide()
            if self._refusal is not None:
                raise MachineFailed(self._refusal)

    @property
    def warden(self) -> Optional[int]:
        """See `sweep.py`."""
        with self._deciding:
            self._decide()
            return self._first

    def user(self, uid: Optional[int], *, alone: bool = True) -> User:
        """As whom a process of a run is started. `alone`: no other process of this agent's is this user meanwhile."""
        warden = self.warden
        if uid is None or warden is None:
            return User()
        return User(uid, warden if alone else None, self._views, self._most_processes)

    # What the server is told.

    @property
    def fault(self) -> Optional[str]:
        """Why this machine is to end."""
        with self._lock:
            return self._fault

    @property
    def notices(self) -> List[Dict[str, str]]:
        """What is to be known of this machine and was not told yet: `kind` and `message`."""
        with self._lock:
            return list(self._notices)

    def told(self, notices: List[Dict[str, str]]) -> None:
        with self._lock:
            self._notices = [notice for notice in self._notices if notice not in notices]

    def notice(self, kind: str, message: str) -> None:
        """Something to be known of this machine, once."""
        with self._lock:
            self._notices.append({"kind": kind, "message": message})
        self._on_news()

    def condemn(self, why: str) -> None:
        """Nothing more may run here."""
        with self._lock:
            if self._fault is not None:
                return
            self._fault = why
        print(f"allpass agent: this machine is at fault: {why}", file=sys.stderr, flush=True)
        self._on_news()

    def sweep(self, first: int, last: int) -> Optional[List[int]]:
        """Who is left of these users after all was done; None when that could not be found out."""
        warden = self.warden
        if warden is None:
            return []
        argv = [sys.executable, "-I", "-S", str(self._config.root / "programs" / "sweep.py")]
        argv += [str(warden), str(first), str(last)]
        try:
            done = subprocess.run(argv, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, check=False, cwd="/", env={})
            left: Dict[str, List[int]] = json.loads(done.stdout)["left"]
        except (OSError, ValueError, KeyError):
            traceback.print_exc(file=sys.stderr)
            return None
        return [pid for pids in left.values() for pid in pids]

    # How it is found out.

    def _begin(self) -> None:
        try:
            self._first = first = self._first_of_ours()
            sweep.check(first, blocks.uids_of(first))
            self._next = self._earlier_next(first)
            self._views = views.plan(_needed(self._config))
            self._trial = _Trial(self._config, first + 1, self._views)
        except (blocks.NoneFree, OSError, ValueError) as error:
            self._decided(f"it runs as root, and no user can be given to it: {error}")

    def _first_of_ours(self) -> int:
        """Of the block that is held for this machine, or that we hold from now on."""
        if not sweep.LINUX:
            raise blocks.NoneFree("only on Linux can user code be given a user of its own and be swept")
        if self._config.first_user_uid is not None:
            return self._config.first_user_uid
        self._block = blocks.claim(self._config.user_ids)
        return self._block.first

    def _decide(self) -> None:
        if self._is_decided or os.geteuid() != 0:
            return
        trial, self._trial = self._trial, None
        said = "" if trial is None else trial.said()
        uid = 0 if self._first is None else self._first + 1
        if said.split() == ["able", str(uid), str(uid), str(uid)]:
            self._decided(None)
        else:
            words = said.strip().rpartition("\n")[2]
            self._decided(
                f"it runs as root, and a user without rights cannot start {self._config.python} or reach"
                f" {self._config.root}: {words or 'it ended without a word'}"
            )

    def _decided(self, why: Optional[str]) -> None:
        self._is_decided = True
        if why is None:
            return
        self._first, self._views = None, []
        config = self._config
        if config.code_as_root or (config.single_run and not config.shares_host):
            reason = "a setting allows it" if config.code_as_root else "the machine is for one run and goes with it"
            notice = {"kind": "node_runs_code_as_root", "message": f"user code runs as root here ({reason}): {why}"}
        else:
            self._refusal = f"this machine runs no code: {why}. {FIX}"
            notice = {"kind": "node_refuses_code", "message": self._refusal}
        print(f"allpass agent: {notice['message']}", file=sys.stderr, flush=True)
        with self._lock:
            self._notices.append(notice)
        self._on_news()

    def _earlier_next(self, first: int) -> int:
        """The number after the last that an agent of this machine gave out."""
        try:
            known = int((self._config.root / blocks.NEXT_USER).read_text())
        except (OSError, ValueError):
            return first + 1
        return known if first < known <= first + blocks.SIZE else first + 1

    def _note_next(self) -> None:
        part = self._config.root / f".{blocks.NEXT_USER}"
        try:
            part.touch(mode=0o600)
            part.write_text(str(self._next))
            part.replace(self._config.root / blocks.NEXT_USER)
        except OSError as error:  # whoever clears up after us would not know of it
            raise MachineFailed(f"this machine failed while a user was given to a run: {error}") from error


class _Trial:
    """A process that becomes a user as runs do, and starts the Python of user code."""

    def __init__(self, config: Config, uid: int, seen: List[Dict[str, Any]]) -> None:
        self._files = [config.cache / f".trial-{os.getpid()}", config.root / "lib" / ".trial"]
        for file in self._files:
            file.touch()
            file.chmod(0o644)
        argv = [config.python, "-I", "-c", _TRIAL, str(uid), *map(str, self._files)]
        self._reader, writer = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            _become(uid, argv, seen, config.root / "lib", writer)
        os.close(writer)

    def said(self) -> str:
        """Waits for its end."""
        import select

        data = b""
        while select.select([self._reader], [], [], _TRIAL_S)[0]:
            piece = os.read(self._reader, 65536)
            if not piece:
                break
            data = (data + piece)[-_SAID_BYTES:]
        else:
            os.kill(self._pid, 9)
        os.close(self._reader)
        os.waitpid(self._pid, 0)
        for file in self._files:
            file.unlink(missing_ok=True)
        return data.decode("utf-8", "replace")


def _become(uid: int, argv: List[str], seen: List[Dict[str, Any]], folder: Path, writer: int) -> None:
    """In the child; never returns."""
    try:
        os.setsid()
        views.enter(seen)
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        os.chdir(folder)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(writer, 1)
        os.dup2(writer, 2)
        environ = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"}
        os.execve(argv[0], argv, environ)  # noqa: S606 - the Python of user code
    except OSError as error:
        os.write(writer, f"{error}\n".encode())
    finally:
        os._exit(126)


def _needed(config: Config) -> List[str]:
    """The folders that a run needs, wherever they lie: its Python, its machine's, and wheels that were laid ready."""
    given = os.environ.get("PIP_FIND_LINKS", "").split()
    wheels = [path for path in given if os.path.isabs(path) and Path(path).is_dir()]  # noqa: PTH117 - else an address
    return [
        *views.homes_of(config.python),
        *views.homes_of(sys.executable),
        str(config.root),
        str(config.cache),
        *wheels,
    ]


def _most_processes(wanted: int) -> int:
    """No run takes more than a quarter of what there can be: others have to start theirs."""
    for file in _MOST_OF_ALL:
        try:
            wanted = min(wanted, int(Path(file).read_text()) // 4)
        except (OSError, ValueError):  # the system does not say, or "max"
            continue
    return wanted


def _listed(pids: List[int]) -> str:
    return ", ".join(map(str, pids[:10])) + (" and more" if len(pids) > 10 else "")
