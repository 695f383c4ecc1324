"""What a move takes, as `benchmarks.migration` has measured it."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.errors import InvalidInput


def measured_move_s(path: Path) -> float:
    """The median pause of a move, made before the old place was broken, from the benchmark's last line of output.

    Raises InvalidInput for a file that is none of it.
    """
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for line in reversed(lines):
        try:
            told = json.loads(line)
        except ValueError:
            continue
        if isinstance(told, Mapping) and told.get("name") == "migration":
            pauses = _within(told, "detail", "pause_s", "make_before_break")
            if isinstance(pauses, list) and pauses and all(isinstance(one, int | float) and one > 0 for one in pauses):
                return float(statistics.median(pauses))
    raise InvalidInput(
        f"--move-seconds: {str(path)!r} has no line of benchmarks.migration; "
        "write one with: python -m benchmarks.migration > migration.txt",
        param="move-seconds",
    )


def _within(told: Any, *names: str) -> Any:
    for name in names:
        told = told.get(name) if isinstance(told, Mapping) else None
    return told
