"""Soft deadlines: what people write, and the instant it means."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allpass.errors import InvalidInput
from allpass.submission import deadline_text
from allpass.wire.deadlines import LONGEST, parse_deadline

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
UNITS = {"s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "hr": 3600, "hours": 3600, "d": 86400, "w": 604800}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("6hr", 21600), ("6h", 21600), ("6 hours", 21600), (" 6HR ", 21600), ("90m", 5400), ("1d12h", 129600),
        ("1d 12h", 129600), ("1.5h", 5400), ("30s", 30), ("2 weeks", 1209600), ("PT6H", 21600), ("P1DT12H", 129600),
        ("P2W", 1209600), ("PT0.5H", 1800), ("PT1H30M", 5400),
    ],
)  # fmt: skip
def test_durations_count_from_now(text: str, seconds: int) -> None:
    """Each way to write a duration means that many seconds from now."""
    assert parse_deadline(text, now=NOW) == NOW + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2030-01-01T18:00:00+01:00", datetime(2030, 1, 1, 17, tzinfo=UTC)),
        ("2030-01-01T18:00:00Z", datetime(2030, 1, 1, 18, tzinfo=UTC)),
        ("2030-01-02 00:00+00:00", datetime(2030, 1, 2, tzinfo=UTC)),
    ],
)
def test_instants_keep_their_zone(text: str, instant: datetime) -> None:
    """An instant with a zone is that instant, in UTC."""
    parsed = parse_deadline(text, now=NOW)
    assert (parsed, parsed.tzinfo) == (instant, UTC)


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "6", "h", "six hours", "6 fortnights", "-6h", "6h-", "6hh", "P", "PT", "P1H", "6h 5", "1e3h",
        "tomorrow", "time zone", "2030-13-01T00:00:00Z", "2030-01-01T18:00:00+99:00", "6\x00h", "PT6H ago",
    ],
)  # fmt: skip
def test_other_text_is_refused_with_what_is_accepted(text: str) -> None:
    """The error shows the value and the accepted forms."""
    with pytest.raises(ValueError, match=r"is not a deadline; write") as refused:
        parse_deadline(text, now=NOW)
    assert repr(text) in str(refused.value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("0h", "not in the future"), ("PT0S", "not in the future"), ("2029-12-31T00:00:00Z", "not in the future"),
        (timedelta(0), "not in the future"), (timedelta(days=-1), "not in the future"),
        (timedelta.min, "not in the future"), (NOW, "not in the future"), ("0001-01-01T00:00:00+00:00", "not in the"),
        ("4000d", "more than ten years"),
        ("9" * 400 + "h", "more than ten years"), (timedelta.max, "more than ten years"),
        ("9999-12-31T23:59:59-12:00", "more than ten years"), ("2030-01-01T18:00:00", "no time zone"),
        ("2030-01-02", "no time zone"), (datetime(2031, 1, 1), "no time zone"),
    ],
)  # fmt: skip
def test_deadlines_that_cannot_be_are_refused(value: str | timedelta | datetime, words: str) -> None:
    """The past, the far future and times without a zone each have their own words."""
    with pytest.raises(ValueError, match=words):
        parse_deadline(value, now=NOW)


@given(st.lists(st.tuples(st.integers(0, 500), st.sampled_from(sorted(UNITS))), min_size=1, max_size=4))
def test_a_sum_of_parts_is_their_sum(parts: list[tuple[int, str]]) -> None:
    """ "1d 12h 30m" is the sum of its parts, whatever they are."""
    seconds = sum(number * UNITS[unit] for number, unit in parts)
    text = " ".join(f"{number}{unit}" for number, unit in parts)
    if not 0 < seconds <= LONGEST.total_seconds():
        with pytest.raises(ValueError, match=r"future|ten years"):
            parse_deadline(text, now=NOW)
    else:
        assert parse_deadline(text, now=NOW) == NOW + timedelta(seconds=seconds)


@given(st.text(max_size=40) | st.timedeltas() | st.datetimes() | st.datetimes(timezones=st.timezones()))
def test_any_value_gives_a_future_instant_or_a_value_error(value: str | timedelta | datetime) -> None:
    """No input crashes in another way, and no accepted one lies in the past or beyond ten years."""
    try:
        parsed = parse_deadline(value, now=NOW)
    except ValueError:
        return
    assert NOW < parsed <= NOW + LONGEST
    assert parsed.tzinfo is UTC


@given(st.timedeltas(min_value=timedelta(microseconds=1), max_value=LONGEST - timedelta(days=1)))
def test_a_timedelta_survives_the_wire(span: timedelta) -> None:
    """A timedelta, written as text by the client and read by the service, means the same to the microsecond."""
    meant = parse_deadline(deadline_text(span), now=NOW)
    assert abs(meant - (NOW + span)) <= timedelta(microseconds=1)


@given(st.datetimes(min_value=datetime(2035, 1, 1), max_value=datetime(2035, 12, 1), timezones=st.timezones()))
def test_an_instant_survives_the_wire(instant: datetime) -> None:
    """An aware datetime arrives as the same instant."""
    assert parse_deadline(deadline_text(instant), now=NOW).timestamp() == instant.timestamp()


@pytest.mark.parametrize("value", ["soon", timedelta(0), datetime(2040, 1, 1), 6, None])
def test_the_client_refuses_before_it_sends(value: object) -> None:
    """A deadline that makes no sense is an InvalidInput that names the argument."""
    with pytest.raises(InvalidInput, match=r"^soft_deadline: "):
        deadline_text(value)  # type: ignore[arg-type]  # wrong on purpose
