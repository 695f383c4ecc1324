"""Times of day and of the calendar, as people write them for the clock of a place."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone, tzinfo

from allpass.cli.faults import WRONG_USAGE, CommandFailed

_CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)\Z")
_DATED = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?\Z")


def zone_named(name: str) -> tzinfo:
    """A zone of the IANA database. Raises CommandFailed for one that this computer does not know."""
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):  # ZoneInfoNotFoundError is a KeyError; a folder's name an OSError
        raise CommandFailed(
            f"--zone: {name!r:.80} is no time zone that this computer knows",
            hint="--zone Europe/Rome, or UTC; pip install tzdata brings them",
            code=WRONG_USAGE,
        ) from None


def zone_here() -> str:
    """The name of this computer's zone, as far as it can be told; UTC where its clock is. Raises CommandFailed."""
    import os
    from pathlib import Path

    named = os.environ.get("TZ", "").lstrip(":")
    if not named:
        link = Path("/etc/localtime")
        where = str(link.resolve()) if link.exists() else ""
        named = where.partition("zoneinfo/")[2] or ("UTC" if not where else "")
    if not named:
        raise CommandFailed(
            "what this computer's zone is called cannot be told", hint="say it: --zone Europe/Rome", code=WRONG_USAGE
        )
    zone_named(named)
    return named


def moment_of(option: str, text: str, zone: tzinfo | None, *, after: datetime) -> datetime:
    """An instant: of "2026-12-01 08:00" on the zone's clock (None: this computer's), of 08:00 the next such time after
    `after`, of an instant with its zone that one. A time that the clock skips is one hour later. Raises CommandFailed.
    """
    text = text.strip()
    found = _CLOCK.match(text)
    try:
        if found is not None:
            return _next(int(found[1]), int(found[2]), zone, after)
        at = datetime.fromisoformat(text.replace("Z", "+00:00") if text.endswith("Z") else text)
        if at.tzinfo is not None:
            return at.astimezone(timezone.utc)
        if _DATED.match(text):
            return _on(at, zone)
    except (ValueError, OverflowError, OSError):
        pass
    raise CommandFailed(
        f"{option}: {text!r:.80} is no time",
        hint=f'{option} "2026-12-01 08:00", {option} 08:00, or {option} 2026-12-01T08:00+01:00',
        code=WRONG_USAGE,
    )


def _next(hour: int, minute: int, zone: tzinfo | None, after: datetime) -> datetime:
    day = after.astimezone(zone).replace(hour=hour, minute=minute, second=0, microsecond=0, tzinfo=None)
    at = _on(day, zone)
    return at if at > after else _on(day + timedelta(days=1), zone)


def _on(local: datetime, zone: tzinfo | None) -> datetime:
    """Where a clock shows a time twice, the first of them."""
    local = local.replace(fold=0)
    return (local.astimezone() if zone is None else local.replace(tzinfo=zone)).astimezone(timezone.utc)
