"""What of a job is to be changed: checked here, so that mistakes never travel."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from pydantic import ValidationError

from allpass.errors import InvalidInput
from allpass.submission import deadline_text
from allpass.wire.controls import JobUpdate

Keep = Literal["keep"]
KEEP: Final[Keep] = "keep"
_EXAMPLES = {
    "max_cost_usd": "max_cost_usd=12.5",
    "max_duration_s": "max_duration=3600",
    "max_hourly_usd": "max_hourly_usd=2.5",
    "max_wait_s": "max_wait=3600",
    "retries": "retries=2",
    "labels": 'labels={"team": "nlp"}',
}


def job_update(
    *,
    soft_deadline: str | timedelta | datetime | None = None,
    max_cost_usd: float | Keep | None = KEEP,
    max_duration: float | timedelta | Keep | None = KEEP,
    max_hourly_usd: float | Keep | None = KEEP,
    max_wait: float | timedelta | Keep | None = KEEP,
    retries: int | Keep | None = KEEP,
    labels: Mapping[str, str | None] | None = None,
) -> JobUpdate:
    """A change: what is not given stays. None takes a limit away, and as a label's value that label.

    `max_duration` and `max_wait` are seconds or a timedelta. Raises InvalidInput naming the argument.
    """
    fields: dict[str, Any] = {}
    if soft_deadline is not None:
        fields["soft_deadline"] = deadline_text(soft_deadline)
    if max_cost_usd != KEEP:
        fields["max_cost_usd"] = max_cost_usd
    if max_duration != KEEP:
        fields["max_duration_s"] = _seconds(max_duration)
    if max_hourly_usd != KEEP:
        fields["max_hourly_usd"] = max_hourly_usd
    if max_wait != KEEP:
        fields["max_wait_s"] = _seconds(max_wait)
    if retries != KEEP:
        fields["retries"] = retries
    if labels:
        fields["labels"] = dict(labels)
    if not fields:
        raise InvalidInput("nothing is to be changed", hint='soft_deadline="6hr", max_cost_usd=12.5')
    try:
        return JobUpdate(**fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        argument = {"max_duration_s": "max_duration", "max_wait_s": "max_wait"}.get(name, name)
        raise InvalidInput(
            f"{argument}: {first['input']!r} is refused: {first['msg']}", hint=_EXAMPLES[name]
        ) from error


def _seconds(value: object) -> object:
    """Whole seconds, rounded up: a limit is never made shorter than it was meant."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    return int(-(-seconds // 1)) if isinstance(seconds, float) and abs(seconds) < float("inf") else seconds
