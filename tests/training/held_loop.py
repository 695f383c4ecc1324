"""examples/plain_loop.py, which knows nothing of us. After the step `hold_at` of its parameters it awaits SIGTERM."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import plain_loop

HOLD_AT = plain_loop.read_json(os.environ["ALLPASS_PARAMETERS_FILE"]).get("hold_at")
append = plain_loop.append


def append_and_wait(file: Any, line: dict[str, Any]) -> None:
    if line["step"] != HOLD_AT or "loss" not in line:
        append(file, line)
        return
    heard: list[int] = []
    theirs = signal.getsignal(signal.SIGTERM)
    assert callable(theirs)
    signal.signal(signal.SIGTERM, lambda number, frame: (heard.append(number), theirs(number, frame)))
    append(file, line)  # from here on it may be sent
    while not heard:
        time.sleep(0.001)


plain_loop.append = append_and_wait
sys.exit(plain_loop.main())
