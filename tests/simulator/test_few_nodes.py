"""At the limit of nodes: jobs that were taken off serverless to wait stay off, and their deadlines are kept in mind.

As F rose, all that waited went back, and left again at its next fall: 250 jobs like Philly's with one node to rent made
4,256 moves, one of them 97 of its own, and cost $1,590 where serverless alone costs $2,415.
"""

from __future__ import annotations

from collections import Counter

import pytest

from app.core.model.node import Tier
from app.core.model.plan import ActionKind
from app.simulator.options import Options
from app.simulator.running import simulate
from app.simulator.traces.generating import generate
from tests.simulator.scenarios import Seen, config, market, task
from tests.simulator.scenarios import simulate as played


@pytest.mark.parametrize(("like", "most_moves"), [("philly", 250), ("seren", 60)])
def test_jobs_that_wait_for_the_only_node_do_not_go_to_and_fro(like: str, most_moves: int) -> None:
    """No more moves than jobs, and clearly cheaper than serverless alone."""
    found = simulate(generate(like, 250, seed=1), ["allpass", "modal-only"], Options(serverful_limit=1), range(2))
    ours, alone = found["policies"]["allpass"], found["policies"]["modal-only"]
    assert ours["moves"] < most_moves
    assert ours["cost_usd"] < 0.7 * alone["cost_usd"]
    assert ours["deadline_miss_share"] < alone["deadline_miss_share"] + 0.06


@pytest.mark.parametrize("seed", range(3))
def test_a_job_is_taken_off_serverless_a_few_times_at_most(seed: int) -> None:
    """Each time it has to be able to wait for half of what it has left: with every return that is a third of before."""
    hours = [2 + (seed * 7 + place * 5) % 17 for place in range(12)]
    tasks = [task(f"j{place}", 3_600 * work, due_s=3_600 * work * 3) for place, work in enumerate(hours)]
    seen = played("allpass", *tasks, on=market(Tier.SERVERLESS, Tier.MARKETPLACE), using=config(serverful_limit=1))
    times = Counter(job_id for job_id in demoted(seen))
    assert times, "nobody was taken off serverless: the case shows nothing"
    assert max(times.values()) <= 4
    assert not any(one.missed for one in seen.result.outcomes)


def demoted(seen: Seen) -> list[str]:
    """The jobs that plans took off their place, each time it happened."""
    run_jobs = {run.run_id: run.job_ids for snapshot, _, _ in seen.snapshots for run in snapshot.runs}
    actions = [action for _, _, plan in seen.snapshots for action in plan.actions]
    return [job_id for one in actions if one.kind == ActionKind.DEMOTE for job_id in run_jobs[one.run_id]]
