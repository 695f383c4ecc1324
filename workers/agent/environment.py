"""The Python that user code runs with: the machine's own when it has what the app asks for, else one built on top of
it, once per set of requirements, kept for the next run.

One that was built before a run asked for it (`ahead`) bears a mark until one does; of those, few are kept.

A built environment sees the machine's packages below its own. It is whole or absent: its mark of completion is put in
place by an atomic rename, under a lock that other agents of this machine respect.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import sys
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence

from workers.agent.errors import Aborted, EnvironmentFailed, MachineFailed
from workers.agent.files import give_to
from workers.agent.process import Ended
from workers.agent.shipped import Shipped

_AHEAD = "ahead"  # a mark beside `complete`: no run has used it
_KIND = "with programs"  # environments of agents that built them otherwise are not used
# The first lines of a program: the shell starts Python, which takes them for a text. "#!" itself takes no long path.
_STARTED_BY = b"#!/bin/sh\n'''exec' \"%s\" \"$0\" \"$@\"\n' '''\n"
_MOST_PROGRAM_BYTES = 64 * 1024
_ERROR_LINES = 20
_ERROR_CHARS = 3500
_PASSED_ON = (
    "PIP_",
    "UV_",
    "SSL_CERT_",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
)
_UV_NAMES = {
    "PIP_INDEX_URL": "UV_DEFAULT_INDEX",
    "PIP_EXTRA_INDEX_URL": "UV_INDEX",
    "PIP_FIND_LINKS": "UV_FIND_LINKS",
    "PIP_TRUSTED_HOST": "UV_INSECURE_HOST",
    "PIP_CERT": "SSL_CERT_FILE",
}
Runner = Callable[[Sequence[str], Dict[str, str], Callable[[bytes], None]], Ended]


@dataclass(frozen=True)
class EnvironmentNeed:
    """What a run asks for. `sha256` names the set of requirements. `pins`: versions that its job began with, to be had
    as well where that can be."""

    pip: List[str]
    sha256: str
    pins: List[str] = field(default_factory=list)

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> "EnvironmentNeed":
        """Of a run, or of a job to come."""
        return cls(spec["pip"], spec["environment_sha256"], spec.get("pins") or [])

    @property
    def name(self) -> str:
        """Of all of it."""
        if not self.pins:
            return self.sha256
        return hashlib.sha256("\n".join([self.sha256, *sorted(self.pins)]).encode()).hexdigest()


class Builder:
    """`run` executes a program as the run's user; `uid` is that user (None: the agent's own). `ahead`: there is no run
    yet that asks."""

    def __init__(
        self,
        *,
        python: str,
        check: Path,
        cache: Path,
        uid: Optional[int],
        run: Runner,
        log: Callable[[bytes], None],
        say: Callable[[str], None],
        gone: threading.Event,
        shipped: Optional[Shipped] = None,
        ahead: bool = False,
    ) -> None:
        self._python = python
        self._check = check
        self._cache = cache
        self._uid = uid
        self._run = run
        self._log = log
        self._say = say
        self._gone = gone
        self._shipped = shipped
        self._ahead = ahead

    def python_for(self, need: EnvironmentNeed) -> str:
        """The interpreter to use. Raises EnvironmentFailed with the installer's last lines."""
        if not need.pins:
            return self._having(need, pinned=False)
        try:
            return self._having(EnvironmentNeed([*need.pip, *need.pins], need.name), pinned=True)
        except MachineFailed:
            raise
        except EnvironmentFailed as error:
            self._say(
                f"environment: this machine cannot have {', '.join(need.pins)}, which this job began with, so the last "
                f"bits of what comes may differ: {error}"
            )
            return self._having(replace(need, pins=[]), pinned=False)

    def _having(self, need: EnvironmentNeed, *, pinned: bool) -> str:
        if not need.pip:
            return self._python
        facts = self._facts(self._python, need.pip)
        if facts["missing"] == []:
            return self._python
        told = f"{need.sha256}\n{self._python}\n{facts['site']}\n{_KIND}"
        key = hashlib.sha256(told.encode()).hexdigest()
        home = self._cache / key[:32]
        with _locked(self._cache / f"{key[:32]}.lock", self._gone):
            python, done = home / "venv" / "bin" / "python", home / "complete"
            if done.exists() and python.exists():  # it is a link to the machine's own, which may be another by now
                self._say("environment: using the one built earlier")
                if not self._ahead:
                    (home / _AHEAD).unlink(missing_ok=True)
                return str(python)
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(home)  # what a build left that was interrupted
            self._build(need, home, python, facts["site"], computes=pinned)
            if self._ahead:
                (home / _AHEAD).touch()
            part = home / "complete.part"
            part.write_text(json.dumps(need.pip), encoding="utf-8")
            part.replace(done)
            return str(python)

    def _build(self, need: EnvironmentNeed, home: Path, python: Path, site: List[str], *, computes: bool) -> None:
        self._say(f"environment: installing {', '.join(need.pip)}")
        home.mkdir(parents=True)
        try:
            give_to(self._uid, home)
            self._make(python.parent.parent)
            _see_packages_below(python.parent.parent, site)
            self._install(python, need.pip)
            _see_programs_below(python, Path(self._python).parent)
            give_to(None if self._uid is None else os.getuid(), home)
            self._verify(python, need)
            if computes:
                self._check_gpus(python)
        except BaseException:
            shutil.rmtree(home, ignore_errors=True)
            raise

    def _verify(self, python: Path, need: EnvironmentNeed) -> None:
        missing = self._facts(str(python), need.pip)["missing"]
        if missing:
            raise EnvironmentFailed(f"after the installation these do not hold: {', '.join(missing)}")

    def _check_gpus(self, python: Path) -> None:
        """A version that another machine had may know nothing of this one's GPUs, or of its driver."""
        why = self._facts(str(python), [], "gpus").get("gpus")
        if why:
            raise EnvironmentFailed(f"it cannot compute here: {why}")

    def _make(self, home: Path) -> None:
        """An environment without anything in it: by Python's own means, which some systems pack apart, else by uv."""
        own = [self._python, "-I", "-m", "venv", "--without-pip", str(home)]
        if self._run(own, installer_environ(os.environ), self._log).exit_code == 0:
            return
        shutil.rmtree(home, ignore_errors=True)
        uv = self._shipped_uv()
        self._step([uv, "venv", "--no-config", "--python", self._python, str(home)] if uv else own)

    def _install(self, python: Path, requirements: List[str]) -> None:
        """By the machine's uv, else by that of the service, else by pip. pip may know an index that uv does not, so it
        is asked, too, where the service's uv fails."""
        if self._succeeds([self._python, "-I", "-m", "uv", "--version"]):
            self._step([self._python, "-I", "-m", "uv", *_uv_words(python), *requirements])
            return
        uv, pip = self._shipped_uv(), self._pip(python)
        if uv is None:
            if pip is None:
                self._step([str(python), "-I", "-m", "ensurepip"])
                pip = [str(python), "-I", "-m", "pip", "install", "--no-input"]
            self._step([*pip, *requirements])
            return
        try:
            self._step([uv, *_uv_words(python), *requirements])
        except EnvironmentFailed:
            if pip is None:
                raise
            self._say("environment: uv has failed; trying it with this machine's pip")
            self._step([*pip, *requirements])

    def _pip(self, python: Path) -> Optional[List[str]]:
        """None where it is missing, or too old to install into another environment."""
        pip = [self._python, "-I", "-m", "pip", "--python", str(python)]
        return [*pip, "install", "--no-input"] if self._succeeds([*pip, "--version"]) else None

    def _shipped_uv(self) -> Optional[str]:
        """None where there is none, or where it cannot run: it is built for glibc, and disks may forbid programs."""
        uv = None if self._shipped is None else self._shipped.program(self._gone)
        return uv if uv is not None and self._succeeds([uv, "--version"]) else None

    def _succeeds(self, argv: List[str]) -> bool:
        return self._run(argv, installer_environ(os.environ), lambda _: None).exit_code == 0

    def _step(self, argv: List[str]) -> None:
        tail = b""

        def keep(data: bytes) -> None:
            nonlocal tail
            tail = (tail + data)[-4 * _ERROR_CHARS :]
            self._log(data)

        ended = self._run(argv, installer_environ(os.environ), keep)
        if ended.exit_code != 0:
            lines = tail.decode("utf-8", "replace").replace("\0", "").rstrip().split("\n")[-_ERROR_LINES:]
            raise EnvironmentFailed("the environment cannot be built:\n" + "\n".join(lines)[-_ERROR_CHARS:])

    def _facts(self, python: str, requirements: Sequence[str], *about: str) -> Dict[str, Any]:
        pieces: List[bytes] = []
        argv = [python, "-I", str(self._check), json.dumps(list(requirements)), *about]
        ended = self._run(argv, installer_environ(os.environ), pieces.append)
        try:
            facts: Dict[str, Any] = json.loads(b"".join(pieces).splitlines()[-1])
        except (ValueError, IndexError):
            text = b"".join(pieces).decode("utf-8", "replace")[-_ERROR_CHARS:]
            raise EnvironmentFailed(f"{python} cannot tell what it has ({ended}): {text}") from None
        return facts


