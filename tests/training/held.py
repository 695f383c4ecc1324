"""Runs the script that HELD_SCRIPT names. Once it has reported the step HELD_AT, it goes on when it was asked to stop.

Whoever stops it there need not be faster than the training: however late the signal is sent, that step was the last
before it came.
"""

from __future__ import annotations

import os
import runpy
import time
from typing import Any

from allpass.training.session import Session

HELD_AT = int(os.environ["HELD_AT"])
report = Session.report


def report_and_wait(session: Session, step: int, **metrics: Any) -> None:
    report(session, step, **metrics)
    while step == HELD_AT and not session.stop_requested():
        time.sleep(0.001)


Session.report = report_and_wait  # type: ignore[method-assign]
runpy.run_path(os.environ["HELD_SCRIPT"], run_name="__main__")
