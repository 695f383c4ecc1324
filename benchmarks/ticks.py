"""What it takes to keep a decision so that it can be taken again.

    python -m benchmarks.ticks [--jobs 1000] [--nodes 50] [--offers 400] [--ticks 300]

Jobs with deadlines of their own train, and prices move. Every decision of the default policy is recorded. `value` is
how many times smaller a record is than what was kept of a decision before (the snapshot and the plan as JSON), over
the whole run. Beside it: bytes of each, and how long recording and judging take compared with deciding. The last line
is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from dataclasses import replace

from app.core import codec
from app.core.board import Board
from app.core.judging import sound_part
from app.core.model.job import JobState
from app.core.model.money import Money
from app.core.model.plan import ActionKind
from app.core.model.snapshot import JobView, Snapshot
from app.core.policies import policy_named
from app.core.policy import PolicyConfig, PolicyState
from app.core.recording import RecordedDecision, Recorder
from benchmarks.decide import OFFERS, SERVERLESS, crowded

GOAL = 20.0
_TICK_MS = 10_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, usual in (("jobs", 1_000), ("nodes", 50), ("offers", 400), ("ticks", 300)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    options = parser.parse_args()
    chance = random.Random(7)
    seen = _world(options.jobs, options.nodes, options.offers, chance)
    config = PolicyConfig(frozenset(ActionKind), 300_000, SERVERLESS, options.nodes, 0)
    policy, state, recorder = policy_named("allpass"), PolicyState(), Recorder()
    before, after, shared = 0, 0, dict[str, int]()
    times: dict[str, list[float]] = {"decide": [], "judge": [], "record": []}
    for _ in range(options.ticks):
        seen = _later(seen, chance)
        began = time.perf_counter()
        plan, next_state = policy.decide(Board.of(seen), state, config)
        decided = time.perf_counter()
        sound_part(seen, plan, config)
        judged = time.perf_counter()
        record = recorder.record(RecordedDecision(seen, state, config, plan))
        done = time.perf_counter()
        for name, took in (("decide", decided - began), ("judge", judged - decided), ("record", done - judged)):
            times[name].append(1e3 * took)
        before += len(json.dumps([codec.encode(seen), codec.encode(plan)], separators=(",", ":")))
        after += len(record.body)
        shared[record.offers_sha256] = len(record.offers)
        state = next_state
    after += sum(shared.values())
    detail = {
        "bytes_before": before // options.ticks,
        "bytes_now": after // options.ticks,
        **{f"{name}_ms": round(statistics.median(took), 2) for name, took in times.items()},
        "record_worst_ms": round(max(times["record"]), 1),
        "judge_share_of_decide": round(statistics.median(times["judge"]) / statistics.median(times["decide"]), 3),
        **vars(options),
    }
    print(
        json.dumps({"name": "ticks", "value": before / after, "goal": GOAL, "unit": "times smaller", "detail": detail})
    )


def _world(jobs: int, nodes: int, offers: int, chance: random.Random) -> Snapshot:
    seen = crowded(jobs, nodes)
    market = tuple(
        replace(OFFERS[number % 3], offer_id=f"{chance.getrandbits(64):x}", price_per_hour=_price(chance))
        for number in range(offers)
    )
    own = tuple(replace(job, deadline_ms=job.deadline_ms + chance.randrange(10**7)) for job in seen.jobs)
    return replace(seen, jobs=own, offers=tuple(sorted(market, key=lambda offer: offer.key)))


def _price(chance: random.Random) -> Money:
    return Money(chance.randrange(100_000, 4_000_000))


def _later(seen: Snapshot, chance: random.Random) -> Snapshot:
    """A tick later: running jobs have trained, and every sixth time some prices are others."""
    jobs = tuple(_trained(job, chance) if job.state == JobState.RUNNING else job for job in seen.jobs)
    offers = seen.offers
    if not chance.randrange(6):
        offers = tuple(replace(o, price_per_hour=_price(chance)) if not chance.randrange(20) else o for o in offers)
    return replace(seen, now_ms=seen.now_ms + _TICK_MS, jobs=jobs, offers=offers)


def _trained(job: JobView, chance: random.Random) -> JobView:
    return replace(
        job,
        step=job.step + chance.randrange(1, 20),
        done_ms=job.done_ms + _TICK_MS,
        spent=Money(job.spent.micros + chance.randrange(1_000, 6_000)),
        row_version=job.row_version + chance.randrange(2),
    )


if __name__ == "__main__":
    main()
