"""Runs of trackers (W&B, MLflow), which go on where their job does: which one of a script's it is, and the link to it.

A run is the same one after a move if the same script begins it under the same names and settings. What a script begins
twice under the same ones could be taken for one another, should it leave out next time what it has done: the first goes
on, the others begin anew, as they would have.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any, Dict, Mapping, Optional
from urllib.parse import urlsplit, urlunsplit

from allpass.hooks.trainer import say
from allpass.training.session import Session


def key_of(tracker: str, names: "Mapping[str, Any]") -> "Optional[str]":
    """The name that a run has on every machine of its job; None for one that is none of ours to continue."""
    if multiprocessing.parent_process() is not None:
        return None
    told = json.dumps([Path(sys.argv[0]).name, os.environ.get("RANK", "0"), names], sort_keys=True, default=str)
    key = f"{os.environ['ALLPASS_JOB_ID']}-{hashlib.sha256(told.encode()).hexdigest()[:8]}"
    with contextlib.suppress(FileExistsError):
        _claim(f".{tracker}-{key}")
        return key
    say(f"the script begins several {tracker} runs of one name: the first goes on after a move, the others begin again")
    return None


def settings_of(config: Any) -> "Dict[str, Any]":
    """Of a run's settings those that are the same on every machine: no paths."""
    if not isinstance(config, Mapping):
        return {}
    return {
        str(name): value
        for name, value in config.items()
        if value is None or isinstance(value, (bool, int, float)) or (isinstance(value, str) and os.sep not in value)
    }


def tell_link(tracker: str, url: "Optional[str]") -> None:
    """Shown with the job. What could be a secret in it is left out."""
    if url:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        Session().link(tracker, urlunsplit((parts.scheme, host, parts.path, "", parts.fragment)))


def _claim(name: str) -> None:
    """Raises FileExistsError where any process of this run of the job has it. Each run has a folder of its own."""
    folder = Path(os.environ["ALLPASS_METRICS_FILE"]).parent
    os.close(os.open(folder / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
