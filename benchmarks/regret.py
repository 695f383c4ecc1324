"""G28: the worst case found in which `allpass` is dearer than a simple policy that is no worse otherwise.

    python -m benchmarks.regret [--cases 60] [--first 0] [--world measured]

First the kinds of workload in which it was found to fail, 200 generated jobs each: several GPUs per job, predictions
that are wrong or missing, one node, a marketplace of ten machines with a dearer company behind it, deadlines just
above the run time, machines that fail, GPUs of several speeds. Then cases drawn by `allpass simulate --search-regret`.
Policies that are compared: `app.simulator.regret.SIMPLE`; one that lets jobs wait clearly longer, or clearly more of
them be late, is no better choice. The value is the largest excess of cost in percent; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping

from app.cli.searching import as_words
from app.simulator.regret import Case, Regret, regret_of, search
from app.simulator.worlds.known import FRIENDLY, WORLDS

GOAL_PERCENT = 3.0
JOBS = 200
KINDS: Mapping[str, Mapping[str, str]] = {
    "several GPUs": {"gpus": "trace"},
    "too short predictions": {"knowledge": "submit:0.2,bias=0.003"},
    "predictions of other jobs": {"knowledge": "submit:0.2,wrong=0.3"},
    "no predictions": {"knowledge": "none"},
    "one node": {"serverful-limit": "1"},
    "ten machines, a dearer company": {"market.limits.marketplace": "10"},
    "deadlines of 1.03 run times": {"deadlines": "1.03-1.03"},
    "machines that fail in an hour": {"market.mean_life_s.marketplace": "3600"},
    "machines that fail in ten minutes": {"market.mean_life_s.marketplace": "600"},
    "moves of 5 s": {"move-seconds": "5"},
    "eight types of GPU": {"gpu-types": "several"},
    "eight types of GPU, no predictions": {"gpu-types": "several", "knowledge": "none"},
    "eight types of GPU, deadlines of 1-2 run times": {"gpu-types": "several", "deadlines": "1-2"},
    "half of the jobs bid": {"bids": "0.5", "move-seconds": "5"},
    "all jobs bid, deadlines of 1-2 run times": {"bids": "1", "deadlines": "1-2"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=60)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--world", choices=WORLDS, default=FRIENDLY.name)
    options = parser.parse_args()
    where = {} if options.world == FRIENDLY.name else {"world": options.world}
    rows = []
    for like in ("seren", "philly"):
        for kind, words in KINDS.items():
            found = regret_of(Case(like, JOBS, 0, JOBS, {**where, **words}))
            rows.append({"kind": f"{like}, {kind}", **as_words(found)})
            print(line(rows[-1]["kind"], found), flush=True)
    for found in search(range(options.first, options.first + options.cases), world=options.world):
        rows.append({"kind": "drawn", **as_words(found)})
        if found.excess:
            print(line(f"drawn, case {found.case.seed}", found), flush=True)
    value = 100 * max(row["excess"] for row in rows)
    detail = {"world": options.world, "rows": rows, "above": sum(100 * row["excess"] > GOAL_PERCENT for row in rows)}
    result = {"name": "regret", "value": value, "goal": GOAL_PERCENT, "unit": "percent", "detail": detail}
    print(json.dumps(result))


def line(kind: str, found: Regret) -> str:
    return f"{kind:56} {found.excess:6.1%}  {found.best or 'no simple policy is better'}"


if __name__ == "__main__":
    main()
