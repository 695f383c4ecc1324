"""What a job began with it goes on with, on whatever machine and under whatever version: the edition of the trainer's
arithmetic, the 16-bit numbers that it computes in, and how its steps are cut into what goes through the model at once.

The edition travels with the rows and in each checkpoint, not among the parameters: a trainer from before editions, on a
machine that outlived an upgrade or after a release was rolled back, trains such a job in its own way rather than refuse
it. Cards from before Ampere (T4, V100) compute bf16 by way of float32, several times slower than fp16. What nobody has
chosen of a step's cut comes with each run's parameters, as it was planned for the run's GPU.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from allpass.recipe.settings import EDITION, Recipe
from allpass.training.elastic.seat import Seat
from allpass.training.session import Session
from allpass.training.spread_state import names_in
from workers.trainer.apart import pair_in
from workers.trainer.making_room import left_open, words
from workers.trainer.rows import Data

_FIRST = 1  # of trainers that do not say one


@dataclass(frozen=True)
class _Told:
    """The state of one job's loop, or that of two who are trained as one."""

    data: Mapping[str, Any]
    is_pairs: bool


def settled(recipe: Recipe, data: Data, session: Session, *, processes: int = 1) -> Recipe:
    """The recipe as this job began it, in words where it is not what it says by itself. `processes`: how many share a
    step, each of which is to have a part of it where nobody has said how it is cut.

    Raises InvalidInput where it began in a way that this version does not know.
    """
    told = _told(session)
    state = None if told is None or told.is_pairs else told.data
    if told is None and recipe.micro_batch is None and processes > 1:
        each = max(1, recipe.batch_size // processes)
        recipe = replace(recipe, micro_batch=min(recipe.rows_at_once, each))
    recipe = _cut_as_begun(replace(recipe, edition=_edition(recipe, data, state)), told, left_open(session))
    if not recipe.follows_the_card:
        return recipe
    begun = None if state is None else state.get("numbers")  # not of older versions
    numbers = begun or ("bf16" if has_bf16() else "fp16")
    if begun == "bf16" and not has_bf16():
        print("training: goes on in bf16, which it began in and this GPU computes slowly", flush=True)
    if begun is None and numbers == "fp16":
        print("training: in fp16, as this GPU has no bf16 of its own", flush=True)
    return recipe if numbers == recipe.numbers else replace(recipe, precision=numbers)


def used(gpus: Sequence[str], recipe: Recipe, session: Session, seat: Seat | None = None) -> Sequence[str]:
    """Those of its machine's GPUs that a job trains on. Leaves the process where it was planned to be spread in a way
    that the recipe does not know, or its steps are one process's and it has several machines."""
    plan = session.plan()
    if plan is not None and plan.sharding not in ("none", "ddp", *(("fsdp",) if recipe.sharded else ())):
        sys.exit(
            f"error: this run is laid out on {plan.gpus} GPUs with {plan.sharding}, and the recipe keeps the whole "
            "model on each (ddp): choose a GPU with more memory, --sharded, --method lora or qlora, or fewer tokens "
            "(--seq)"
        )
    if seat is not None and not recipe.draws_by_part:
        sys.exit(
            f"error: this training began in edition {recipe.edition}, whose steps are one process's: it does not go on "
            "on several machines. Leave out --nodes, or begin anew without --from-checkpoint"
        )
    if len(gpus) > 1 and not recipe.draws_by_part:
        print(
            f"training: it began in edition {recipe.edition}, whose steps are one process's: it goes on so, on the "
            f"first of {len(gpus)} GPUs",
            flush=True,
        )
        return gpus[:1]
    return gpus


def begins(recipe: Recipe, data: Data) -> Recipe:
    """The recipe of a job that nothing was trained of yet. Rows packed by a newer version are trained as this one
    can."""
    return replace(recipe, edition=min(data.edition or recipe.edition, EDITION))


def has_bf16() -> bool:
    """Whether bf16 is computed as such. A processor has no other 16 bits that are any faster."""
    return not torch.cuda.is_available() or torch.cuda.is_bf16_supported(including_emulation=False)


def _edition(recipe: Recipe, data: Data, state: Mapping[str, Any] | None) -> int:
    if state is None:
        return begins(recipe, data).edition
    return int(state.get("edition", _FIRST))


def _cut_as_begun(recipe: Recipe, told: _Told | None, is_open: Collection[str]) -> Recipe:
    """In the words of a cut that is known. Parts of a step that are summed in another order are others in their last
    bits: what of it `is_open` is kept wherever it needs no more memory than what was planned for this GPU."""
    planned = replace(recipe, micro_batch=recipe.rows_at_once, checkpointing=bool(recipe.checkpointing))
    begun = None if told is None else told.data.get("cut")  # not of older versions, which took what they were told
    if begun is None or begun["micro_batch"] > recipe.batch_size:  # of another job, whose steps were larger
        return planned
    kept = replace(planned, **{name: begun[name] for name in is_open})
    if kept == planned:
        return kept
    if kept.rows_at_once <= planned.rows_at_once and (kept.checkpointing or not planned.checkpointing):
        print(f"training: goes on with {words(kept)}, as it began", flush=True)
        return kept
    print(
        f"training: this GPU is not sure to hold {words(kept)}, with which this training began: it goes on with "
        f"{words(planned)}, and sums may differ in their last bits",
        flush=True,
    )
    return planned


def _told(session: Session) -> _Told | None:
    """What the checkpoint that this job goes on from says; None where it begins anew."""
    found = session.resume()
    if found is None or found.learned:
        return None
    is_pairs = pair_in(found.path) is not None
    try:
        name = names_in(found.path)[0]
    except ValueError:
        return None  # whoever resumes says what is missing
    told = json.loads((found.path / f"{name}.json").read_text(encoding="utf-8"))
    data = told.get("data")
    return _Told(data if isinstance(data, dict) else {}, is_pairs)
