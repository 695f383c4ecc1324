"""Benchmarks are run by hand, and break unseen: each can be loaded, at least."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_LOAD = """
import importlib, pkgutil, sys
import benchmarks
for one in pkgutil.iter_modules(benchmarks.__path__):
    try:
        importlib.import_module(f"benchmarks.{one.name}")
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in sys.argv[1:]:
            print(f"benchmarks.{one.name}: {error}")
"""
NOT_OURS = ("datasets", "trl")  # of other projects, with which ours is compared


def test_every_benchmark_can_be_loaded() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LOAD, *NOT_OURS], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == ""
