"""Training scripts that know nothing of Allpass, through a move, a pause, and a machine that dies.

    .venv/bin/python -m benchmarks.unaware
    .venv/bin/python -m benchmarks.unaware --only trainer --script my_train.py

Each runs once by itself, and once as a job on a whole stack whose policy moves it; then it is paused and resumed, and
its machine is killed. It counts when it did all of that and its last line, `result ...`, is the undisturbed run's.
`never_saves` must not be moved. Neither hook nor agent knows one of the scripts by name; `--script` runs any
other one that prints such a line. `value` is how many of the kinds of scripts that people have did.

Not here, and so not counted: TRL, Lightning and the trackers, which are not among the development packages; a loop over
`accelerate` or with folders of its own, which nothing resumes (ADR 0045).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import allpass
from app.stack.supervisor import Stack, StackOptions
from tests.e2e.conftest import client_of
from tests.e2e.service import Service, until
from tests.e2e.test_moves import MOVES

SCRIPTS = Path(__file__).with_name("unaware_scripts")
NAMES = ("trainer", "launched", "configured", "several", "never_saves")
GOAL = 9
LOAD_S = 180.0  # until a script has loaded its libraries and taken some steps, on a busy machine
_SETTINGS = {**MOVES, "ALLPASS_STOP_GRACE_S": "60"}


def undisturbed(script: Path, folder: Path) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("ALLPASS", "PYTHON"))}
    environ["PYTHONPATH"] = str(script.parent)
    done = subprocess.run(
        [sys.executable, str(script)], cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{script} fails by itself:\n{done.stderr[-2000:]}")
    return result_of(done.stdout.splitlines())


def result_of(lines: list[str]) -> str:
    return next((line.split()[1] for line in reversed(lines) if line.startswith("result ")), "")


def disturbed(service: Service, script: Path, *, saves: bool) -> dict[str, Any]:
    """What became of it, and what it cost."""
    app = allpass.build(
        f"unaware-{script.stem}", "ada", code=script.parent, client=service.client, entrypoint=script.name
    )
    job = app.run(template={"checkpoint_interval_s": 5}, soft_deadline="6hr")
    told: dict[str, Any] = {"moved": False, "paused": False, "survived": False}
    if saves:
        told["moved"] = reached(lambda: job.info().moves > 0)
        step = job.info().step
        if reached(lambda: job.info().step > step + 5 and job.info().status == "running"):
            job.pause()
            told["paused"] = reached(lambda: job.info().status == "paused")
            paused_at = job.info().step
            told["steps_lost_by_pause"] = job.info().step - max((one.step for one in job.checkpoints()), default=0)
            job.resume()
            if reached(lambda: job.info().step > paused_at + 5 and job.info().status == "running"):
                service.kill(service.agent_process(job))
    info = job.wait(timeout=2 * LOAD_S, poll_s=0.2)
    told["survived"] = info.faults > 0
    losses = [(point.step, point.values.get("loss")) for point in job.metrics()]
    return {
        **told,
        "status": info.status,
        "moves": info.moves,
        "faults": info.faults,
        "steps_told_twice_differently": len({*losses}) - len({step for step, _ in losses}),
        "result": result_of(list(job.logs())),
    }


def reached(holds: Any) -> bool:
    try:
        return bool(until("it", holds, within_s=LOAD_S))
    except AssertionError:
        return False


def judge(told: dict[str, Any], result: str, *, saves: bool) -> bool:
    same = told["status"] == "succeeded" and told["result"] == result != ""
    if not saves:
        return same and told["moves"] == 0
    exact = told["steps_told_twice_differently"] == 0 and told.get("steps_lost_by_pause") == 0
    return bool(same and exact and told["moved"] and told["paused"] and told["survived"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", default=[], help="a script of this benchmark")
    parser.add_argument("--script", action="append", default=[], type=Path, help="one of your own")
    given = parser.parse_args()
    names = given.only or ([] if given.script else NAMES)
    scripts = [*(SCRIPTS / f"{name}.py" for name in names), *(path.resolve() for path in given.script)]
    detail: dict[str, Any] = {}
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="allpass-bench-") as folder:
        Path(folder).chmod(0o711)
        stack = Stack(StackOptions(Path(folder) / "data", port=0, cloud_speed=0.02, settings=_SETTINGS), tell=print)
        try:
            stack.start()
            with client_of(stack.layout.client_file) as client:
                for script in scripts:
                    alone = Path(folder) / f"alone-{script.stem}"
                    alone.mkdir()
                    saves = script.stem != "never_saves"
                    result = undisturbed(script, alone)
                    told = disturbed(Service(stack, client), script, saves=saves)
                    detail[script.stem] = {"counts": judge(told, result, saves=saves), "undisturbed": result, **told}
                    print(json.dumps({script.stem: detail[script.stem]}), flush=True)
        finally:
            stack.stop()
    value = sum(told["counts"] for name, told in detail.items() if name != "never_saves")
    detail["took_s"] = round(time.monotonic() - begun_s)
    print(json.dumps({"name": "unaware", "value": value, "goal": GOAL, "unit": "scripts", "detail": detail}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
