"""A job that stands by: how much of its lent GPUs is used, how soon it runs again, and whether the bill is exact.

    .venv/bin/python -m benchmarks.standby [--windows 8] [--least-s 60] [--most-s 120] [--seed 7]

A stack without any cloud and one host of a pool with two (emulated) GPUs; all else is real. A guaranteed job of both
GPUs trains; twelve spot jobs of another project, of one GPU and of 20 to 40 s each (drawn from the seed), wait behind
it and are followed by others, so that somebody always waits. In each window, whose length is drawn too, the job stands
by and is then called back. All times are those of the database's rows: when it left its GPUs, when other machines had
them (a run holds it), when it was called, when the last of these machines had ended, when its code ran again. Used is
what of the lent GPU-seconds a spot job's run holds, from the end of the lender's run to the call. The value is the
share of the lent GPU-seconds that was used. Its losses are those of a job that nobody has disturbed, or it stops with
an error; so it does where what is paid and what is rebated is not the price, to the micro-dollar. The last line is one
JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

import allpass
from app.stack.supervisor import Clouds, Stack, StackOptions
from benchmarks.pools import OwnHost

GOAL_USED, GOAL_FREE_S, GOAL_CALL_S = 0.95, 3.0, 13.0
GPUS, BACKLOG = 2, 12
PRICE_USD = 3.6  # of a GPU and hour: a thousand micro-dollars a second
_SCRIPT = Path(__file__).resolve().parents[1] / "examples" / "plain_loop.py"
_OWNER = {"steps": 1_000_000, "step_ms": 40, "seed": 21}
_LIMIT_S = 120.0
_WINDOWS = """
SELECT s.id, s.node_id, s.left_ms, s.called_ms, s.back_ms, s.rebate_parts,
  (SELECT max(o.ended_ms) FROM host_machines o, host_machines m WHERE m.node_id = s.node_id AND o.node_id <> s.node_id
     AND o.host_id = m.host_id AND o.gpu_indices && m.gpu_indices AND o.created_ms < s.called_ms) AS free_ms,
  (SELECT min(a.from_ms) FROM allocations a WHERE a.node_id = s.node_id AND a.from_ms >= s.left_ms) AS again_ms
