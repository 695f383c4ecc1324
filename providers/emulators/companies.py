"""The companies that are played, by name, and a cluster. Loads nothing: the command line starts with it."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path


class Company(StrEnum):
    MODAL = "modal"
    VAST = "vast"
    LAMBDA = "lambda"
    RUNPOD = "runpod"
    KUBERNETES = "kubernetes"


def kubeconfig_in(data_dir: Path) -> Path:
    """The way into the emulated cluster, which it writes when it serves."""
    return data_dir / "kubeconfig"
