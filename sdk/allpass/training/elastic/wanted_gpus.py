"""Which GPUs of its machine a training is to have, and that they may change while it runs.

Whoever gives a job its GPUs writes their names, as CUDA_VISIBLE_DEVICES has them, as a JSON list into a file that an
environment variable names, replaced as a whole. The first of them is the first process's, which stays where it is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from allpass.training.elastic.rank_process import write

FILE = "ALLPASS_GPUS_FILE"
MOST = 8


class WantedGpus:
    """The newest that was said and makes sense."""

    def __init__(self, names: Sequence[str], file: Path | None) -> None:
        self.names = tuple(names)
        self.refused: tuple[str, ...] = ()  # of the newest that was said: no process can begin on them
        self._file = file
        self._seen: bytes | None = None

    @classmethod
    def of(cls, names: Sequence[str], *, may_change: bool) -> WantedGpus:
        """As the environment says."""
        told = os.environ.get(FILE, "")
        return cls(names, Path(told) if told and may_change else None)

    @property
    def may_change(self) -> bool:
        return self._file is not None

    def look(self) -> None:
        """What makes no sense is told once, and changes nothing."""
        if self._file is None:
            return
        try:
            data = self._file.read_bytes()
        except OSError:  # nobody has said anything yet
            return
        if data == self._seen:
            return
        self._seen = data
        try:
            self.names, self.refused = self._read(data), ()
        except (ValueError, RecursionError) as error:
            write(f"training: its GPUs stay as they are: {error}")

    def give_up(self, name: str) -> None:
        """No process can begin on it."""
        self.names = tuple(one for one in self.names if one != name)
        self.refused = (*self.refused, name)

    def _read(self, data: bytes) -> tuple[str, ...]:
        """Raises ValueError."""
        told: Any = json.loads(data)
        if not isinstance(told, list) or not all(isinstance(one, str) and one for one in told):
            raise ValueError(f"expected a list of names of GPUs, not {str(told)[:200]}")
        if len(set(told)) != len(told) or not 1 <= len(told) <= MOST:
            raise ValueError(f"expected 1 to {MOST} different names of GPUs, not {len(told)}: {str(told)[:200]}")
        if told[0] != self.names[0]:
            raise ValueError(f"the first one is {self.names[0]}, where this process is; not {told[0]}")
        return tuple(told)
