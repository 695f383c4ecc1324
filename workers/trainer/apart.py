"""A job by itself again, after it was trained with another one: from the best state that it had there."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from allpass.training.torch_state import load_tree, load_weights
from workers.trainer.updating import Update

PAIR_NAME = "pair.json"  # in a checkpoint of two jobs: the run's step, the jobs in their order, and who had left


def pair_in(folder: Path) -> dict[str, Any] | None:
    """What a checkpoint says of the pair whose state it is; None for one of a single job."""
    try:
        found: dict[str, Any] = json.loads((folder / PAIR_NAME).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return found


def state_in(folder: Path, job_id: str) -> dict[str, Any] | None:
    """What a `Loop` of this job goes on from, out of a checkpoint of two; None where it was never measured there, and
    begins anew. Raises ValueError where the job is neither of the two."""
    jobs = (pair_in(folder) or {"jobs": []})["jobs"]
    if job_id not in jobs:
        raise ValueError("the checkpoint is one of two other jobs")
    side = load_tree(folder)["data"][("first", "second")[jobs.index(job_id)]]
    if side["progress"]["step"] == 0:
        return None
    return {**side, "progress": parted(side["progress"]), "told": dict(side["progress"]["metrics"])}


def parted(progress: Mapping[str, Any]) -> dict[str, Any]:
    """The progress of a job that goes on from its best state."""
    return {**progress, "evaluated_step": progress["step"], "without_gain": 0, "ended": None}


def begin_again(model: Any, best: Mapping[str, Any], step: int, update: Update, seed: int) -> None:
    """Give `model` its best weights of `step`, with a new optimizer at that place in the schedule. What is random from
    here on follows from the seed, in this process as in any other."""
    load_weights(model, best)
    update.begin_at(step)
    seed_all(seed + step)


def seed_all(seed: int) -> None:
    random.seed(seed)
    torch.manual_seed(seed)
