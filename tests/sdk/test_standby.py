"""Lending a job's GPUs: the handle, both clients, and the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from typer.testing import CliRunner, Result

from allpass import errors
from allpass.cli import main as cli
from allpass.cli.standby import instant_of
from allpass.client import AsyncClient, Client
from tests.sdk.fake_service import KEY, FakeService, served


@pytest.fixture
def live(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeService]:
    with served(service) as url:
        monkeypatch.setenv("ALLPASS_URL", url)
        monkeypatch.setenv("ALLPASS_API_KEY", KEY)
        yield service


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, list(arguments))


def test_a_handle_stands_by_and_is_called_back(service: FakeService, client: Client) -> None:
    """Each is one write with a key of its own."""
    job = client.job(service.add_job(status="running")["id"])
    assert (job.stand_by("8h").state, job.end_standby().state) == ("leaving", "called_back")
    assert service.paths() == [f"POST /v1/jobs/{job.id}/standby", f"POST /v1/jobs/{job.id}/standby/end"]
    assert len({one.headers["idempotency-key"] for one in service.requests}) == 2
    assert json.loads(service.requests[0].content) == {"until": "8h", "lose_steps": False}
    assert [one.rebate for one in client.list_standbys(job.id)] == [700_000]


def test_what_cannot_be_lent_is_a_conflict_with_its_code(service: FakeService, client: Client) -> None:
    job = client.job(service.add_job(status="running", refuses="not_lendable")["id"])
    with pytest.raises(errors.Conflict) as refused:
        job.stand_by("8h", lose_steps=True)
    assert refused.value.code == "not_lendable"


async def test_the_asynchronous_client_does_the_same(service: FakeService) -> None:
    with served(service) as url:
        async with AsyncClient(url, KEY) as client:
            job_id = service.add_job(status="running")["id"]
            assert (await client.begin_standby(job_id, "8h")).gpus == 2
            assert (await client.end_standby(job_id)).why == "its owner calls it back"
            assert len(await client.list_standbys(job_id)) == 1


def test_the_command_line_says_until_when_and_what_it_costs(live: FakeService) -> None:
    job_id = live.add_job(status="running")["id"]
    result = call("standby", job_id, "--until", "8h")
    assert result.exit_code == 0, result.output
    assert "2, of which others have 1" in result.stdout
    assert "that is 30 % of its price" in result.stdout
    assert "$0.30 paid, $0.70 rebate" in result.stdout
    assert "after it, if it comes back then" in result.stdout
    assert "called back" in call("standby", "end", job_id).stdout
    assert "its owner calls it back" in call("standby", job_id).stdout
    assert json.loads(call("standby", job_id, "--json").stdout)[0]["rebate"] == 700_000
    assert json.loads(call("standby", "end", job_id, "--json").stdout)["state"] == "called_back"
    assert "has never stood by" in call("standby", live.add_job()["id"]).stdout


@pytest.mark.parametrize(
    "words", [[], ["end"], ["end", "job_a", "job_b"], ["job_a", "job_b"], ["end", "job_a", "--until", "8h"]]
)
def test_what_names_no_job_is_wrong_usage(live: FakeService, words: list[str]) -> None:
    assert call("standby", *words).exit_code == 2
    assert live.paths() == []


ROME = ZoneInfo("Europe/Rome")


@pytest.mark.parametrize(
    ("text", "now", "instant"),
    [
        ("08:00", datetime(2026, 11, 27, 22, 0, tzinfo=UTC), "2026-11-28T08:00:00+00:00"),
        ("8:00", datetime(2026, 11, 27, 7, 59, 59, tzinfo=UTC), "2026-11-27T08:00:00+00:00"),
        ("08:00", datetime(2026, 11, 27, 8, 0, tzinfo=UTC), "2026-11-28T08:00:00+00:00"),
        ("23:59", datetime(2026, 11, 27, 22, 0, tzinfo=timezone(timedelta(hours=-8))), "2026-11-27T23:59:00-08:00"),
        ("8h", datetime(2026, 11, 27, 22, 0, tzinfo=UTC), "8h"),
        ("24:00", datetime(2026, 11, 27, 22, 0, tzinfo=UTC), "24:00"),
        ("2026-11-28T08:00+01:00", datetime(2026, 11, 27, 22, 0, tzinfo=UTC), "2026-11-28T08:00+01:00"),
    ],
)
def test_a_time_of_day_is_the_next_one_of_this_computers_clock(text: str, now: datetime, instant: str) -> None:
    assert instant_of(text, now) == instant


def test_a_night_in_which_clocks_are_set_back_ends_at_the_hour_on_the_wall(monkeypatch: pytest.MonkeyPatch) -> None:
    """On 2026-10-25 Rome is at +02:00 in the evening before and at +01:00 in the morning."""
    import time

    monkeypatch.setenv("TZ", "Europe/Rome")
    time.tzset()
    try:
        evening = datetime(2026, 10, 24, 22, 0, tzinfo=ROME)
        assert instant_of("08:00", evening) == "2026-10-25T08:00:00+01:00"
    finally:
        monkeypatch.undo()
        time.tzset()
