"""Runs two jobs as one as an agent would have it: two environments, and files for what each is told and tells."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from allpass.training.session import EXIT_STOPPED, Session
from tests.training.pairs import exactly

JOBS = ("job_lead", "job_companion")


class Watching(Session):
    """The process's session: after so many steps of the run it hears of a stop, and a side after its own steps is told
    to leave."""

    part: Path
    stop_at = 0
    leave_at: Mapping[str, int] = {}

    def stop_requested(self) -> bool:
        steps = {job: len(taken(self.part / job)) for job in JOBS}
        for job, step in self.leave_at.items():
            if steps[job] >= step:
                (self.part / job / "leave").touch()
        return 0 < self.stop_at <= sum(steps.values())


@dataclass
class TogetherCourse:
    """The lead and its companion in `folder`, on `data` of each with parameters of each, in as many parts as they are
    stopped. `leave_at`: the own step at which a job is told to leave alone."""

    folder: Path
    data: tuple[Path, Path]
    parameters: tuple[dict[str, Any], dict[str, Any]]
    leave_at: Mapping[str, int] = field(default_factory=dict)
    parts: list[Path] = field(default_factory=list)

    def run(self, stops: Sequence[int] = (), begin: Mapping[str, Path] | None = None) -> TogetherCourse:
        """`stops` counts steps of each part. `begin`: checkpoints that jobs have at first."""
        for stop_at in (*stops, 0):
            resume = {job: found for job in JOBS if (found := self.newest(job)) is not None} or dict(begin or {})
            self._train(stop_at, resume)
        return self

    def until(self, stop_at: int) -> TogetherCourse:
        """The first part alone."""
        self._train(stop_at, {})
        return self

    def newest(self, job: str) -> Path | None:
        """The checkpoint that the server would begin with: of the last part that has one, the highest step."""
        for part in reversed(self.parts):
            found = sorted((part / job / "checkpoints").glob("step-*"))
            if found:
                return found[-1]
        return None

    def points(self, job: str) -> dict[int, dict[str, float]]:
        found: dict[int, dict[str, float]] = {}
        for part in self.parts:
            found.update({line.pop("step"): line for line in lines(part / job) if "loss" in line})
        return found

    def output(self, job: str) -> Path:
        return self.parts[-1] / job / "output"

    def end(self, job: str) -> dict[str, Any] | None:
        file = self.parts[-1] / job / "end.json"
        return json.loads(file.read_text()) if file.exists() else None

    def log(self, job: str) -> str:
        file = self.parts[-1] / job / "log"
        return file.read_text() if file.exists() else ""

    def _train(self, stop_at: int, resume: Mapping[str, Path]) -> None:
        from workers.trainer import together

        part = self.folder / f"part{len(self.parts)}"
        self.parts.append(part)
        lead, companion = (environment(part / job, job, resume.get(job)) for job in JOBS)
        for job, parameters in zip(JOBS, self.parameters, strict=True):
            (part / job / "parameters.json").write_text(json.dumps(parameters))
        order = {"environ": {**companion, "ALLPASS_LOG_FILE": str(part / JOBS[1] / "log")}, "code": str(self.data[1])}
        (part / "companion.json").write_text(json.dumps(order))
        process = Watching(lead)
        process.part, process.stop_at, process.leave_at = part, stop_at, self.leave_at
        with exactly():
            try:
                together.train(self.data[0], process, {**lead, together.COMPANION_FILE: str(part / "companion.json")})
            except SystemExit as leaving:
                assert leaving.code == EXIT_STOPPED
                assert stop_at or self.leave_at, "nobody asked it to stop"
            else:
                assert not stop_at, "it was asked to stop"


def environment(place: Path, job: str, resume: Path | None) -> dict[str, str]:
    place.mkdir(parents=True, exist_ok=True)
    found = {
        "ALLPASS_JOB_ID": job,
        "ALLPASS_PARAMETERS_FILE": str(place / "parameters.json"),
        "ALLPASS_CHECKPOINT_DIR": str(place / "checkpoints"),
        "ALLPASS_OUTPUT_DIR": str(place / "output"),
        "ALLPASS_METRICS_FILE": str(place / "metrics.jsonl"),
        "ALLPASS_CHECKPOINT_INTERVAL_S": "3600",
        "ALLPASS_LEAVE_FILE": str(place / "leave"),
        "ALLPASS_END_FILE": str(place / "end.json"),
    }
    return found if resume is None else {**found, "ALLPASS_RESUME_DIR": str(resume)}


def lines(place: Path) -> list[dict[str, Any]]:
    """What a job has reported of its steps."""
    file = place / "metrics.jsonl"
    found = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
    return [line for line in found if "checkpoint" not in line and "training" not in line]


def taken(place: Path) -> list[dict[str, Any]]:
    return [line for line in lines(place) if "eval_loss" not in line]
