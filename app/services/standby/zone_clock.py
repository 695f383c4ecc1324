"""What clocks of a time zone show."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from app.errors import InvalidInput

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


class ZoneClock:
    """Implements `app.core.standby_windows.LocalClock` for a zone of the IANA database. A time that is skipped is as
    much later as clocks are put forward; of one that is shown twice the first counts."""

    def __init__(self, name: str) -> None:
        """Raises InvalidInput for a zone that this host does not know."""
        try:
            self._zone = ZoneInfo(name)
        except (ValueError, OSError, KeyError):  # ZoneInfoNotFoundError is a KeyError; a folder's name an OSError
            raise InvalidInput(
                f"zone: {name!r:.80} is no time zone that the server knows: write it as Europe/Rome, or UTC",
                param="zone",
            ) from None

    def day_of(self, at_ms: int) -> int:
        """See `LocalClock.day_of`."""
        return (_EPOCH + at_ms * _MS).astimezone(self._zone).date().toordinal() - _EPOCH.toordinal()

    def instant_ms(self, day: int, minute: int) -> int:
        """See `LocalClock.instant_ms`."""
        there = _EPOCH.replace(tzinfo=None) + timedelta(days=day, minutes=minute)
        return (there.replace(tzinfo=self._zone).astimezone(UTC) - _EPOCH) // _MS
