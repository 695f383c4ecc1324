"""Play one row of the fault matrix, and judge it by what the company and the database say afterwards."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.fault_books import Books
from benchmarks.fault_ground import GRACE_S, ORPHAN_GRACE_S, STEPS, Ground, OverdueError, until
from benchmarks.fault_row import Moment, Row
from benchmarks.pair import sums_of

JOB_WITHIN_S = 400.0  # patience with a busy host; nothing that a row claims
STRUCK_WITHIN_S = 240.0
_CLOSE_LOOK_S = 0.03
_LATE_MARGIN_S = 1.0
_SWEEPS_S = 3.0  # in which what is old enough would be ended
_LONGER_STEPS = 200  # of a job that something is to happen to while it runs
_STEPS_THROUGH = 1_000  # of one that still runs when an outage is over
_ENDS = ("succeeded", "failed", "cancelled")
# How far the ledger may be from the bill, in seconds of each machine's price. Modal tells when a container ran. Vast.ai
# and Lambda do not, and RunPod tells no end, so that our looks stand for it, a crash makes us miss some, and Lambda
# counts started minutes.
_GAP_S: Mapping[str, float] = {"modal": 1.0, "vast": 15.0, "lambda": 60.0, "runpod": 15.0}
_GAP_OF_OWN_S = 3.0  # whole seconds, told by clusters and hosts


@dataclass
class Outcome:
    """What came of a row: it survived when there are no problems.

    `orphan_micros` is what machines of nobody cost in all, `late_orphan_micros` what they cost after the grace time.
    """

    row: Row
    finished: bool = False
    duplicates: int = 0
    orphan_micros: int = 0
    late_orphan_micros: int = 0
    billed_micros: int = 0
    gap_micros: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)

    @property
    def survived(self) -> bool:
        return not self.problems


async def play(ground: Ground, row: Row) -> Outcome:
    """One job, one fault, and what holds when it is over. The ground is left as it was found."""
    outcome, books, begun = Outcome(row), ground.books[row.company], time.monotonic()
    await books.settle_in()
    had = await ground.give_settings(row.settings) if row.settings else {}
    neighbour = await ground.move_in(row.company) if row.neighbour else None
    known = {machine["ref"] for machine in await books.machines()}
    spent_before = await books.orphan_micros(await ground.owned(row.company))
    began_ms = time.time_ns() // 1_000_000
    job_id = ""
    try:
        job_id = await _disturbed_job(ground, books, row, known)
        await _is_over(ground, outcome, job_id)
    except OverdueError as error:
        outcome.problems.append(str(error))
    await _leaves_nothing(ground, books, outcome, known, spent_before)
    await _judge(ground, books, outcome, job_id, known, began_ms)
    if neighbour is not None:
        await _outlived(books, outcome, neighbour)
    if had:
        await ground.give_settings(had)
    outcome.seconds = time.monotonic() - begun
    return outcome


async def _outlived(books: Books, outcome: Outcome, neighbour: str) -> None:
    """Another installation's machine is still there, long after it was old enough to be ended; only now it goes."""
    (machine,) = [each for each in await books.machines() if each["ref"] == neighbour]
    left_s = ORPHAN_GRACE_S + _SWEEPS_S - (time.time() - machine["created_ms"] / 1000)
    await asyncio.sleep(max(0.0, left_s))
    if neighbour not in {each["ref"] for each in await books.live()}:
        outcome.problems.append(f"{neighbour} of another installation was ended")
    else:
        await books.act(neighbour, "end", {})


# -- what happens


async def _disturbed_job(ground: Ground, books: Books, row: Row, known: set[str]) -> str:
    """Submit, let the fault strike, and crash if the row says so. Returns the job's id."""
    await books.switch(row.switches)
    if row.spot:
        await until(f"{row.key}: bids are listed", ground.lists_bids, STRUCK_WITHIN_S)
    if row.moment is Moment.SUBMIT:
        await _set_up(books, row)
    image = f"allpass/new:{time.time_ns()}" if row.new_image else None
    job_id = await ground.submit(row.company, steps=_steps_of(row), image=image, spot=row.spot, nodes=row.nodes)
    machine = ""
    if row.moment is not Moment.SUBMIT:
        machine = await _machine(ground, books, job_id, known, running=row.moment is Moment.RUNNING)
        await _set_up(books, row)
        if row.action is not None:
            await books.act(machine, *row.action)
    if row.faults:
        await until(
            f"{row.key}: its first strike", lambda: _has_struck(books, row), STRUCK_WITHIN_S, every_s=_CLOSE_LOOK_S
        )
    struck_at = time.monotonic()
    if row.outage is not None:
        await _live_through(ground, books, row, machine)
    elif row.crash:
        await ground.crash()
    if row.late_ms:  # what comes of it is judged once it has come, however soon the job is over
        await asyncio.sleep(struck_at + row.late_ms / 1000 + _LATE_MARGIN_S - time.monotonic())
    return job_id


