"""Soft deadlines as people write them."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

_UNITS_S = {
    "s": 1, "sec": 1, "secs": 1, "second": 1, "seconds": 1,
    "m": 60, "min": 60, "mins": 60, "minute": 60, "minutes": 60,
    "h": 3600, "hr": 3600, "hrs": 3600, "hour": 3600, "hours": 3600,
    "d": 86400, "day": 86400, "days": 86400,
    "w": 604800, "week": 604800, "weeks": 604800,
}  # fmt: skip
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)\s*")
_ISO_DURATION = re.compile(
    r"^P(?=.)(?:(?P<w>\d+(?:\.\d+)?)W)?(?:(?P<d>\d+(?:\.\d+)?)D)?"
    r"(?:T(?=.)(?:(?P<h>\d+(?:\.\d+)?)H)?(?:(?P<m>\d+(?:\.\d+)?)M)?(?:(?P<s>\d+(?:\.\d+)?)S)?)?$"
)
ACCEPTED = '"6hr", "90m", "1d12h", "PT6H" or "2026-12-01T18:00:00+01:00"'
LONGEST = timedelta(days=3650)


def parse_deadline(value: str | timedelta | datetime, *, now: datetime) -> datetime:
    """The instant (aware UTC) that `value` means when it is now `now` (aware).

    Raises ValueError, saying what is accepted, for text that is none of the forms, an instant without a zone,
    and a deadline that is not in the future.
    """
    instant = _instant(value, now)
    if instant <= now:
        raise ValueError(f"{value!s} is not in the future (it is now {now.isoformat(timespec='seconds')})")
    if instant - now > LONGEST:
        raise ValueError(f"{value!s} is more than ten years away")
    return instant.astimezone(timezone.utc)


def parse_past(value: str, *, now: datetime) -> datetime:
    """The instant (aware UTC) that lies `value` ("7d", "12h", "PT6H") before `now` (aware), or that `value` names.

    Raises ValueError, saying what is accepted, for other text, an instant without a zone, and one that is to come.
    """
    duration = _duration(value.strip())
    try:
        instant = _instant(value, now) if duration is None else now - min(duration, LONGEST)
    except ValueError as error:
        raise ValueError(str(error).replace("is not a deadline", "is not a time")) from None
    if instant > now:
        raise ValueError(f"{value} is in the future (it is now {now.isoformat(timespec='seconds')})")
    return instant.astimezone(timezone.utc)


def _instant(value: str | timedelta | datetime, now: datetime) -> datetime:
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise ValueError(f"{value.isoformat()} has no time zone; write it with one, e.g. +00:00 or Z")
        return value
    if isinstance(value, timedelta):
        return _after(now, value)
    duration = _duration(value.strip())
    if duration is not None:
        return _after(now, duration)
    try:
        instant = datetime.fromisoformat(value.strip().replace("Z", "+00:00"))
    except ValueError:
        raise ValueError(f"{value!r} is not a deadline; write {ACCEPTED}") from None
    return _instant(instant, now)


def _after(now: datetime, duration: timedelta) -> datetime:
    return now + max(-timedelta(days=1), min(duration, LONGEST + timedelta(days=1)))  # never beyond the calendar


def _duration(text: str) -> timedelta | None:
    iso = _ISO_DURATION.match(text)
    if iso:
        parts = {unit: float(number) for unit, number in iso.groupdict(default="0").items()}
        return _timedelta(sum(parts[unit] * _UNITS_S[unit] for unit in parts))
    lowered = text.lower()
    matches = list(_PART.finditer(lowered))
    if not matches or "".join(match.group(0) for match in matches) != lowered:
        return None
    if any(match.group(2) not in _UNITS_S for match in matches):
        return None
    return _timedelta(sum(float(match.group(1)) * _UNITS_S[match.group(2)] for match in matches))


def _timedelta(seconds: float) -> timedelta:
    return timedelta(seconds=min(seconds, LONGEST.total_seconds() + 86_400))
