"""Runs the built-in recipe in this process, whole or in parts that stop at chosen steps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from allpass import training
from allpass.training.session import EXIT_STOPPED, Session


class StopsAt(Session):
    """A session that is asked to stop as a step is reported: a SIGTERM during that step, before its evaluation."""

    stop_at = 0

    def report(self, step: int, **metrics: Any) -> None:
        super().report(step, **metrics)
        if step == self.stop_at:
            self.request_stop()


@dataclass
class Course:
    """One job in `folder`, on the rows in `data`, in as many parts as it is stopped; from what another job has
    `learned`: a checkpoint of it. `environ`: more of what it finds in its environment."""

    folder: Path
    data: Path
    parameters: dict[str, Any]
    learned: Path | None = None
    environ: dict[str, str] = field(default_factory=dict)
    session: type[StopsAt] = StopsAt
    parts: list[Path] = field(default_factory=list)

    def run(self, stops: Sequence[int] = (), *, by_hand: bool = True) -> Self:
        """Each part resumes from the checkpoint of the one before, of which nothing else reaches it.

        `by_hand=False`: as the job's script does, which leaves the process with what is to be mended."""
        import torch  # not when tests are collected: it takes seconds

        from workers.trainer import main

        for stop_at in (*stops, 0):
            resume_from = (
                self.parts[-1] / "checkpoints" / f"step-{stops[len(self.parts) - 1]:08d}" if self.parts else None
            )
            place = self.folder / f"part{len(self.parts)}"
            place.mkdir(parents=True)
            self.parts.append(place)
            training._session = session = self.session(self._environment(place, resume_from))
            session.stop_at = stop_at
            try:
                (main.train if by_hand else main.main)(self.data)
            except SystemExit as leaving:
                if leaving.code != EXIT_STOPPED:
                    raise
                assert stop_at, "nobody asked it to stop"
            else:
                assert not stop_at, "it was asked to stop"
            finally:
                training._session = None
                torch.use_deterministic_algorithms(False)
        return self

    @property
    def output(self) -> Path:
        return self.parts[-1] / "output"

    @property
    def last_checkpoint(self) -> Path:
        return max((self.parts[-1] / "checkpoints").glob("step-*"))

    def points(self) -> dict[int, dict[str, float]]:
        """What was reported last of each step, over all parts."""
        found: dict[int, dict[str, float]] = {}
        for line in self.lines():
            if "loss" in line and "checkpoint" not in line:
                found[line["step"]] = {name: value for name, value in line.items() if name != "step"}
        return found

    def lines(self) -> list[dict[str, Any]]:
        texts = [(part / "metrics.jsonl").read_text() for part in self.parts]
        return [json.loads(line) for text in texts for line in text.splitlines()]

    def summary(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((self.output / "training.json").read_text())
        return loaded

    def _environment(self, place: Path, resume_from: Path | None) -> dict[str, str]:
        (place / "parameters.json").write_text(json.dumps(self.parameters))
        variables = {
            "ALLPASS_JOB_ID": "job_test",
            "ALLPASS_PARAMETERS_FILE": str(place / "parameters.json"),
            "ALLPASS_CHECKPOINT_DIR": str(place / "checkpoints"),
            "ALLPASS_OUTPUT_DIR": str(place / "output"),
            "ALLPASS_METRICS_FILE": str(place / "metrics.jsonl"),
            "ALLPASS_CHECKPOINT_INTERVAL_S": "3600",
            **self.environ,
        }
        if resume_from is None and self.learned is not None:
            begun = {"ALLPASS_RESUME_DIR": str(self.learned), "ALLPASS_RESUME_STEP": "0", "ALLPASS_RESUME_LEARNED": "1"}
            return {**variables, **begun}
        return variables if resume_from is None else {**variables, "ALLPASS_RESUME_DIR": str(resume_from)}
