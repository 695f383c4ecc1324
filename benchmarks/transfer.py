"""Does training two jobs as one save steps, and is that known before? Real trainings, on this machine's processor.

    python -m benchmarks.transfer [--family 6] [--tasks 4] [--seeds 2] [--kinds paired,unpaired,unseen]

A small model is pretrained on the spot (`transfer_family`) and fine-tuned by the built-in recipe on the tasks of three
families: `paired`, where every task has a sister that is much like it; `unpaired`, where likeness is chance; and
`unseen`, of which the base model has never seen a row. Each task is trained alone, in turn and side by side with
every other of its family, all with the same hyper-parameters, until one held-out loss. Gain: steps alone over steps
merged, less one; between two evaluations steps are interpolated. The score is `transfer.alignment` of the tasks'
embeddings (`workers.trainer.fisher`, 64 rows each). A gain is predicted by `transfer.GainLine`, learned from the
merges of all other pairs of all families, as a service has one line for all. Steps alone, and the bounds of that
estimate, are predicted from held-out losses (`merging.spans`). The merger (`objective`, `fast`) then chooses, with
half as many GPUs as there are tasks, from predictions alone.

The bounds were fitted to families 1 to 5, and reported of family 6. `value` is the share of gains outside two seeds'
noise whose sign was predicted; beside it stands what always guessing the more frequent sign reaches. `holds` says
whether the claim does: the goal is met, guessing is beaten, and no task of any family ends worse than alone
(`worse_final`). The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import torch

from allpass.recipe.settings import Recipe
from app.core.merging.problem import Mode
from app.core.merging.transfer import alignment, score
from benchmarks import transfer_family
from benchmarks.transfer_family import KINDS, Family
from benchmarks.transfer_figures import TARGET, Measured, Merge, Signs, added, row_of, signs_of
from benchmarks.transfer_runs import Course, Ground

GOAL = 97.0


def main() -> None:
    """Measure, and print the result last."""
    options = _options()
    begun, worked = time.monotonic(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        rows = _measured(options, Path(folder))
    merges = [merge for measured in rows.values() for merge in measured.merges]
    signs = added([signs_of(measured, merges) for measured in rows.values()])
    figures = {kind: row_of(measured, merges) for kind, measured in rows.items()}
    spent = {
        "seconds": round(time.monotonic() - begun, 1),
        "processor_seconds": round(time.process_time() - worked, 1),
    }
    detail = {
        "majority_guess": signs.majority, "signs": [signs.right, signs.counted],
        "worse_final": {kind: row["worse_final"] for kind, row in figures.items()},
        "families": figures, **spent, **vars(options),
    }  # fmt: skip
    result = {"name": "transfer", "value": signs.accuracy, "goal": GOAL, "unit": "% of signs"}
    print(json.dumps({**result, "holds": holds(signs, figures), "detail": detail}))


def holds(signs: Signs, figures: dict[str, dict[str, Any]]) -> bool:
    """Whether merging does what is claimed: signs are foretold, better than by guessing, and no task ends worse."""
    if signs.accuracy is None or signs.majority is None:
        return False
    foretold = signs.accuracy >= GOAL and signs.accuracy > signs.majority
    return foretold and not any(row["worse_final"] for row in figures.values())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--family", type=int, default=6, help="seed of the base model and its tasks")
    parser.add_argument("--tasks", type=int, default=4, help="of each family")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"of families, of {', '.join(KINDS)}")
    parser.add_argument("--steps", type=int, default=160, help="of a training that does not reach its target")
    parser.add_argument("--rows", type=int, default=512, help="training rows of a task")
    parser.add_argument("--pretraining", type=int, default=600, help="steps of the base model")
    options = parser.parse_args()
    options.kinds = options.kinds.split(",")
    for kind in options.kinds:
        if kind not in KINDS:
            parser.error(f"--kinds: {kind!r} is no family; give some of {', '.join(KINDS)}")
    return options


def _measured(options: argparse.Namespace, folder: Path) -> dict[str, Measured]:
    torch.set_num_threads(1)
    base, families = transfer_family.families(options.family, options.tasks)
    loss = transfer_family.pretrain(folder / "base", base, steps=options.pretraining, seed=options.family)
    print(f"base model: loss {loss:.3f}", flush=True)
    return {kind: _measured_family(options, folder, kind, families[kind]) for kind in options.kinds}


def _measured_family(options: argparse.Namespace, folder: Path, kind: str, own: Family) -> Measured:
    data = {
        name: transfer_family.write_rows(folder / kind / name, own, name, options.rows, 32, options.family)
        for name in own.tasks
    }
    ground = Ground(_recipe(folder / "base", options.steps), data)
    names, seeds = tuple(own.tasks), tuple(range(options.seeds))
    alone, after, together = {}, {}, {}
    for seed in seeds:
        alone |= {(name, seed): ground.alone(name, seed) for name in names}
        after |= {(*pair, seed): ground.after(*pair, seed) for pair in permutations(names, 2)}
        pairs = [pair for pair in permutations(names, 2) if pair[0] < pair[1]]
        together |= {(*pair, seed): ground.together(*pair, seed) for pair in pairs}
        print(f"{kind}, seed {seed}: alone, in turn, side by side", flush=True)
    merges = _merges(ground, names, seeds, alone, after, together)
    return Measured(names, seeds, alone, after, together, merges)


def _merges(
    ground: Ground,
    names: tuple[str, ...],
    seeds: tuple[int, ...],
    alone: dict[tuple[str, int], Course],
    after: dict[tuple[str, str, int], Course],
    together: dict[tuple[str, str, int], tuple[Course, Course, bool]],
) -> tuple[Merge, ...]:
    embeddings = {name: ground.embedding(name, 0) for name in names}
    merges = []
    for one, other in permutations(names, 2):
        seen = {
            "score": alignment(np.array(embeddings[one].pull), np.array(embeddings[other].pull)),
            "fisher": score(np.array(embeddings[one].fisher), np.array(embeddings[other].fisher)),
        }
        apart = [(alone[one, seed].steps, alone[other, seed].steps) for seed in seeds]
        gains = tuple(apart[seed][1] / after[one, other, seed].steps - 1 for seed in seeds)
        merges.append(Merge(Mode.FIRST_BEFORE_SECOND, one, other, gains=gains, **seen))
        if one < other:
            gains = tuple(sum(apart[seed]) / _steps(together[one, other, seed], apart[seed]) - 1 for seed in seeds)
            merges.append(Merge(Mode.TOGETHER, one, other, gains=gains, **seen))
    return tuple(merges)


def _recipe(base: Path, steps: int) -> Recipe:
    return Recipe(
        model=str(base), steps=steps, batch_size=16, micro_batch=16, learning_rate=1e-3, schedule="constant",
        warmup=0.05, precision="fp32", lora_rank=8, lora_dropout=0.0, evaluate_every=2, target={"eval_loss": TARGET},
        sequence_length=64,
    )  # fmt: skip


def _steps(courses: tuple[Course, Course, bool], apart: tuple[float, float]) -> float:
    """Of two side by side. Those that were split have done theirs in vain, and train alone after it."""
    first, second, split = courses
    if split:
        return len(first.losses) + len(second.losses) + sum(apart)
    return first.steps + second.steps


if __name__ == "__main__":
    main()