def _uv_words(python: Path) -> List[str]:
    no_index = os.environ.get("PIP_NO_INDEX", "").lower() in ("1", "true", "yes", "on")  # uv has only a flag
    return ["pip", "install", *(["--no-index"] if no_index else []), "--python", str(python)]


def forget_unused(cache: Path, most: int) -> None:
    """Remove environments that were built ahead and that no run has used, but for the `most` newest."""
    marks = sorted(cache.glob(f"*/{_AHEAD}"), key=lambda mark: mark.stat().st_mtime_ns, reverse=True)
    for mark in marks[most:]:
        home, busy = mark.parent, threading.Event()
        busy.set()
        with contextlib.suppress(Aborted), _locked(cache / f"{home.name}.lock", busy):
            if mark.exists():
                (home / "complete").unlink(missing_ok=True)  # from here on it is what a build left
                shutil.rmtree(home, ignore_errors=True)


def installer_environ(environ: Mapping[str, str]) -> Dict[str, str]:
    """What an installer gets of the agent's environment: its own settings, the same for uv, and the way out."""
    kept = {name: value for name, value in environ.items() if name.startswith(_PASSED_ON)}
    for pip_name, uv_name in _UV_NAMES.items():
        if pip_name in kept:
            value = kept[pip_name]
            kept.setdefault(uv_name, ",".join(value.split()) if uv_name == "UV_FIND_LINKS" else value)
    kept.setdefault("UV_LINK_MODE", "copy")
    return kept


