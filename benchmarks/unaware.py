"""Training scripts that know nothing of Allpass, through a move, a pause, and a machine that dies.

    .venv/bin/python -m benchmarks.unaware
    .venv/bin/python -m benchmarks.unaware --only trainer --script my_train.py

Ten kinds of scripts that people have. Each runs once by itself, and once as a job on a whole stack whose policy moves
it; then it is paused and resumed, and its machine is killed. It counts when it did all of that, its last line, `result
...`, is the undisturbed run's, no step was taken twice for the move or the pause, and `download` gives every file that
it wrote. One that never saves has to stay where it is. Neither hook nor agent knows one of the scripts by name;
`--script` runs any other one that prints such a line.

`value` is how many of the nine that can be moved did; the exit code is 1 below the goal, and where one that was asked
for did not. A script may need an environment of its own (`./allpass test clients` makes them): where that, or the
script, is not there, it does not count, and the detail says why.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import allpass
from app.stack.supervisor import Stack, StackOptions
from tests.e2e.conftest import client_of
from tests.e2e.service import Service, until
from tests.e2e.test_moves import MOVES

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = Path(__file__).with_name("unaware_scripts")
ENVIRONMENTS = Path(sys.prefix) / "clients"
GOAL = 9
LOAD_S = 180.0  # until a script has loaded its libraries and taken some steps, on a busy machine
_SETTINGS = {**MOVES, "ALLPASS_STOP_GRACE_S": "60", "ALLPASS_KEEP_EVERY_S": "5"}
_BY_RUN = re.compile(r"(?<=wandb/)offline-run-[\w-]+|run-[\w-]+(?=\.wandb$)|(?<=events\.out\.tfevents\.).+")
_STEP = re.compile(r"^step (\d+) (.*)$")


@dataclass(frozen=True)
class Kind:
    """`words`: what runs, after the Python of `environment` (None: this one), in the folder of the code. `template`:
    what its owner says of it."""

    name: str
    words: tuple[str, ...]
    code: Path = SCRIPTS
    environment: str | None = None
    template: Mapping[str, Any] = field(default_factory=dict)
    saves: bool = True

    def python(self, environments: Path) -> Path:
        return Path(sys.executable) if self.environment is None else environments / self.environment / "bin" / "python"

    def lacks(self, environments: Path) -> str | None:
        """What has to be there before it can be run."""
        script = next((word for word in self.words if word.endswith(".py")), "")
        if not (self.code / script).is_file():
            return f"there is no script {script} yet"
        if not self.python(environments).is_file():
            return f"there is no environment {self.environment} in {environments}: ./allpass test clients makes it"
        return None


KINDS = (
    Kind("trainer", ("trainer.py",)),
    Kind("sft", ("sft.py",), environment="trl"),
    Kind(
        "accelerate",
        ("-m", "accelerate.commands.launch", "--cpu", "--num_processes=1", "--num_machines=1", "accelerated.py"),
    ),
    Kind("torchrun", ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "launched.py")),
    Kind("lightning", ("lit.py",), environment="lightning"),
    Kind("configured", ("configured.py", "config.json")),
    Kind("folders", ("folders.py",), template={"checkpoints": "out/checkpoint-*"}),
    Kind("project", ("train.py", "--seed", "5"), code=SCRIPTS / "project_of_files"),
    Kind("tracked", ("tracked.py",), environment="wandb"),
    Kind("never_saves", ("never_saves.py",), saves=False),
)


def undisturbed(kind: Kind, python: Path, folder: Path) -> str:
    """The result, of a run in a copy of the code: what is new there is what it wrote."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("ALLPASS", "PYTHON"))}
    done = subprocess.run(
        [str(python), *kind.words], cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{kind.name} fails by itself:\n{done.stderr[-2000:]}")
    return result_of(done.stdout.splitlines())


def result_of(lines: list[str]) -> str:
    return next((line.split()[1] for line in reversed(lines) if line.startswith("result ")), "")


def disturbed(service: Service, kind: Kind, python: Path) -> tuple[allpass.Job, dict[str, Any]]:
    """What became of it, and what it cost."""
    words = [*(["python"] if kind.environment is None else [str(python)]), *kind.words]
    app = allpass.build(f"unaware-{kind.name}", "ada", code=kind.code, command=words, client=service.client)
    job = app.run(template={"checkpoint_interval_s": 5, **kind.template}, soft_deadline="6hr")
    told: dict[str, Any] = {"moved": False, "paused": False, "survived": False}
    if kind.saves:
        told["moved"] = reached(job, lambda: job.info().moves > 0)
        if told["moved"] and goes_on(job):
            told["paused"] = is_paused(job)
            told["steps_lost_by_pause"] = job.info().step - max((one.step for one in job.checkpoints()), default=0)
            told["lost_before_the_kill"] = sum(
                int(event.data.get("steps") or 1)
                for event in job.events()
                if event.kind in ("steps_lost", "began_again")
            )
            job.resume()
            if goes_on(job) and (where := job.info().where) is not None:
                service.kill(service.agent_of(where.node_id))  # while it moves, others hold processes of it, too
    info = job.wait(timeout=2 * LOAD_S, poll_s=0.2)
    told["survived"] = info.faults > 0
    lines = list(job.logs())
    losses: list[tuple[int, Any]] = [
        (point.step, point.values["loss"]) for point in job.metrics() if "loss" in point.values
    ]
    losses += [(int(found[1]), found[2]) for line in lines if (found := _STEP.match(line)) is not None]
    repeated = taken_again(lines)
    told["steps_taken_twice"] = sum(repeated[:-1] if told["survived"] else repeated)
    told["steps_told_twice_differently"] = len({*losses}) - len({step for step, _ in losses})
    timeline = job.timeline()
    told["false_savings_micros"] = max(0, timeline.all_serverless - timeline.cost) if is_false(job, timeline) else 0
    return job, {
        **told,
        "status": info.status,
        "moves": info.moves,
        "faults": info.faults,
        "result": result_of(lines),
        **({} if info.status == "succeeded" else {"message": info.message, "last": lines[-12:]}),
    }


def taken_again(lines: list[str]) -> list[int]:
    """Of a script that says its steps: how many it took again, each time that it began again at an earlier one."""
    found, newest = [], 0
    for line in lines:
        match = _STEP.match(line)
        if match is not None:
            step = int(match[1])
            if step <= newest:
                found.append(newest - step + 1)
            newest = step
    return found


def is_false(job: allpass.Job, timeline: Any) -> bool:
    """A saving is claimed though the whole training was begun again, or was never anywhere else."""
    began_again = any(event.kind == "began_again" for event in job.events())
    return (began_again and not timeline.repeated_ms) or len({stay.tier for stay in timeline.stays}) < 2


def goes_on(job: allpass.Job) -> bool:
    """It runs, and has taken steps since."""
    step = job.info().step
    return reached(job, lambda: job.info().step > step + 5 and job.info().status == "running")


def is_paused(job: allpass.Job) -> bool:
    try:
        job.pause()
    except allpass.AllpassError as error:
        print(f"{job.id} is not paused: {error}", flush=True)
        return False
    return reached(job, lambda: job.info().status == "paused")


def reached(job: allpass.Job, holds: Callable[[], bool]) -> bool:
    """False as soon as the job has ended without."""

    def look() -> str | None:
        if holds():
            return "yes"
        return "no" if job.info().status in ("succeeded", "failed", "cancelled") else None

    try:
        return until("it", look, within_s=LOAD_S) == "yes"
    except AssertionError:
        return False


def files_of(folder: Path) -> set[str]:
    """But links to what lies elsewhere, such as a library's cache."""
    top = folder.resolve()
    found = (path for path in top.rglob("*") if path.is_file() and path.resolve().is_relative_to(top))
    return {path.relative_to(top).as_posix() for path in found}


def files_lost(job: allpass.Job, code: Path, alone: Path, target: Path) -> list[str]:
    """What the undisturbed run left, and `download` does not give of the job."""
    wrote = {path for path in files_of(alone) - files_of(code) if "__pycache__" not in path}
    job.download(target)
    given = files_of(target)
    return sorted(path for path in wrote if path not in given and not _is_named_by_run(path, given))


def _is_named_by_run(path: str, given: set[str]) -> bool:
    """Trackers name folders and files after the moment and the process that began."""
    plain = _BY_RUN.sub("*", path)
    return plain != path and any(_BY_RUN.sub("*", one) == plain for one in given)


def judge(told: Mapping[str, Any], result: str, *, saves: bool) -> bool:
    same = told["status"] == "succeeded" and told["result"] == result != ""
    clean = not told["files_lost"] and not told["false_savings_micros"] and not told["steps_told_twice_differently"]
    if not saves:
        return bool(same and clean and told["moves"] == 0)
    kept = not (told.get("steps_lost_by_pause") or told.get("lost_before_the_kill") or told["steps_taken_twice"])
    return bool(same and clean and kept and told["moved"] and told["paused"] and told["survived"])


def measure(service: Service, kind: Kind, environments: Path, folder: Path) -> dict[str, Any]:
    lacks = kind.lacks(environments)
    if lacks is not None:
        return {"counts": False, "why": lacks}
    alone = folder / "alone"
    subprocess.run(["cp", "-r", str(kind.code), str(alone)], check=True)
    python = kind.python(environments)
    begun_s = time.monotonic()
    result = undisturbed(kind, python, alone)
    alone_s = round(time.monotonic() - begun_s, 1)
    job, told = disturbed(service, kind, python)
    told["files_lost"] = files_lost(job, kind.code, alone, folder / "download")
    took_s = round(time.monotonic() - begun_s - alone_s, 1)
    counts = judge(told, result, saves=kind.saves)
    return {"counts": counts, "undisturbed": result, "alone_s": alone_s, "took_s": took_s, **told}


def chosen(only: list[str], scripts: list[Path]) -> Iterator[Kind]:
    by_name = {kind.name: kind for kind in KINDS}
    for name in only or ([] if scripts else by_name):
        if name not in by_name:
            raise SystemExit(f"--only {name}: there is no such kind; there are {', '.join(by_name)}")
        yield by_name[name]
    for path in scripts:
        yield Kind(path.stem, (path.name,), code=path.resolve().parent)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], help="a kind of this benchmark")
    parser.add_argument("--script", action="append", default=[], type=Path, help="one of your own")
    parser.add_argument("--environments", type=Path, default=ENVIRONMENTS, help="where those of scripts are")
    given = parser.parse_args()
    detail: dict[str, Any] = {}
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="allpass-bench-") as folder:
        Path(folder).chmod(0o711)
        stack = Stack(StackOptions(Path(folder) / "data", port=0, cloud_speed=0.02, settings=_SETTINGS), tell=print)
        try:
            stack.start()
            with client_of(stack.layout.client_file) as client:
                for kind in chosen(given.only, given.script):
                    own = Path(folder) / f"kind-{kind.name}"
                    own.mkdir()
                    told = detail[kind.name] = measure(Service(stack, client), kind, given.environments, own)
                    print(json.dumps({kind.name: told}), flush=True)
        finally:
            stack.stop()
    did = [name for name, told in detail.items() if told["counts"]]
    value = len([name for name in did if name != "never_saves"])
    measured = {
        name: sum(told.get(name) or 0 for told in detail.values())
        for name in ("steps_lost_by_pause", "lost_before_the_kill", "steps_taken_twice", "false_savings_micros")
    }
    measured["files_lost"] = sum(len(told.get("files_lost") or ()) for told in detail.values())
    detail["took_s"] = round(time.monotonic() - begun_s)
    told = {"name": "unaware", "value": value, "goal": GOAL, "unit": "scripts", **measured, "detail": detail}
    print(json.dumps(told))
    is_whole = not (given.only or given.script)
    return int(len(did) < len(detail) - 1 or (is_whole and value < GOAL))


if __name__ == "__main__":
    sys.exit(main())