def _steps_of(row: Row) -> int:
    if row.stays:
        return _STEPS_THROUGH
    return STEPS if row.action is None and row.outage is None else _LONGER_STEPS


async def _live_through(ground: Ground, books: Books, row: Row, machine: str) -> None:
    """The outage, with a crash in its middle if the row says so."""
    outage = row.outage
    assert outage is not None
    struck = list(ground.books.values()) if outage.everywhere else [books]
    had: Mapping[str, str | None] = {}
    for each in struck:
        await each.switch(outage.switches)
        for fault in outage.faults:
            await each.fault(fault)
    if outage.paused:
        ground.stand_still(outage.paused)
    try:
        if outage.settings:
            had = await ground.give_settings(outage.settings)
        await asyncio.sleep(outage.lasts_s / 2)
        if row.crash:
            await ground.crash()
        await asyncio.sleep(outage.lasts_s / 2)
        if outage.faults and await books.strikes_left() == sum(int(fault["count"]) for fault in outage.faults):
            raise OverdueError("the outage struck nothing")
    finally:
        if outage.paused:
            ground.go_on(outage.paused)
        for each in struck:
            await each.settle_in()
        if had:
            await ground.give_settings(had)
    if outage.then is not None:
        await books.act(machine, *outage.then)


async def _set_up(books: Books, row: Row) -> None:
    for fault in row.faults:
        await books.fault(fault)


async def _machine(ground: Ground, books: Books, job_id: str, known: set[str], *, running: bool) -> str:
    """The job's machine, once there is one (`running`: once the job's code runs there)."""

    async def look() -> str | None:
        if running and (await _job(ground, job_id))["state"] != "running":
            return None
        return next((each["ref"] for each in await books.live() if each["ref"] not in known), None)

    return await until(f"a machine for {job_id}", look, JOB_WITHIN_S)


async def _is_over(ground: Ground, outcome: Outcome, job_id: str) -> None:
    async def look() -> Any:
        job = await _job(ground, job_id)
        return job if job["state"] in _ENDS else None

    job = await until(f"the end of {job_id}", look, JOB_WITHIN_S)
    outcome.finished = job["state"] == "succeeded"
    if not outcome.finished:
        outcome.problems.append(f"the job {job['state']}: {job['end_reason']} {job['end_message']}")


async def _leaves_nothing(ground: Ground, books: Books, outcome: Outcome, known: set[str], spent_before: int) -> None:
    """All machines go within the grace time, the orphans among them; every end is confirmed, every meter closed."""
    company = outcome.row.company

    async def ours() -> list[Any]:
        return [each for each in await books.live() if each["ref"] not in ground.neighbours]

    async def gone() -> bool:
        return not await ours()

    try:
        await until("the end of the last machine", gone, GRACE_S)
    except OverdueError as error:
        left = [f"{each['ref']} ({each['state']}, of {each['label']})" for each in await ours()]
        outcome.problems.append(f"{error}: {', '.join(left)}")
    at_grace = await books.orphan_micros(await ground.owned(company))
    try:
        await until("the last confirmed end", lambda: _settled(ground, company), GRACE_S)
    except OverdueError as error:
        outcome.problems.append(f"{error}: {await _unsettled(ground, company)}")
    spent = await books.orphan_micros(await ground.owned(company))
    outcome.orphan_micros = spent - spent_before
    outcome.late_orphan_micros = max(0, spent - at_grace)
    if outcome.late_orphan_micros:
        outcome.problems.append(f"orphans cost {outcome.late_orphan_micros} micro-USD more after the grace time")
    for machine in await ours():
        await books.act(machine["ref"], "end", {})


async def _settled(ground: Ground, company: str) -> bool:
    return not await _unsettled(ground, company)


async def _unsettled(ground: Ground, company: str) -> list[str]:
    """Nodes that are not over, or whose bill is open, and operations that nobody has closed."""
    nodes = await ground.rows(
        "SELECT id, state FROM nodes WHERE provider = $1 AND (state NOT IN ('terminated', 'failed')"
        " OR NOT meter_closed)",
        company,
    )
    operations = await ground.rows(
        "SELECT node_id, kind, error_message FROM provider_operations WHERE provider = $1 AND state = 'pending'",
        company,
    )
    return [f"{row['id']} is {row['state']}" for row in nodes] + [
        f"{row['kind']} of {row['node_id']} is pending: {row['error_message']}" for row in operations
    ]


# -- what must hold


async def _judge(ground: Ground, books: Books, outcome: Outcome, job_id: str, known: set[str], began_ms: int) -> None:
    machines = [each for each in await books.machines() if each["ref"] not in known]
    doubles = list(machines_together(machines))
    outcome.duplicates = len(doubles)
    outcome.problems += doubles
    if outcome.row.faults and not await _has_struck(books, outcome.row):
        outcome.problems.append("the fault never struck")
    if outcome.row.stays and len(machines) != 1:
        outcome.problems.append(f"{len(machines)} machines were rented for a job that could have stayed on its first")
    if job_id:
        outcome.problems += [problem async for problem in _job_problems(ground, job_id)]
        outcome.problems += await _pair_problems(ground, outcome.row, job_id)
    await _compare_bill(ground, outcome, machines, began_ms)
    await books.settle_in()