def _see_packages_below(venv: Path, site: List[str]) -> None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    folders = list((venv / "lib").glob("python*/site-packages")) or [venv / "lib" / version / "site-packages"]
    line = "import site; " + "; ".join(f"site.addsitedir({folder!r})" for folder in site) + "\n"
    (folders[0] / "_machine.pth").write_text(line, encoding="utf-8")


def _see_programs_below(python: Path, below: Path) -> None:
    """Programs of the machine's packages (torchrun, accelerate) run with this environment's Python: with the machine's
    own they would see none of the packages that were installed on top."""
    for program in below.iterdir():
        with contextlib.suppress(OSError):  # one that cannot be read is not to be run either
            _start_with(python, program)


def _start_with(python: Path, program: Path) -> None:
    target = python.parent / program.name
    if target.exists() or not program.is_file() or program.stat().st_size > _MOST_PROGRAM_BYTES:
        return
    first, _, rest = program.read_bytes().partition(b"\n")
    if first.startswith(b"#!") and b"python" in first:
        target.write_bytes(_STARTED_BY % os.fsencode(python) + rest)
        target.chmod(0o755)


@contextlib.contextmanager
def _locked(path: Path, gone: threading.Event) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released by the kernel when we die
                break
            except BlockingIOError:  # another run of this machine builds the same
                if gone.wait(0.2):
                    raise Aborted("no longer wanted") from None
        yield
