"""Whether this machine lets us run code as other users, found out by trying."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path
from typing import List, Optional

from workers.agent.config import Config

_PROBE = "import ssl, sys; [open(path).close() for path in sys.argv[1:]]; print('able')"


class Probe:
    """Begins when it is made, in a process of its own: a Python takes a while to start. Needs the agent's folders."""

    def __init__(self, config: Config, *, as_root: bool) -> None:
        self._files: List[Path] = []
        self._process: Optional["subprocess.Popen[bytes]"] = None
        self._answer: Optional[bool] = None
        if as_root:
            self._files = [config.cache / f".probe-{os.getpid()}", config.root / "lib" / ".probe"]
            self._begin(config.python, config.first_user_uid, config.root / "lib")

    def answer(self) -> bool:
        """Whether such a user can execute the Python of user code and read what a run needs. Waits until it is
        known; for one thread at a time."""
        if self._answer is None:
            told = b"" if self._process is None else self._process.communicate()[0]
            self._answer = told.strip() == b"able"
            for file in self._files:
                with contextlib.suppress(FileNotFoundError):
                    file.unlink()
        return self._answer

    def _begin(self, python: str, uid: int, folder: Path) -> None:
        for file in self._files:
            file.touch()
            file.chmod(0o644)
        with contextlib.suppress(OSError):  # then such a user cannot: it may not even be allowed to execute that Python
            self._process = subprocess.Popen(
                [python, "-I", "-c", _PROBE, *map(str, self._files)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"},
                cwd=folder,
                user=uid,
                group=uid,
                extra_groups=[],
                start_new_session=True,
            )
