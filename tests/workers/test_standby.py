"""The two machines of a move, as agents: one stands by, the other is asked for its final checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from allpass.wire.agent import DesiredRun
from tests.workers.agents import AgentProcess, desired
from tests.workers.plane import Plane, pieces_of
from tests.workers.test_stories import TRAINING, result_of

Start = Callable[..., AgentProcess]
STEPS = 2_000  # a hundred seconds of the source: it does not end before it is asked to


def phases(plane: Plane, run_id: str) -> list[str]:
    """The phases that were told, without repetitions."""
    told = [report.phase for report in plane.reports if report.run_id == run_id]
    return [phase for index, phase in enumerate(told) if index == 0 or told[index - 1] != phase]


def prepared(plane: Plane, run: DesiredRun) -> None:
    plane.wait(lambda: phases(plane, run.run_id)[-1:] == ["prepared"], f"{run.run_id} prepared")


def promote(plane: Plane, run: DesiredRun, **spec: Any) -> None:
    """The job is this run's now."""
    plane.epochs[run.job_id] = run.epoch
    plane.want(run.model_copy(update={"want": "run", "spec": run.spec.model_copy(update=spec)}))


def moving(plane: Plane) -> tuple[DesiredRun, DesiredRun]:
    """A source that has saved once, and its target, prepared."""
    source = desired(plane, TRAINING, parameters={"plan": [STEPS, 0.05, 3]})
    plane.want(source)
    stored = plane.wait(lambda: plane.committed(source.run_id), "a periodic checkpoint")[0]
    plan = {"plan": [STEPS, 0, 0]}
    resume = plane.resume_from(stored)
    target = desired(plane, TRAINING, epoch=3, want="standby", parameters=plan, resume=resume)
    plane.want(target)
    prepared(plane, target)
    return source, target


def test_a_job_moves_and_only_what_changed_travels(plane: Plane, start_agent: Start) -> None:
    """Prepared from a periodic checkpoint, promoted with the final one: the result is that of an undisturbed run."""
    alone = desired(plane, TRAINING, job_id="job_alone", parameters={"plan": [STEPS, 0, 0]})
    plane.want(alone)
    start_agent()
    source, target = moving(plane)
    plane.ask(source.run_id, "checkpoint")
    assert plane.wait_exit(source.run_id).saved_after_stop
    final = plane.committed(source.run_id)[-1]
    assert [one.final for one in plane.committed(source.run_id)][-2:] == [False, True]
    assert phases(plane, target.run_id)[-1] == "prepared"
    assert "running" not in phases(plane, target.run_id), "it runs before it may"

    resume = plane.resume_from(final).model_copy(update={"checkpoint_id": "ckp_final"})
    promote(plane, target, resume=resume)
    assert plane.wait_exit(target.run_id).exit_code == 0
    plane.wait_log(target.run_id, f"resumed at {final.step}\n")
    assert result_of(plane, target.run_id) == result_of(plane, alone.run_id)
    (big,) = [file for file in final.files if file.path == "big"]
    assert {plane.read.count(piece) for piece in pieces_of([big])} == {1}, "what was there already was fetched again"


def test_a_target_that_was_prepared_with_the_final_checkpoint_fetches_nothing_more(
    plane: Plane, start_agent: Start
) -> None:
    """The source died: its target goes on from what it has, from a folder that holds that and no other checkpoint."""
    start_agent()
    source, target = moving(plane)
    plane.ask(source.run_id, "kill")
    plane.wait_exit(source.run_id)
    read = len(plane.read)
    promote(plane, target)
    assert plane.wait_exit(target.run_id).exit_code == 0
    assert len(plane.read) == read
    assert target.spec.resume is not None
    plane.wait_log(target.run_id, f"resumed at {target.spec.resume.step}\n")


def test_a_run_that_stands_by_runs_no_code_and_leaves_when_it_is_called_off(plane: Plane, start_agent: Start) -> None:
    """Not listed any more, it is removed with all that it fetched; the source never notices."""
    agent = start_agent()
    source, target = moving(plane)
    assert not (agent.root / "spool" / target.run_id / "started").exists()
    plane.unlist(target.run_id)
    plane.wait(lambda: not (agent.root / "runs" / target.run_id).exists(), "removal of the target's folder")
    plane.wait_step(source.run_id, plane.told(source.run_id).step + 1)


def test_a_machine_that_is_taken_away_gives_up_what_stands_by(plane: Plane, start_agent: Start) -> None:
    """SIGTERM to the agent: the source saves and leaves, the target ends at once, and both are told."""
    agent = start_agent()
    source, target = moving(plane)
    agent.terminate()
    assert plane.wait_exit(target.run_id).signal == 15
    assert plane.wait_exit(source.run_id).saved_after_stop
    assert agent.wait() == 0


def test_a_target_whose_checkpoint_cannot_be_fetched_ahead_waits_all_the_same(plane: Plane, start_agent: Start) -> None:
    """What is damaged or gone is not needed yet: it is told in the log, and the final checkpoint is fetched whole."""
    start_agent()
    source = desired(plane, TRAINING, parameters={"plan": [STEPS, 0.05, 3]})
    plane.want(source)
    stored = plane.wait(lambda: plane.committed(source.run_id), "a periodic checkpoint")[0]
    broken = [file.model_copy(update={"sha256": "0" * 64, "pieces": None}) for file in stored.files]
    resume = plane.resume_from(stored).model_copy(update={"files": broken})
    target = desired(plane, TRAINING, epoch=3, want="standby", parameters={"plan": [STEPS, 0, 0]}, resume=resume)
    plane.want(target)
    prepared(plane, target)
    plane.ask(source.run_id, "checkpoint")
    plane.wait_exit(source.run_id)
    final = plane.committed(source.run_id)[-1]
    promote(plane, target, resume=plane.resume_from(final).model_copy(update={"checkpoint_id": "ckp_final"}))
    assert plane.wait_exit(target.run_id).exit_code == 0
    log = plane.wait_log(target.run_id, f"resumed at {final.step}\n")
    assert "was not fetched ahead" in log
