"""Sweeps: many jobs seen, cancelled and compared together, in Python and at the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner, Result

from allpass.cli import main as cli
from allpass.client import AsyncClient, Client
from allpass.errors import InvalidInput, NotFound
from allpass.sweep import Sweep, best_row
from tests.sdk.fake_service import KEY, FakeService, served

NAN = float("nan")


def add_sweep(service: FakeService, losses: list[list[float] | None]) -> str:
    jobs = []
    for number, values in enumerate(losses):
        job = service.add_job(status="running", parameters={"lr": 0.1 / (number + 1), "seed": 1}, cost=250_000)
        service.metrics[job["id"]] = [
            {"step": step, "at": "2030-01-01T00:00:00Z", "values": {"loss": value}}
            for step, value in enumerate(values or [])
        ]
        jobs.append(job["id"])
    service.sweeps["swp_1"] = jobs
    return "swp_1"


def sweep_of(service: FakeService, client: Client, losses: list[list[float] | None]) -> Sweep:
    return client.sweep(add_sweep(service, losses))


@pytest.mark.parametrize("thins", [True, False])
def test_best_is_by_the_last_value(service: FakeService, client: Client, thins: bool) -> None:
    """The model that is left counts, not a value on the way; jobs without the metric do not. Long curves are walked
    when the server cannot thin them."""
    service.thins = thins
    sweep = sweep_of(service, client, [[9.0, 2.0], [0.1] * 8 + [5.0], None, [3.0, 3.0, 3.0, 3.0]])
    assert sweep.best("loss") is sweep[0]
    assert sweep.best("loss", "max") is sweep[1]
    with pytest.raises(InvalidInput, match=r"no job .* 'accuracy' \(reported: loss\)"):
        sweep.best("accuracy")
    with pytest.raises(InvalidInput, match="goal"):
        sweep.best("loss", "lowest")  # type: ignore[arg-type]  # wrong on purpose


def test_what_is_no_number_never_wins(service: FakeService, client: Client) -> None:
    """A job whose loss became NaN is not the best one, in neither direction; the first one wins a tie."""
    sweep = sweep_of(service, client, [[1.0], [2.0], [1.0]])
    rows = sweep.table()
    rows[1].metrics["loss"] = NAN
    assert best_row(rows, "loss", "max") is rows[0]
    assert best_row(rows, "loss") is rows[0]
    with pytest.raises(InvalidInput, match=r"reported: loss"):
        best_row(rows[1:2], "loss")


def test_a_sweep_is_a_list_that_ends_together(service: FakeService, client: Client) -> None:
    """Length, order and slices; cancel skips what has ended; wait gives every last state."""
    sweep = sweep_of(service, client, [None, None, None])
    service.jobs[sweep[1].id]["status"] = "succeeded"
    assert [one.id for one in sweep.cancel()] == [sweep[0].id, sweep[2].id]
    assert [one.status for one in sweep.wait(5)] == ["cancelled", "succeeded", "cancelled"]
    assert (len(sweep), list(sweep[1:]), sweep[-1] in sweep) == (3, [sweep[1], sweep[2]], True)


def test_a_table_has_a_row_per_job(service: FakeService, client: Client) -> None:
    """Parameters, state, cost and the last metrics, in the sweep's order; one request, and one for each curve."""
    sweep = sweep_of(service, client, [[9.0, 2.0], None])
    service.requests.clear()
    first, second = sweep.table()
    assert (first.job_id, first.parameters, first.metrics) == (sweep[0].id, {"lr": 0.1, "seed": 1}, {"loss": 2.0})
    assert (second.status, second.cost, second.metrics) == ("running", 250_000, {})
    assert len(service.requests) == 3


def test_a_sweep_that_is_not_there(client: Client) -> None:
    """An unknown id is NotFound, not an empty sweep."""
    with pytest.raises(NotFound):
        client.sweep("swp_none")


async def test_the_async_client_gives_last_metrics(service: FakeService) -> None:
    """The same values as the plain client's."""
    add_sweep(service, [[9.0, 2.0]])
    async with AsyncClient(service.base, KEY, transport=httpx.MockTransport(service)) as client:
        sweep = await client.get_sweep("swp_1")
        assert await client.last_metrics(sweep.jobs[0].id) == {"loss": 2.0}


