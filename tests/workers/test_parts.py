"""Parts of checkpoints, as agents see them: what each machine of a job has written, and who waits for whom."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.workers.agents import AgentProcess, desired
from tests.workers.plane import Plane
from workers.agent import parts_awaited
from workers.agent.errors import Aborted, Unsafe
from workers.agent.metric_lines import parse, skimmed
from workers.agent.parts_awaited import await_parts
from workers.agent.pieces import PIECE_BYTES, _plan

Start = Callable[..., AgentProcess]

SAVES = """
import json, os, pathlib, signal, time
folder = pathlib.Path(os.environ["ALLPASS_CHECKPOINT_DIR"])
rank = os.environ["ALLPASS_NODE_RANK"]
def save(step, **files):
    place = folder / f"step-{step}"
    place.mkdir(parents=True)
    for name, content in files.items():
        (place / name).write_text(content)
    with open(os.environ["ALLPASS_METRICS_FILE"], "a") as lines:
        lines.write(json.dumps({"step": step, "checkpoint_part": place.name}) + "\\n")
"""
TWICE = SAVES + "save(10, **{f'old-{rank}': 'x'})\nsave(20, **{f'state-{rank}': 'y' * 10})\n"


def member(plane: Plane, rank: int, script: str, **more: Any) -> Any:
    """A run of one of two machines; each by itself, so that one test may have one agent for both."""
    gang = {"nodes": 2, "rank": rank, "meeting": None, "parts": True, **more}
    wish = desired(plane, script, job_id=f"job_{rank}", gang=gang, gpu_indices=[rank])
    plane.want(wish)
    return wish


def names(plane: Plane, run_id: str) -> dict[int, list[str]]:
    return {one.step: [file.path for file in one.files] for one in plane.committed(run_id)}


def exit_of(plane: Plane, run_id: str) -> Any:
    report = plane.report(run_id)
    return None if report is None else report.exit


def test_the_first_machine_ends_when_the_parts_of_all_are_stored(plane: Plane, start_agent: Start) -> None:
    """Each sends what it has written, and the one that leads tells its end only when it is a checkpoint."""
    lead = member(plane, 0, TWICE)
    start_agent()
    plane.wait(lambda: f"{lead.run_id} part 20" in plane.story, "the first machine's part")
    assert exit_of(plane, lead.run_id) is None
    other = member(plane, 1, TWICE)
    plane.wait(lambda: exit_of(plane, lead.run_id) is not None, "its end")
    plane.wait(lambda: exit_of(plane, other.run_id) is not None, "the other's end")
    assert names(plane, lead.run_id)[20] == ["state-0"]
    assert names(plane, other.run_id)[20] == ["state-1"]
    assert plane.story.index(f"{other.run_id} part 20") < plane.story.index(f"{lead.run_id} exited")
    assert plane.story.index(f"{other.run_id} part 20") < plane.story.index(f"{other.run_id} exited")
    assert "its part of step 20 (step-20) is stored (1 files, 10 bytes)" in plane.log(other.run_id)
    assert plane.refusals == []


def test_a_further_machine_sends_the_step_that_the_first_one_is_at(plane: Plane, start_agent: Start) -> None:
    """Before its newest, though that was there first."""
    waits = TWICE + "while not (folder / 'go').exists(): time.sleep(0.02)\n"
    wish = member(plane, 1, waits, part_step=10)
    start_agent()
    plane.wait(lambda: len(plane.committed(wish.run_id)) == 2, "both")
    steps = [line for line in plane.story if " part " in line]
    assert steps == [f"{wish.run_id} part 10", f"{wish.run_id} part 20"]


def test_asked_to_leave_it_sends_its_last_part_before_it_tells_its_end(plane: Plane, start_agent: Start) -> None:
    script = SAVES + (
        "def leave(*_):\n    save(30, last=rank)\n    os._exit(75)\n"
        "signal.signal(signal.SIGTERM, leave)\nsave(10, early=rank)\nwhile True: time.sleep(0.02)\n"
    )
    wish = member(plane, 1, script)
    start_agent()
    plane.wait(lambda: 10 in names(plane, wish.run_id), "its first part")
    plane.want(wish.model_copy(update={"want": "checkpoint"}))
    plane.wait(lambda: exit_of(plane, wish.run_id) is not None, "its end")
    assert exit_of(plane, wish.run_id).exit_code == 75
    assert names(plane, wish.run_id)[30] == ["last"]


def test_a_server_that_knows_no_parts_never_gets_one_for_the_whole(plane: Plane, start_agent: Start) -> None:
    """After a way back it would take what is one machine's for all of it."""
    plane.knows_parts = False
    wish = member(plane, 0, TWICE)
    start_agent()
    plane.wait(lambda: exit_of(plane, wish.run_id) is not None, "its end")
    assert plane.committed(wish.run_id) == []
    assert {one.why for one in plane.refusals} == {"this server does not put parts of several machines together"}


def test_where_not_all_agents_know_of_parts_none_is_sent(plane: Plane, start_agent: Start) -> None:
    """And the first machine says why."""
    runs = [member(plane, rank, TWICE, parts=False) for rank in range(2)]
    start_agent()
    for wish in runs:
        plane.wait(lambda wish=wish: exit_of(plane, wish.run_id) is not None, "its end")
        assert plane.committed(wish.run_id) == []
    assert {(one.run_id, one.why) for one in plane.refusals} == {
        (runs[0].run_id, "parts are put together for a job on several machines, where the agents of all know of it")
    }


