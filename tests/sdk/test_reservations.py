"""Reserving GPUs and windows that come again: both clients, and the command line with its clock times."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from typer.testing import CliRunner, Result

from allpass import errors
from allpass.cli import main as cli
from allpass.cli.faults import CommandFailed
from allpass.cli.zones import moment_of, zone_named
from allpass.client import AsyncClient, Client
from tests.sdk.fake_service import KEY, FakeService, served

ENDS = datetime(2026, 12, 1, 16, tzinfo=UTC)
ROME = ZoneInfo("Europe/Rome")


@pytest.fixture
def live(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeService]:
    with served(service) as url:
        monkeypatch.setenv("ALLPASS_URL", url)
        monkeypatch.setenv("ALLPASS_API_KEY", KEY)
        yield service


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, list(arguments))


def asked(service: FakeService) -> dict[str, object]:
    found: dict[str, object] = json.loads(next(one for one in reversed(service.requests) if one.content).content)
    return found


def test_a_client_reserves_lists_shows_and_ends(service: FakeService, client: Client) -> None:
    made = client.reserve("lab", "A100", 8, ends_at=ENDS)
    assert asked(service) == {
        **{"pool": "lab", "gpu_type": "A100", "gpus": 8},
        **{"begins_at": None, "ends_at": "2026-12-01T16:00:00Z"},
    }
    assert [one.id for one in client.reservations()] == [made.id]
    assert client.reservation(made.id).spot_gpus == 1
    assert client.end_reservation(made.id).state == "over"
    service.lending.refuses = "not_reservable"
    with pytest.raises(errors.Conflict) as refused:
        client.reserve("lab", "A100", 8, ends_at=ENDS)
    assert refused.value.code == "not_reservable"


def test_what_is_no_request_is_refused_before_it_is_sent(service: FakeService, client: Client) -> None:
    with pytest.raises(errors.InvalidInput, match="ends_at"):
        client.reserve("lab", "A100", 8, ends_at=ENDS.replace(tzinfo=None))
    with pytest.raises(errors.InvalidInput, match="begins"):
        client.repeat_standby("job_a", ["mon"], "8pm", "08:00", "UTC")
    assert service.requests == []


async def test_the_asynchronous_client_does_the_same(service: FakeService) -> None:
    with served(service) as url:
        async with AsyncClient(url, KEY) as client:
            made = await client.reserve("lab", "A100", 8, ends_at=ENDS)
            assert [one.id async for one in client.reservations()] == [made.id]
            assert (await client.reservation(made.id)).gpus == 8
            assert (await client.end_reservation(made.id)).state == "over"
            window = await client.repeat_standby("job_a", ["mon"], "20:00", "08:00", "UTC")
            assert [one.id for one in await client.list_standby_windows("job_a")] == [window.id]
            assert (await client.end_standby_window(window.id)).why == "it was ended"


def test_the_command_line_reserves(live: FakeService) -> None:
    result = call(*("reserve", "lab", "8xA100", "--from", "2026-12-01 08:00", "--to", "16:00", "--zone", "Europe/Rome"))
    assert result.exit_code == 0, result.output
    assert asked(live) == {
        **{"pool": "lab", "gpu_type": "A100", "gpus": 8},
        **{"begins_at": "2026-12-01T07:00:00Z", "ends_at": "2026-12-01T15:00:00Z"},
    }
    assert "8 x A100 of lab" in result.stdout
    assert call("reserve", "lab", "4 x RTX 4090", "--for", "8h").exit_code == 0
    assert (asked(live)["gpu_type"], asked(live)["gpus"]) == ("RTX 4090", 4)
    listed = call("reserve", "list").stdout
    assert "8xA100" in listed and "4xRTX 4090" in listed
    assert "by spot jobs" in call("reserve", "show", "resv_0").stdout
    assert "ended before its time" in call("reserve", "end", "resv_0").stdout
    assert json.loads(call("reserve", "list", "--json").stdout)[1]["state"] == "over"


@pytest.mark.parametrize(
    "words",
    [
        ["lab"],
        ["lab", "A100", "--for", "8h"],
        ["lab", "8xA100"],
        ["lab", "8xA100", "--for", "8h", "--to", "16:00"],
        ["lab", "8xA100", "--for", "8h", "--zone", "Mars/Phobos"],
        ["lab", "8xA100", "--for", "8h", "--from", "tomorrow"],
        ["lab", "0x", "--for", "8h"],
        ["lab", "0xA100", "--for", "8h"],
        ["lab", "100001xA100", "--for", "8h"],
        ["list", "resv_0"],
        ["show"],
        ["end", "resv_0", "--for", "8h"],
    ],
)
def test_what_is_no_reservation_is_wrong_usage(live: FakeService, words: list[str]) -> None:
    assert call("reserve", *words).exit_code == 2
    assert live.paths() == []


def test_a_window_that_comes_again(live: FakeService) -> None:
    job_id = live.add_job(status="running")["id"]
    hours = ("--from", "20:00", "--until", "8:00", "--zone", "Europe/Rome")
    result = call("standby", job_id, "--every", "weekday", *hours)
    assert result.exit_code == 0, result.output
    assert asked(live) == {
        **{"days": ["mon", "tue", "wed", "thu", "fri"], "begins": "20:00", "ends": "08:00"},
        **{"zone": "Europe/Rome", "lose_steps": False},
    }
    assert "mon, tue, wed, thu, fri from 20:00 to 08:00, Europe/Rome" in call("standby", job_id).stdout
    assert "it was ended" in call("standby", "end", "stbw_0").stdout
    assert call("standby", job_id, "--every", "sun,mon", *hours, "--json").exit_code == 0
    assert asked(live)["days"] == ["mon", "sun"]


@pytest.mark.parametrize(
    "words",
    [
        ["--every", "weekday", "--until", "08:00"],
        ["--every", "someday", "--from", "20:00", "--until", "08:00"],
        ["--every", "mon,foo", "--from", "20:00", "--until", "08:00"],
        ["--every", "daily", "--from", "20:00", "--until", "8h", "--zone", "UTC"],
        ["--from", "20:00", "--until", "08:00"],
        ["--every", "daily", "--from", "20:00", "--until", "08:00", "--zone", "Nowhere"],
    ],
)
def test_what_is_no_window_is_wrong_usage(live: FakeService, words: list[str]) -> None:
    assert call("standby", "job_a", *words).exit_code == 2
    assert live.paths() == []


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("08:00", "2026-10-24T06:00:00+00:00"),
        ("2026-10-25 08:00", "2026-10-25T07:00:00+00:00"),
        ("2026-10-25T02:30", "2026-10-25T00:30:00+00:00"),  # shown twice: the first
        ("2026-03-29 02:30", "2026-03-29T01:30:00+00:00"),  # skipped: an hour later
        ("2026-12-01T08:00+05:45", "2026-12-01T02:15:00+00:00"),
        ("2026-12-01T08:00:00Z", "2026-12-01T08:00:00+00:00"),
    ],
)
def test_times_are_of_the_zones_clock(text: str, instant: str) -> None:
    now = datetime(2026, 10, 23, 22, tzinfo=UTC)
    assert moment_of("--from", text, ROME, after=now).isoformat() == instant


@pytest.mark.parametrize("text", ["", "8", "24:00", "2026-12-01", "2026-13-01 08:00", "0000-01-01 00:00", "9" * 400])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(CommandFailed, match=r"--to: .* is no time"):
        moment_of("--to", text, ROME, after=ENDS)
    for name in ("", "../UTC", "Europe"):
        with pytest.raises(CommandFailed):
            zone_named(name)
