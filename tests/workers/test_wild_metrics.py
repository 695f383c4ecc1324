"""A metrics file may hold anything: its run goes on, what can be kept is kept, and what cannot is told once."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from allpass.wire.agent import MetricReport, ProfileFound, Watched
from app.api.edge import MAX_AGENT_BODY_BYTES
from app.db.runs.metrics import LARGEST_VALUE
from tests.workers.agents import AgentProcess, desired
from tests.workers.plane import Plane
from workers.agent import metric_lines
from workers.agent.api import Writer
from workers.agent.facts import profile_of, watched_of
from workers.agent.files import Fence
from workers.agent.metric_lines import MetricTail, parse
from workers.agent.metrics import Metrics

Start = Callable[..., AgentProcess]

SCRIPT = r"""
import json, os
with open(os.environ["ALLPASS_METRICS_FILE"], "a") as file:
    for step in range(3):
        many = {f"m{n}": n for n in range(150)}
        wild = {"nan": float("nan"), "inf": float("-inf"), "huge": 1e200, "digits": 10**300, "n" * 5000: 1.0}
        file.write(json.dumps({"step": step, "loss": 1.0, **wild, **many}) + "\n")
    file.write('{"step": 3, "loss": 1e999, "done_ms": -1e308, "training": {"profile": {"fisher": [1e300]}}}\n')
    file.write('{"step": 99999999999999999999, "loss": 1}\n')
    file.write('{"step": -1, "loss": 1}\n{"step": NaN}\n{"step": 1e3}\n[1]\nnull\n\x00\xff\n')
    file.write('{"step": 4, "loss": ' + "9" * 5000 + '}\n')
    file.write('{"step": 5, "loss": 0.5, "\\ud800": 1, "a\\u0000b": 2}\n')
"""


def test_a_run_with_a_wild_metrics_file_succeeds(plane: Plane, start_agent: Start) -> None:
    """Exit code 0; each kind of remark once; the last good line arrives."""
    run = desired(plane, SCRIPT)
    plane.want(run)
    start_agent()
    ended = plane.wait_exit(run.run_id)
    assert (ended.exit_code, ended.environment_error) == (0, None)
    remarks = (
        "values are left out that are no numbers, or larger than 1e100: from step 0 on",
        "only 100 values of a step are kept",
        "names of values are cut to 200 characters",
    )
    for remark in remarks:
        assert plane.wait_log(run.run_id, remark).count(remark) == 1
    log = plane.log(run.run_id)
    assert log.count("values are left out") == 1


def test_a_line_keeps_what_the_server_keeps() -> None:
    """Names as long, values as large and as many: the same limits on both sides."""
    line = parse(json.dumps({"step": 1, "a" * 300: LARGEST_VALUE, "b": 1.1 * LARGEST_VALUE}).encode(), 0)
    assert line.values == {"a" * 200: LARGEST_VALUE}
    assert len(line.left_out) == 2
    many = parse(json.dumps({"step": 1, **{str(n): n for n in range(200)}}).encode(), 0)
    point = {"step": 1, "at_ms": 1, "values": many.values}
    MetricReport.model_validate({"run_id": "r", "job_id": "j", "epoch": 1, "points": [point]})
    assert len(many.values) == metric_lines.MOST_VALUES


def test_what_is_compared_with_other_jobs_is_within_the_servers_limits() -> None:
    """A profile or a look at a companion that the server would leave out is not told."""
    for value in (1e15, -1e15, 1.1e15, 1e300, float("nan"), float("inf")):
        profile = {"fisher": [value], "pull": [1.0], "rows": 1, "tokens": 1}
        watch = {"job_id": "job_1", "epochs": abs(value), "fruitless_epochs": 0.0}
        if abs(value) <= 1e15:
            assert ProfileFound.model_validate(profile_of({"profile": profile})).fisher == [value]
            assert Watched.model_validate(watched_of({"watch": watch})).epochs == abs(value)
        else:
            assert (profile_of({"profile": profile}), watched_of({"watch": watch})) == ({}, {})


class _Api:
    """Takes reports, and remembers how large they were."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.steps: list[int] = []

    def is_away(self) -> bool:
        return False

    def metrics(self, writer: Any, points: list[Any]) -> None:
        self.sizes.append(len(json.dumps(points)))
        self.steps += [point["step"] for point in points]


def test_reports_stay_within_what_the_server_takes(tmp_path: Path) -> None:
    """However long the names are: few points go in one report then, and all of them arrive."""
    values = {f"{number:03}" + "ü" * 197: 1.0 for number in range(100)}
    with (tmp_path / "metrics").open("w") as file:
        file.writelines(json.dumps({"step": step, **values}) + "\n" for step in range(100))
    api, gone = _Api(), threading.Event()
    sender = Metrics(
        api,  # type: ignore[arg-type]  # the one call that it needs
        Writer(run_id="run_1", job_id="job_1", epoch=1),
        MetricTail(tmp_path / "metrics", Fence(tmp_path, None)),
        on_lines=lambda _: None,
        on_fenced=gone.set,
        say=lambda _: None,
        gone=gone,
    )
    sender.start()
    sender.finish_reading()
    sender.finish_sending()
    assert api.steps == list(range(100))
    assert sum(api.sizes) > MAX_AGENT_BODY_BYTES
    assert max(api.sizes) < MAX_AGENT_BODY_BYTES
