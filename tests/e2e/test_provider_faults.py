"""A sample of the fault matrix of `benchmarks.faults`, and the road of a job over the emulated companies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from app.stack.supervisor import Stack
from benchmarks.fault_books import CompanyBooks
from benchmarks.fault_ground import Ground, ground, started, until
from benchmarks.fault_play import JOB_WITHIN_S, Outcome, play
from benchmarks.fault_rows import COMPANIES, PLACES, matrix
from tests.folders import open_to_all

pytestmark = [pytest.mark.stack, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]

ROWS = (
    "modal create: reply lost after the effect + crash",
    "modal own: the build of an image is cut off",
    "modal own: down after a lost create",
    "vast terminate: reply lost after the effect",
    "vast own: another machine than was rented: another card",
    "vast own: the listing is empty for minutes",
    "lambda create: error after the effect",
    "lambda own: a GPU falls off the bus",
    "lambda own: insufficient capacity after all",
    "runpod create: reply lost after the effect",
    *(f"{company} own: another installation on the account" for company in COMPANIES if company != "kubernetes"),
    "kubernetes own: its pod is preempted",
    "joined own: its host's program is killed, and comes back",
    "lambda own: of two machines one is preempted, and still listed",
    "kubernetes own: of two machines one pod is evicted",
)
MORE_ROWS = (
    "modal own: INTERNAL_FAILURE, exit code 0",
    "modal own: an image is built for a while",
    "modal own: another machine than was rented: an old driver",
    "vast own: an error that names a contract",
    "vast own: a GPU falls off the bus",
    "lambda own: another machine than was rented: a GPU computes wrongly",
    "lambda own: down for minutes",
    "runpod own: a pod that never exists",
    "lambda own: of two machines one has no capacity after all",
    "kubernetes own: of two machines one is refused by an admission webhook",
    "joined own: of two machines one is killed",
)  # of a sweep
LONG_STEPS = 320  # longer than a job may stay serverless here


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with open_to_all() as folder, started(folder) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(stack: Stack) -> AsyncIterator[Ground]:
    async with ground(stack) as running:
        yield running


async def test_rows_of_the_fault_matrix_are_survived(place: Ground, sweep: bool) -> None:
    """Some rows of each company, the companies beside each other, with a crash: every job ends once, and nothing is
    left."""
    rows, before = {row.key: row for row in matrix()}, place.crashes
    keys = (*ROWS, *MORE_ROWS) if sweep else ROWS

    async def of_company(company: str) -> list[Outcome]:
        return [await play(place, rows[key]) for key in keys if rows[key].company == company]

    played = await asyncio.gather(*(of_company(company) for company in PLACES))
    outcomes = [outcome for own in played for outcome in own]
    assert {outcome.row.key: outcome.problems for outcome in outcomes} == {key: [] for key in keys}
    assert all(outcome.finished and outcome.billed_micros for outcome in outcomes)
    assert place.crashes == before + 1


async def test_a_job_goes_from_modal_to_vast_and_without_a_market_to_lambda(place: Ground) -> None:
    """The job starts on Modal and ends on Vast.ai, and on Lambda when the marketplace is empty: each step once."""
    await _company(place, "lambda").market(supply={"gpu_1x_a100_sxm4": 8})
    first = await place.submit(None, steps=LONG_STEPS)
    assert await _road(place, first) == ["modal", "vast"]

    await _company(place, "vast").market(empty=True)
    gone = "SELECT 1 WHERE NOT EXISTS (SELECT FROM offers WHERE provider = 'vast')"
    await until("an empty market", lambda: place.rows(gone), JOB_WITHIN_S)
    second = await place.submit(None, steps=LONG_STEPS)
    assert await _road(place, second) == ["modal", "lambda"]


def _company(place: Ground, name: str) -> CompanyBooks:
    books = place.books[name]
    assert isinstance(books, CompanyBooks)
    return books


async def _road(place: Ground, job_id: str) -> list[str]:
    """Where the job was, from its first company to the one where it succeeded."""

    async def look() -> Any:
        rows = await place.rows("SELECT state, step FROM jobs WHERE id = $1", job_id)
        return rows[0] if rows[0]["state"] in ("succeeded", "failed", "cancelled") else None

    job = await until(f"the end of {job_id}", look, JOB_WITHIN_S)
    assert (job["state"], job["step"]) == ("succeeded", LONG_STEPS)
    points = await asyncio.to_thread(lambda: list(place.client.metrics(job_id)))
    assert [point.step for point in points] == list(range(1, LONG_STEPS + 1))
    timeline = await asyncio.to_thread(place.client.timeline, job_id)
    assert 0 < (timeline.stays[-1].resumed_from_step or 0) < LONG_STEPS
    return [stay.provider for stay in timeline.stays]
