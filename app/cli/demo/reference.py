"""The uninterrupted run that the moved job is compared with: the same script, seed and environment, no Allpass."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

from app.cli.demo.jobs import EXAMPLES, training_parameters
from app.stack.binding import die_with_parent


class ReferenceRun:
    """Start it once there is a core to spare; `wait()` gives its losses."""

    def __init__(self, directory: Path, steps: int) -> None:
        self._directory = directory
        self._steps = steps
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def start(self) -> None:
        """Begin, unless it has begun already."""
        if self._process is not None:
            return
        for folder in ("checkpoints", "output"):
            (self._directory / folder).mkdir(parents=True)
        (self._directory / "parameters.json").write_text(json.dumps(training_parameters(self._steps)))
        (self._directory / "template.json").write_text("{}")
        variables = {
            "ALLPASS_PARAMETERS_FILE": "parameters.json",
            "ALLPASS_TEMPLATE_FILE": "template.json",
            "ALLPASS_CHECKPOINT_DIR": "checkpoints",
            "ALLPASS_OUTPUT_DIR": "output",
            "ALLPASS_METRICS_FILE": "metrics.jsonl",
        }
        given = {name: value for name, value in os.environ.items() if not name.startswith("ALLPASS_")}
        paths = {name: str(self._directory / value) for name, value in variables.items()}
        with (self._directory / "log.txt").open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 (our own example)
                [sys.executable, str(EXAMPLES / "train.py")],
                env=given | paths,
                preexec_fn=die_with_parent(signal.SIGKILL),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def step(self) -> int:
        """How far it is."""
        return len(self.losses())

    def done(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def failure(self) -> str | None:
        """The end of its log when it failed, else None."""
        if self._process is None or self._process.poll() in (None, 0):
            return None
        return (self._directory / "log.txt").read_text(errors="replace")[-2000:]

    def losses(self) -> dict[int, float]:
        """Loss by step so far; a line that is still being written is left for later."""
        path = self._directory / "metrics.jsonl"
        if not path.exists():
            return {}
        complete = path.read_text().rpartition("\n")[0].splitlines()
        points = (json.loads(line) for line in complete)
        return {point["step"]: point["loss"] for point in points if "loss" in point}

    def adapter_sha256(self) -> str | None:
        """Hash of the adapter it wrote, or None without one."""
        return adapter_sha256(self._directory / "output")


def adapter_sha256(output: Path) -> str | None:
    """Hash of the one `adapter_model.safetensors` under a folder; None when there is none."""
    found = sorted(output.rglob("adapter_model.safetensors"))
    return hashlib.sha256(found[0].read_bytes()).hexdigest() if len(found) == 1 else None
