"""What runs use of their machines: kept by instant, under names that are ours, and apart from what jobs measure."""

from __future__ import annotations

from typing import Any

from app.db.runs.system import SampleRow
from app.db.tables import metric_points, system_samples
from app.services.reading.thin_samples import thin_samples
from tests.services.agents.conftest import Place, Stage

CPU, GPU = "system/cpu_percent", "system/gpu0/util_percent"


def report(place: Place, *samples: tuple[int, dict[str, Any]]) -> dict[str, Any]:
    return {**place.writer(), "samples": [{"at_ms": at_ms, "values": values} for at_ms, values in samples]}


async def test_samples_are_kept_by_instant_and_apart(stage: Stage) -> None:
    """The same report again changes nothing. Names that a run makes up, and numbers that are none, are left out."""
    place = await stage.running()
    body = report(place, (1000, {CPU: 50.0, "loss": 1.0, "system/gpu0/../x": 3.0}), (11_000, {CPU: -1.0, GPU: 97.0}))
    for _ in range(2):
        assert (await stage.post(place, "/system", body)).status_code == 204
    rows = await stage.rows(system_samples)
    assert sorted((row.at_ms, row.values) for row in rows) == [(1000, {CPU: 50.0}), (11_000, {GPU: 97.0})]
    assert await stage.rows(metric_points) == []


async def test_a_report_of_nothing_known_is_taken(stage: Stage) -> None:
    place = await stage.running()
    assert (await stage.post(place, "/system", report(place, (1, {"loss": 1.0})))).status_code == 204
    assert await stage.rows(system_samples) == []


def test_a_picture_has_means_of_shares_and_the_most_of_memory() -> None:
    rows = [SampleRow(at, {CPU: float(at % 2 * 100), "system/memory_bytes": float(at)}) for at in range(1000)]
    thinned = thin_samples(rows, 10)
    assert len(thinned) == 10
    assert [row.at_ms for row in thinned] == list(range(99, 1000, 100))
    assert {row.values[CPU] for row in thinned} == {50.0}
    assert [row.values["system/memory_bytes"] for row in thinned] == [float(at) for at in range(99, 1000, 100)]
    assert thin_samples(rows, 1000) == rows
    assert thin_samples([], 10) == []