FROM standbys s WHERE s.job_id = $1 AND s.back_ms IS NOT NULL ORDER BY s.asked_ms
"""
_HELD = """
SELECT a.from_ms, a.to_ms, r.running_ms, cardinality(a.gpu_indices) AS gpus
FROM allocations a JOIN runs r ON r.id = a.run_id
WHERE a.node_id <> $1 AND a.from_ms < $3 AND (a.to_ms IS NULL OR a.to_ms > $2)
"""
_BILL = """
SELECT coalesce(sum(amount_micros), 0) AS paid, coalesce(sum(discount_micros), 0) AS rebate FROM ledger
WHERE node_id = $1 AND payer = 'idle' AND from_ms >= $2 AND from_ms < $3
"""
_METER = "SELECT billed_from_ms, price_micros_per_hour FROM nodes WHERE id = $1"


@dataclass
class Windows:
    """Of each window. `held`, `ran`: of the lent GPU-seconds, those in which a spot job's run held a GPU, and in which
    its code ran."""

    lent_s: list[float] = field(default_factory=list)
    held_s: list[float] = field(default_factory=list)
    ran_s: list[float] = field(default_factory=list)
    after_free_s: list[float] = field(default_factory=list)
    after_call_s: list[float] = field(default_factory=list)
    placed_s: list[float] = field(default_factory=list)  # from when its GPUs were free until it had them
    rebate_micros: int = 0


class Backlog:
    """Spot jobs of another project: there are always some that wait."""

    def __init__(self, client: allpass.Client, chance: random.Random) -> None:
        self._app = allpass.build("spot", "bob", code=str(_SCRIPT), client=client)
        self._client, self._chance = client, chance

    def fill(self) -> None:
        """After the jobs that are over."""
        waiting = sum(1 for status in ("queued", "waiting") for _ in self._client.jobs(status=status))
        for _ in range(BACKLOG - waiting):
            steps = self._chance.randint(500, 1_000)
            self._app.run(
                template={"priority_class": "spot"},
                parameters={"steps": steps, "step_ms": 40, "seed": steps},
                soft_deadline="12hr",
            )


def play(folder: Path, lengths_s: Sequence[float], seed: int) -> Windows:
    stack = Stack(StackOptions(folder / "data", port=0, clouds=Clouds.NONE), tell=lambda _: None)
    stack.start()
    try:
        told = json.loads(stack.layout.client_file.read_text())
        with ExitStack() as opened:
            client = opened.enter_context(allpass.Client(told["url"], told["api_key"]))
            client.create_pool("lab", price_usd=PRICE_USD)
            opened.enter_context(OwnHost(folder / "one", client, "one", gpus=GPUS))
            others = client.create_project("others").key.key
            spot = Backlog(opened.enter_context(allpass.Client(told["url"], others)), random.Random(seed))
            owner = _stand_by(client, spot, lengths_s)
            return asyncio.run(_read(stack.database_url, owner.id))
    finally:
        stack.stop()


def _stand_by(client: allpass.Client, spot: Backlog, lengths_s: Sequence[float]) -> allpass.Job:
    app = allpass.build("owner", "ada", code=str(_SCRIPT), client=client)
    owner = app.run(template={"gpu": {"count": GPUS}}, parameters=_OWNER, soft_deadline="12hr")
    assert isinstance(owner, allpass.Job)
    _wait(lambda: (owner.info().step or 0) > 20, "the first steps")
    for number, length_s in enumerate(lengths_s, 1):
        spot.fill()
        owner.stand_by("6hr")
        _wait(lambda: owner.status() == "waiting", "its leave")
        ends_s = time.monotonic() + length_s
        while time.monotonic() < ends_s:
            time.sleep(min(5.0, max(0.0, ends_s - time.monotonic())))
            spot.fill()
        owner.end_standby()
        _wait(lambda: client.list_standbys(owner.id)[0].state == "over", "its return")
        print(f"window {number} of {len(lengths_s)}: {length_s:.0f} s", file=sys.stderr, flush=True)
    last = owner.info().step or 0
    _wait(lambda: (owner.info().step or 0) > last, "a further step")
    time.sleep(12)  # its meter is read every few seconds
    _check_losses(app, owner)
    return owner


def _check_losses(app: allpass.App, owner: allpass.Job) -> None:
    """Those of the same script in one piece, which runs in its place."""
    owner.cancel()
    _wait(lambda: owner.status() == "cancelled", "its end")
    losses = {point.step: point.values["loss"] for point in owner.metrics()}
    alone = app.run(
        template={"gpu": {"count": GPUS}},
        parameters={**_OWNER, "steps": max(losses), "step_ms": 0},
        soft_deadline="12hr",
    )
    assert isinstance(alone, allpass.Job)
    alone.wait(timeout=_LIMIT_S, poll_s=0.2)
    expected = {point.step: point.values["loss"] for point in alone.metrics()}
    if losses != expected:
        wrong = {step for step in losses.keys() | expected.keys() if losses.get(step) != expected.get(step)}
        sys.exit(f"{len(wrong)} of {len(expected)} losses differ from those of a job that nobody has disturbed")


async def _read(url: str, job_id: str) -> Windows:
    connection = await asyncpg.connect(url)
    found = Windows()
    try:
        for row in await connection.fetch(_WINDOWS, job_id):
            await _add(connection, row, found)
    finally:
        await connection.close()
    return found


async def _add(connection: Any, row: Any, found: Windows) -> None:
    left_ms, called_ms = row["left_ms"], row["called_ms"]
    held = await connection.fetch(_HELD, row["node_id"], left_ms, called_ms)
    found.lent_s.append(GPUS * (called_ms - left_ms) / 1000)
    found.held_s.append(sum(_within(one, one["from_ms"], left_ms, called_ms) for one in held))
    ran = [one for one in held if one["running_ms"] is not None]
    found.ran_s.append(sum(_within(one, one["running_ms"], left_ms, called_ms) for one in ran))
    free_ms = max(called_ms, row["free_ms"] or called_ms)
    found.after_free_s.append((row["back_ms"] - free_ms) / 1000)
    found.placed_s.append((row["again_ms"] - free_ms) / 1000)
    found.after_call_s.append((row["back_ms"] - called_ms) / 1000)
    bill = await connection.fetchrow(_BILL, row["node_id"], left_ms, row["again_ms"])
    meter = await connection.fetchrow(_METER, row["node_id"])
    full = _accrued(meter, row["again_ms"]) - _accrued(meter, left_ms)
    if bill["paid"] + bill["rebate"] != full:
        sys.exit(f"{bill['paid']} paid and {bill['rebate']} rebated are not {full} micro-dollars")
    if not 0 <= full * (1_000_000 - row["rebate_parts"]) // 1_000_000 - bill["paid"] + 1 <= 2:
        sys.exit(f"{bill['paid']} of {full} micro-dollars are paid at a rebate of {row['rebate_parts']} millionths")
    found.rebate_micros += int(bill["rebate"])


def _within(one: Any, since_ms: int, from_ms: int, to_ms: int) -> float:
    end_ms = to_ms if one["to_ms"] is None else min(to_ms, one["to_ms"])
    return float(one["gpus"]) * max(0, end_ms - max(from_ms, since_ms)) / 1000


def _accrued(meter: Any, at_ms: int) -> int:
    """What the machine has cost by then at the full price, in micro-dollars, half up."""
    return int((2 * meter["price_micros_per_hour"] * (at_ms - meter["billed_from_ms"]) + 3_600_000) // 7_200_000)


def _wait(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while not holds():
        if time.monotonic() > deadline:
            sys.exit(f"{what} did not come within {_LIMIT_S:g} s")
        time.sleep(0.1)


def _p95(values: Sequence[float]) -> float:
    return sorted(values)[max(0, -(-95 * len(values) // 100) - 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--least-s", type=float, default=60.0)
    parser.add_argument("--most-s", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    lengths_s = [chance.uniform(options.least_s, options.most_s) for _ in range(options.windows)]
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        found = play(Path(folder), lengths_s, options.seed)
    used, ran = sum(found.held_s) / sum(found.lent_s), sum(found.ran_s) / sum(found.lent_s)
    after_free_s, after_call_s = _p95(found.after_free_s), _p95(found.after_call_s)
    detail = {
        "windows": len(found.lent_s),
        "window_s_mean": round(statistics.mean(found.lent_s) / GPUS, 1),
        "lent_gpu_s": round(sum(found.lent_s), 1),
        "code_ran_share": round(ran, 4),
        "after_free_s_p95": round(after_free_s, 2),
        "after_free_s_mean": round(statistics.mean(found.after_free_s), 2),
        "after_call_s_p95": round(after_call_s, 2),
        "after_call_s_mean": round(statistics.mean(found.after_call_s), 2),
        "after_call_s": [round(one, 2) for one in found.after_call_s],
        "placed_s": [round(one, 2) for one in found.placed_s],
        "after_free_s": [round(one, 2) for one in found.after_free_s],
        "rebate_micros": found.rebate_micros,
        "seed": options.seed,
    }
    passed = used >= GOAL_USED and after_free_s <= GOAL_FREE_S and after_call_s <= GOAL_CALL_S
    told = {"name": "standby", "value": round(used, 4), "unit": "share", "goal": GOAL_USED, "passed": passed}
    print(json.dumps({**told, "detail": detail}))


if __name__ == "__main__":
    main()
