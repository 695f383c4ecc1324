"""Two jobs of the recipe on a machine: a real agent, the real trainer, and stops at any moment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allpass.recipe.packing import SCRIPT, SCRIPT_NAME
from allpass.wire.agent import DesiredRun, ResumeFrom
from tests.training.scripts import files_of
from tests.training.test_pairs import COMMON, SUMS, TURNED
from tests.training.togethers import JOBS, TogetherCourse
from tests.workers.agents import AgentProcess, desired, tar_gz
from tests.workers.plane import Plane
from tests.workers.test_companions import want

Start = Callable[..., AgentProcess]
pytestmark = [
    pytest.mark.training,
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers.modeling_utils"),  # peft asks by an older name
]


def bundle(folder: Path) -> bytes:
    return tar_gz({SCRIPT_NAME: SCRIPT, **{path.name: path.read_bytes() for path in sorted(folder.iterdir())}})


def placed(plane: Plane, course: TogetherCourse, epoch: int, resume: dict[str, ResumeFrom]) -> list[DesiredRun]:
    runs = [
        desired(
            plane, bundle(data), job_id=job, epoch=epoch, entrypoint=SCRIPT_NAME, parameters=parameters,
            resume=resume.get(job),
        )
        for job, data, parameters in zip(JOBS, course.data, course.parameters, strict=True)
    ]  # fmt: skip
    plane.epochs.update(dict.fromkeys(JOBS, epoch))
    ids = [run.run_id for run in runs]
    runs = [runs[0].model_copy(update={"companion": ids[1]}), runs[1].model_copy(update={"companion_of": ids[0]})]
    want(plane, runs)
    return runs


def test_a_pair_that_moves_ends_with_the_same_bits(plane: Plane, start_agent: Start, tmp_path: Path) -> None:
    """Both are asked to leave in the middle of it, and go on on another machine from what they have saved."""
    from tests.training import tiny

    common: dict[str, Any] = {"model": tiny.llama(tmp_path / "llama"), **COMMON, "evaluate_every": 40}
    data = (
        tiny.write_rows(tmp_path / "sums", "prompt", SUMS[:14], SUMS[14:]),
        tiny.write_rows(tmp_path / "turned", "prompt", TURNED[:22], TURNED[22:]),
    )
    course = TogetherCourse(tmp_path / "whole", data, ({**common, "steps": 90}, {**common, "steps": 80, "seed": 4}))
    course.run()
    plane.report_every_ms = 20
    start_agent()
    runs = placed(plane, course, 1, {})
    plane.wait(lambda: any(report.step > 0 for report in plane.reports), "the first steps", 120.0)
    want(plane, [run.model_copy(update={"want": "checkpoint"}) for run in runs])
    resume = {}
    for job, run in zip(JOBS, runs, strict=True):
        exit_ = plane.wait_exit(run.run_id, 60.0)
        assert exit_.exit_code == 75, plane.log(run.run_id)
        if plane.committed(run.run_id):
            resume[job] = plane.resume_from(plane.committed(run.run_id)[-1])
        plane.unlist(run.run_id)
    assert resume
    again = placed(plane, course, 2, resume)
    for job, run in zip(JOBS, again, strict=True):
        assert plane.wait_exit(run.run_id, 120.0).exit_code == 0, plane.log(run.run_id)
        stored = {path: plane.objects[sha256] for path, sha256 in plane.artifacts[run.run_id].items()}
        assert stored == files_of(course.output(job))
        assert plane.committed(run.run_id)[-1].step == course.parameters[JOBS.index(job)]["steps"]
