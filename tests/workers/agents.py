"""Agents as real subprocesses of the zipapp, and the runs that a test asks them to execute."""

from __future__ import annotations

import gzip
import io
import itertools
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

from allpass.wire.agent import DesiredRun, ResumeFrom, RunSpec
from tests.workers.plane import PATIENCE_S, TOKEN, Plane

_numbers = itertools.count(1)
NO_PIP = "0" * 64


class AgentProcess:
    """One agent as a subprocess. `root` is its work directory."""

    def __init__(self, zipapp: Path, plane: Plane, root: Path, environ: dict[str, str]) -> None:
        self.root = root
        self.process = subprocess.Popen(
            [sys.executable, str(zipapp)],
            env={
                "PATH": os.environ["PATH"],
                "ALLPASS_URL": plane.url,
                "ALLPASS_NODE_TOKEN": TOKEN,
                "ALLPASS_AGENT_ROOT": str(root),
                "SECRET_OF_THE_HOST": "not for user code",
                **environ,
            },
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        return self.process.wait(timeout_s)


def tar_gz(files: dict[str, str | bytes]) -> bytes:
    """The same bytes for the same files, whenever they are packed."""
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def desired(
    plane: Plane,
    script: str | bytes,
    *,
    job_id: str = "job_1",
    epoch: int = 1,
    resume: ResumeFrom | None = None,
    grace_ms: int = 10_000,
    want: Any = "run",
    **spec: Any,
) -> DesiredRun:
    """A run of `script` (text: train.py; bytes: the whole bundle)."""
    bundle = script if isinstance(script, bytes) else tar_gz({"train.py": script})
    values: dict[str, Any] = {
        "app_name": "app",
        "job_name": "job",
        "project_id": "prj_1",
        "bundle_sha256": plane.put(bundle),
        "bundle_size_bytes": len(bundle),
        "entrypoint": "train.py",
        "pip": [],
        "environment_sha256": NO_PIP,
        "base_image": None,
        "parameters": {},
        "template": {},
        "total_steps": None,
        "checkpoint_interval_s": 300,
        "gpu_indices": [0],
        "resume": resume,
        **spec,
    }
    return DesiredRun(
        run_id=f"run_{next(_numbers)}",
        job_id=job_id,
        epoch=epoch,
        want=want,
        grace_ms=grace_ms,
        spec=RunSpec(**values),
    )