@pytest.fixture
def live(service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeService]:
    monkeypatch.chdir(tmp_path)
    with served(service) as url:
        monkeypatch.setenv("ALLPASS_URL", url)
        monkeypatch.setenv("ALLPASS_API_KEY", KEY)
        yield service


def call(*words: str) -> Result:
    return CliRunner().invoke(cli.app, list(words))


def test_the_table_shows_what_differs(live: FakeService) -> None:
    """Columns for the parameters in which the jobs differ and for the metrics, and the sum at the end."""
    sweep_id = add_sweep(live, [[9.0, 2.0], None])
    first, second = live.sweeps[sweep_id]
    head, *rows, total = call("sweep", "show", sweep_id).stdout.splitlines()
    assert head.split() == ["JOB", "STATUS", "lr", "STEP", "LOSS", "SPENT"]
    assert [re.split(r" {3,}", row) for row in rows] == [
        [first, "running", "0.1", "0", "2", "$0.25"],
        [second, "running", "0.05", "0", "-", "$0.25"],
    ]
    assert total.strip() == "total $0.50"
    assert "LOSS" not in call("sweep", "show", sweep_id, "-m", "accuracy").stdout
    assert [one["metrics"] for one in json.loads(call("sweep", "show", sweep_id, "--json").stdout)] == [
        {"loss": 2.0},
        {},
    ]


def test_best_prints_the_id_alone_when_piped(live: FakeService) -> None:
    """`allpass download $(allpass sweep best SWEEP loss)` works; a wrong goal and an unknown metric are told."""
    sweep_id = add_sweep(live, [[9.0], [3.0]])
    first, second = live.sweeps[sweep_id]
    assert call("sweep", "best", sweep_id, "loss").stdout == f"{second}\n"
    assert call("sweep", "best", sweep_id, "loss", "--goal", "max").stdout == f"{first}\n"
    assert json.loads(call("sweep", "best", sweep_id, "loss", "--json").stdout)["metrics"] == {"loss": 3.0}
    wrong = call("sweep", "best", sweep_id, "loss", "--goal", "low")
    assert (wrong.exit_code, wrong.stderr) == (2, "error: --goal: 'low' is neither min nor max\n  try: --goal max\n")
    assert "no job of the sweep has reported 'f1' (reported: loss)" in call("sweep", "best", sweep_id, "f1").stderr


def test_cancel_stops_what_has_not_ended(live: FakeService) -> None:
    """One line per stopped job; a second time there is nothing to stop, which is no error."""
    sweep_id = add_sweep(live, [None, None])
    first, second = live.sweeps[sweep_id]
    live.jobs[first]["status"] = "succeeded"
    assert call("sweep", "cancel", sweep_id).stdout == f"{second}   cancelled\n"
    again = call("sweep", "cancel", sweep_id, "--json")
    assert (again.exit_code, json.loads(again.stdout)) == (0, [])


def test_sweeps_are_listed_with_their_jobs(live: FakeService) -> None:
    """Newest first: how many jobs each has, how many are over, and the sum of what they cost."""
    Path("train.py").write_text("print(1)")
    assert call("sweep", "list").stdout == ""
    for name in ("first", "second"):
        Path("sweep.json").write_text('[{"lr": 0.1}, {"lr": 0.2}]')
        call("run", "train.py", "--params", "sweep.json", "--name", name)
    live.add_job(name="alone")
    for sweep_id, job_ids in live.sweeps.items():
        for job_id in job_ids:
            live.jobs[job_id]["sweep_id"] = sweep_id
    for job, status in zip(live.jobs.values(), ("succeeded", "failed", "running", "running"), strict=False):
        job.update(status=status, cost=1_000_000)
    head, *rows = call("sweep", "list").stdout.splitlines()
    assert head.split() == ["SWEEP", "NAME", "JOBS", "DONE", "FAILED", "SPENT", "SUBMITTED"]
    assert sorted(row.split()[1:6] for row in rows) == [
        ["first", "2", "1", "1", "$2.00"],
        ["second", "2", "0", "0", "$2.00"],
    ]
    assert {row.split()[0] for row in rows} == set(live.sweeps)