def test_why_it_is_no_checkpoint_is_told(plane: Plane, start_agent: Start) -> None:
    plane.why_no_whole = "machine 1 has not written its part of step 20, and its code is over"
    wish = member(plane, 0, TWICE)
    start_agent()
    plane.wait(lambda: exit_of(plane, wish.run_id) is not None, "its end")
    assert plane.refusals[-1].why == plane.why_no_whole
    assert plane.why_no_whole in plane.log(wish.run_id)


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        ("os.symlink('/etc/passwd', place / 'x')", "x leads out of the run's folder"),
        ("os.mkfifo(place / 'x')", "x is not a regular file"),
    ],
)
def test_what_a_further_machine_cannot_send_it_says(plane: Plane, start_agent: Start, harm: str, why: str) -> None:
    script = SAVES.replace("    with open(", f"    {harm}\n    with open(", 1) + "save(10, a='a')\n"
    wish = member(plane, 1, script)
    start_agent()
    plane.wait(lambda: exit_of(plane, wish.run_id) is not None, "its end")
    assert plane.committed(wish.run_id) == []
    assert [(one.step, one.why) for one in plane.refusals] == [(10, why)]


def test_a_machine_may_have_written_nothing(plane: Plane, start_agent: Start) -> None:
    wish = member(plane, 1, SAVES + "save(10)\n")
    start_agent()
    plane.wait(lambda: exit_of(plane, wish.run_id) is not None, "its end")
    assert names(plane, wish.run_id) == {10: []}


def test_other_lines_of_a_further_machine_count_for_nothing(plane: Plane, start_agent: Start) -> None:
    """Nor does a name that leads elsewhere."""
    lines = '{"step": 1, "loss": 1.5}\\n{"step": 2, "checkpoint": "step-10"}\\nnone\\n'
    script = SAVES + f"open(os.environ['ALLPASS_METRICS_FILE'], 'a').write('{lines}')\n"
    script += """open(os.environ["ALLPASS_METRICS_FILE"], "a").write('{"step": 3, "checkpoint_part": "../.."}\\n')\n"""
    wish = member(plane, 1, script)
    start_agent()
    plane.wait(lambda: exit_of(plane, wish.run_id) is not None, "its end")
    assert plane.checkpoints == {} and plane.metrics == {}
    assert [one.step for one in plane.refusals] == [3]


# Waiting, by itself


class Halted(threading.Event):
    def wait(self, timeout: float | None = None) -> bool:
        return self.is_set()


def waiting(answers: list[dict[str, Any]], *, superseded: bool = False, halted: bool = False) -> list[str]:
    """Wait with these answers, the last of them again and again; what was said."""
    said: list[str] = []
    halt = Halted()
    if halted:
        halt.set()
    upload: Any = SimpleNamespace(candidate=SimpleNamespace(step=40), halt=halt)
    left = iter(answers[1:])
    await_parts(upload, answers[0], lambda: next(left, answers[-1]), is_superseded=lambda: superseded, say=said.append)
    return said


def test_it_is_waited_for_as_long_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when a newer step is saved, while the other machine sends; the log says so once."""
    monkeypatch.setattr(parts_awaited, "PATIENCE_S", -1.0)
    monkeypatch.setattr(parts_awaited, "LONG_S", -1.0)
    lacking = {"waits_for": [1, 3], "unheard": []}
    said = waiting([lacking, lacking, lacking, {"waits_for": []}], superseded=True)
    assert said == ["machines 1 and 3 have not written their parts of step 40: it is waited for"]


def test_one_of_which_nothing_is_heard_is_given_up_for_a_newer_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """And named."""
    monkeypatch.setattr(parts_awaited, "PATIENCE_S", -1.0)
    unheard = {"waits_for": [1, 2], "unheard": [2]}
    with pytest.raises(Unsafe, match=r"^machine 2 has not written its part of step 40, and a newer one is saved$"):
        waiting([unheard, unheard], superseded=True)
    assert waiting([unheard, unheard, unheard, {}]) == [], "without a newer one there is time"


def test_waiting_ends_with_the_run() -> None:
    with pytest.raises(Aborted):
        waiting([{"waits_for": [1]}], halted=True)


# Lines and pieces


def test_a_line_of_a_part_is_never_taken_for_a_whole_checkpoint() -> None:
    """Not by this release, and not by one before, which reads `checkpoint` alone."""
    line = parse(b'{"step": 4, "checkpoint_part": "step-4", "loss": 1}', 0)
    assert (line.checkpoint, line.is_part, line.values) == ("step-4", True, {"loss": 1.0})
    assert not parse(b'{"step": 4, "checkpoint": "step-4"}', 0).is_part
    assert parse(b'{"step": 4, "checkpoint_part": 0.5}', 0).values == {"checkpoint_part": 0.5}
    texts = [(b'{"step": %d}' % number, number) for number in range(1000)]
    texts[501] = (b'{"step": 501, "checkpoint_part": "step-501"}', 501)
    assert texts[501] in skimmed(texts)


def test_parts_of_many_machines_have_no_more_pieces_than_one_checkpoint() -> None:
    size = 4096 * PIECE_BYTES
    alone = list(_plan({"a": size}, size, is_listed=False))
    shared = list(_plan({"a": size}, 8 * size, is_listed=False))
    assert (len(alone), len(shared)) == (4096, 512)


def test_the_agent_says_that_it_sends_parts(plane: Plane, start_agent: Start, tmp_path: Path) -> None:
    start_agent()
    plane.wait(lambda: bool(plane.syncs), "its first call")
    assert "parts" in plane.syncs[0].host["reads"]
