"""What became of each job, as csv: for comparing with another simulator job by job."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from app.core.model.node import Tier
from app.errors import InvalidInput
from app.simulator.compat import record
from app.simulator.outcomes import JobOutcome

COLUMNS = ("job_id", "submit_s", "finish_s", "jct_s", "cost_usd", "tiers", "missed")
_TIERS = {tier.value[0]: tier.value for tier in Tier}


def text_of(outcomes: Iterable[JobOutcome]) -> str:
    """One line a job, in order of submission. Times are seconds from the start of the trace; `cost_usd` is of the GPUs
    while they were the job's own; `tiers` are those it ran on, in order; `missed` is 1 if it ended after its deadline.
    """
    return _csv(
        (
            one.job_id,
            _seconds(one.submit_ms),
            _seconds(one.finished_ms),
            _seconds(one.jct_ms),
            f"{one.cost_usd:.6f}",
            ">".join(_TIERS[letter] for letter in one.tiers),
            int(one.missed),
        )
        for one in outcomes
    )


def text_of_replay(outcomes: Iterable[record.CompatOutcome]) -> str:
    """The same columns for a cluster of one's own: without costs, tiers and deadlines; a job that never ends has no
    `finish_s`."""
    return _csv(
        (one.job_id, one.submit_s, _or_empty(one.finish_s), _or_empty(one.jct_s), "", "", "") for one in outcomes
    )


def check_place(path: Path) -> None:
    """Raises InvalidInput if no file can be written there: better before a long simulation than after it."""
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        why = "is a folder" if path.is_dir() else f"the folder {path.parent} is not there, or not to be written to"
        raise InvalidInput(f"--per-job {path}: {why}; name another file", param="per-job")


def write_all(texts: Mapping[str, str], path: Path) -> list[Path]:
    """To `path`; of several policies, each to a file with its name before the suffix (out.allpass.csv)."""
    written = []
    for name, text in texts.items():
        one = path if len(texts) == 1 else path.with_name(f"{path.stem}.{name}{path.suffix}")
        try:
            one.write_text(text, encoding="utf-8")
        except OSError as error:
            raise InvalidInput(
                f"--per-job {one}: cannot be written ({error.strerror}); name another file", param="per-job"
            ) from None
        written.append(one)
    return written


def _csv(rows: Iterable[Iterable[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(rows)
    return text.getvalue()


def _seconds(ms: int) -> str:
    """`12` or `12.345`."""
    return f"{ms / 1000:.3f}".rstrip("0").rstrip(".")


def _or_empty(value: int | None) -> object:
    return "" if value is None else value