async def _has_struck(books: Books, row: Row) -> bool:
    return await books.strikes_left() < row.strikes


def machines_together(machines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Pairs of machines of one node that both lived on after the grace time."""
    of_nodes = [each for each in machines if each["label"]]
    for one, other in itertools.combinations(of_nodes, 2):
        ends = [each["ended_ms"] or time.time_ns() // 1_000_000 for each in (one, other)]
        together_ms = min(ends) - max(one["created_ms"], other["created_ms"])
        if one["label"] == other["label"] and together_ms > GRACE_S * 1000:
            yield f"{one['ref']} and {other['ref']} of {one['label']} lived {together_ms} ms beside each other"


async def _job_problems(ground: Ground, job_id: str) -> AsyncIterator[str]:
    """Ended exactly once, at its last step; one run for each epoch; checkpoints of later epochs are of later steps."""
    job = await _job(ground, job_id)
    ends = Counter(row["kind"] for row in await ground.rows("SELECT kind FROM job_events WHERE job_id = $1", job_id))
    count = sum(ends[kind] for kind in _ENDS)
    if count != 1 and job["state"] in _ENDS:
        yield f"the job ended {count} times"
    if job["state"] == "succeeded" and job["step"] != job["total_steps"]:
        yield f"the job ended at step {job['step']} of {job['total_steps']}"
    epochs = [row["epoch"] for row in await ground.rows("SELECT epoch FROM run_jobs WHERE job_id = $1", job_id)]
    if len(set(epochs)) != len(epochs):
        yield f"two runs held one epoch: {sorted(epochs)}"
    committed = await ground.rows(
        "SELECT epoch, step FROM checkpoints WHERE job_id = $1 AND committed_ms IS NOT NULL ORDER BY committed_ms, id",
        job_id,
    )
    for earlier, later in itertools.pairwise(committed):
        if later["epoch"] < earlier["epoch"] or (later["epoch"] > earlier["epoch"] and later["step"] < earlier["step"]):
            yield f"epoch {later['epoch']} committed step {later['step']} after epoch {earlier['epoch']}"


async def _pair_problems(ground: Ground, row: Row, job_id: str) -> list[str]:
    """Each step of several machines has the number that it has undisturbed."""
    if row.nodes == 1:
        return []
    points = await asyncio.to_thread(lambda: list(ground.client.metrics(job_id)))
    found, wanted = {point.step: point.values["total"] for point in points}, sums_of(_steps_of(row))
    wrong = sorted(step for step in found.keys() | wanted.keys() if found.get(step) != wanted.get(step))
    return [f"steps {wrong[:5]} have other numbers than undisturbed"] if wrong else []


async def _compare_bill(ground: Ground, outcome: Outcome, machines: Sequence[Mapping[str, Any]], began_ms: int) -> None:
    """What we booked for each machine against what its company charges, within what can be known of it."""
    company = outcome.row.company
    booked = await ground.rows(
        "SELECT n.provider_ref AS ref, coalesce(sum(l.amount_micros), 0)::bigint AS micros FROM nodes n"
        " LEFT JOIN ledger l ON l.node_id = n.id WHERE n.provider = $1 AND n.requested_ms >= $2"
        " AND n.provider_ref IS NOT NULL GROUP BY n.provider_ref",
        company,
        began_ms,
    )
    ours = {row["ref"]: int(row["micros"]) for row in booked}
    for machine in machines:
        billed = int(machine["bill"]["amount_micros"])
        outcome.billed_micros += billed
        gap = abs(billed - ours.get(machine["ref"], 0))
        outcome.gap_micros += gap
        may_be = (
            _unknown_s(outcome.row) * (machine["price_micros_per_hour"] + machine["storage_micros_per_hour"]) / 3600
        )
        if gap > may_be + 1:
            told = f"{machine['ref']} is billed {billed}, the ledger has {ours.get(machine['ref'], 0)} micro-USD"
            outcome.problems.append(f"{told}; {may_be:.0f} is what may be unknown")


def _unknown_s(row: Row) -> float:
    """What ended while nobody could look is booked until somebody did, where its company does not tell when it was."""
    unseen = row.crash or row.outage is not None
    blind = row.traceless or (unseen and row.company != "modal")
    return max(_GAP_S.get(row.company, _GAP_OF_OWN_S), GRACE_S if blind else 0.0)


async def _job(ground: Ground, job_id: str) -> Any:
    return await ground.one("SELECT state, end_reason, end_message, step, total_steps FROM jobs WHERE id = $1", job_id)
