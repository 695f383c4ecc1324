"""Sees GPUs that worked when the machine joined and do so no longer: fallen off the bus (Xid 79), or a driver that
hangs.

One bad answer is none: another one has to agree, and an answer that only does not come has to fail to come several
times, since a machine may be very busy. What is concluded is never taken back: a card that was lost is not trusted.
"""

from __future__ import annotations

import threading
from typing import Callable, Dict, Optional, Sequence

from workers.agent.config import Config
from workers.agent.gpus import ANSWERS, FAILS, LIMIT_S, Gpus, host_index, look

_AGAIN_S = 1.0
_SILENT_TIMES = 3
_AT_AN_END_S = 10.0


class GpuWatch:
    """`at_first`: what they were when the agent started. `on_lost` is called once, with the reason in words."""

    def __init__(self, config: Config, on_lost: Callable[[str], None]) -> None:
        self.at_first = look(config)
        self._config = config
        self._on_lost = on_lost
        self._every_s = config.gpu_look_s
        self._lock = threading.Lock()  # one look at a time
        self._silent = 0
        self._lost: Optional[str] = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="gpus", daemon=True)

    def start(self) -> None:
        """Look again and again, where there is something to compare with."""
        if self.at_first.state == ANSWERS and self._every_s > 0:
            self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    @property
    def lost(self) -> Optional[str]:
        """Why this machine's GPUs cannot be used any more."""
        return self._lost

    def variables(self, indices: Sequence[int]) -> Dict[str, str]:
        """What a run on these GPUs is told of them; nothing where they are not real."""
        visible = ",".join(str(host_index(self._config, index)) for index in indices)
        names = [] if self._config.nvidia_smi else self.at_first.names(indices)
        return {"CUDA_VISIBLE_DEVICES": visible, **({"ALLPASS_GPUS": ", ".join(names)} if names else {})}

    def look_again(self) -> Optional[str]:
        """Look now, since something has ended that used them. Why they cannot be used any more, if so."""
        if self.at_first.state == ANSWERS:
            with self._lock:
                self._look(_AT_AN_END_S)
        return self._lost

    def _work(self) -> None:
        while self._lost is None and not self._stopped.wait(self._every_s):
            with self._lock:
                self._look()

    def _look(self, limit_s: float = LIMIT_S) -> None:
        """With the lock."""
        if self._lost is not None:
            return
        found = look(self._config, limit_s)
        if found.timed_out:
            self._silent += 1
            if self._silent >= _SILENT_TIMES:
                self._lose(f"nvidia-smi has not answered {self._silent} times in a row")
            return
        self._silent = 0
        if self._is_less(found) and not self._stopped.wait(_AGAIN_S):
            found = look(self._config, limit_s)
            if self._is_less(found) and not found.timed_out:
                self._lose(self._in_words(found))

    def _is_less(self, found: Gpus) -> bool:
        return found.state == FAILS or (found.state == ANSWERS and found.number < self.at_first.number)

    def _in_words(self, found: Gpus) -> str:
        if found.state == FAILS:
            return f"nvidia-smi worked when the machine joined, and now it says: {found.why}"
        return f"{found.number} of {self.at_first.number} GPUs are left"

    def _lose(self, why: str) -> None:
        self._lost = why
        self._on_lost(why)
