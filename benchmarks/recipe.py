"""The built-in recipe on forty cases: 20 published configurations at tiny width, on answers, conversations, tools and
pairs of answers.

    .venv/bin/python -m benchmarks.recipe
    .venv/bin/python -m benchmarks.recipe --only gpt2 --environments /path/to/.venv/clients

A case counts when it trains through the steps that were said, saves at each stop, ends bit for bit the same when it is
moved twice, and leaves an adapter that PEFT puts on the base and that has there the held-out loss which was measured.
`value` is the share of those that count.

`computed`: tokens that go through the model for each token that rows have, over all cases and of the worst one.
`joined`: cases whose rows are joined; the others' models do not tell them apart, and their rows are put in order.
`trl_loss_off`: how far losses are from those of TRL's trainer with the same settings, adapter and rows, in float32, as
a share of the loss (float32 itself is exact to 6e-8 of it).
`kept_of_trl`: bytes that a layer keeps for the way back, in bf16, against TRL under its autocast with the dropout of
its own command line, and against TRL without one (a processor keeps four bytes for each value that dropout looks at, a
GPU one: there the truth is between the two).
`logits_of_at_once`: the most bytes of logits and their like that there are at once while a step of a model with
SmolLM2-135M's vocabulary learns 2,032 tokens, against those where no chunks are made of them. `logits_bytes`: these.
What is held against TRL needs its environment (`./allpass test clients` makes it); without it that is null, and the
exit code is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import subprocess
import sys
import tarfile
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from allpass.recipe.packing import Packed, pack
from allpass.recipe.settings import EDITION, Recipe
from allpass.recipe.shapes import read_config
from benchmarks.recipe_cases import CONFIGS, Case, cases, make, rows
from benchmarks.recipe_logits import most_logits
from tests.training.recipes import Course
from tests.training.scripts import files_of
from workers.trainer import model as models
from workers.trainer import rows as read
from workers.trainer import tasks

GOAL, MOST_COMPUTED, MOST_KEPT, MOST_OFF, MOST_LOGITS = 1.0, 1.05, 0.6, 1e-6, 0.4
ROOT = Path(__file__).resolve().parents[1]
TRLS_DROPOUT = 0.05  # of its ModelConfig
_ALL_AT_ONCE = 2  # the last edition without chunks
EACH_ON_PAIRS = 5  # of so many models one is held against TRL on pairs, too
ENVIRONMENTS = Path(sys.prefix) / "clients"
SETTINGS: dict[str, Any] = {
    "batch_size": 16, "epochs": 2.0, "learning_rate": 5e-3, "precision": "fp32", "lora_rank": 4,
    "sequence_length": 256, "evaluate_every": 2,
}  # fmt: skip
AS_TRL: dict[str, Any] = {"schedule": "constant", "warmup": 0.0, "steps": 3, "batch_size": 8, "micro_batch": 8}
# Of a layer's bytes: as SmolLM2-135M is wide, four rows of 256 tokens.
WIDE = {"hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9, "num_key_value_heads": 3}


@dataclass(frozen=True)
class Ground:
    """A case's model and its rows, as a machine has them."""

    packed: Packed
    code: Path

    @classmethod
    def of(cls, folder: Path, base: str, data: list[dict[str, Any]], settings: dict[str, Any]) -> Ground:
        packed = pack({"model": base, **settings}, data, config=read_config(Path(base)))
        with tarfile.open(fileobj=io.BytesIO(packed.bundle.content)) as archive:
            archive.extractall(folder / "code", filter="data")
        return cls(packed, folder / "code")

    def course(self, folder: Path) -> Course:
        return Course(folder, self.code, self.packed.parameters)

    def loaded(self, **changes: Any) -> tuple[Any, Any]:
        """The task and the prepared model."""
        recipe = Recipe.of({**self.packed.recipe.parameters(), **changes})
        data = read.load(self.code)
        prepared = models.prepare(recipe, data.labels)
        return tasks.load(data, recipe, prepared), prepared


def measure(case: Case, folder: Path) -> dict[str, Any]:
    """What came of a case; `counts` where all of it is as it should be."""
    base = make(case.model, folder / "base")
    ground = Ground.of(folder, base, rows(case.kind), SETTINGS)
    told = ground.packed.template.training.steps
    whole = ground.course(folder / "whole").run()
    moved = ground.course(folder / "moved").run([1, 3])
    summary = whole.summary()
    task, _prepared = ground.loaded()
    steps = range(1, summary["last_step"] + 1)
    computed = sum(batch.ids.numel() for step in steps for batch in task.micro_batches(step))
    points = whole.points()
    found = {
        "trains": summary["metrics"]["eval_loss"] < held_out_loss(ground, base, None),
        "steps_as_said": summary["last_step"] == told == max(points),
        "moves_exactly": moved.points() == points and files_of(moved.output) == files_of(whole.output),
        "exports": abs(held_out_loss(ground, base, whole.output) - summary["metrics"]["eval_loss"]) < 1e-4,
    }
    return {
        "counts": all(found.values()), **found, "joined": task.joins_rows, "computed": computed,
        "learned": summary["tokens"],
    }  # fmt: skip


def held_out_loss(ground: Ground, base: str, output: Path | None) -> float:
    """Of the held-out rows, one by one and without anything of the trainer's but their tokens. `output`: None for the
    base by itself."""
    task, _prepared = ground.loaded()
    told = [_surprise(base, output, row) for row in task.held_out]
    if not ground.packed.recipe.learns_pairs:
        return sum(told) / sum(row.counted for row in task.held_out)
    gained = [_surprise(base, None, row) - one for row, one in zip(task.held_out, told, strict=True)]
    margins = [chosen - rejected for chosen, rejected in zip(gained[0::2], gained[1::2], strict=True)]
    return sum(math.log1p(math.exp(-ground.packed.recipe.beta * one)) for one in margins) / len(margins)


def _surprise(base: str, output: Path | None, row: Any) -> float:
    """What is learned of a row, in negative logarithms of its likelihood."""
    import torch

    with torch.no_grad():
        logits = _model(base, output)(input_ids=torch.tensor([row.ids])).logits[0, :-1].float()
    targets = torch.tensor(row.targets[1:])
    return float(torch.nn.functional.cross_entropy(logits, targets, ignore_index=-100, reduction="sum"))


@lru_cache(maxsize=2)
def _model(base: str, output: Path | None) -> Any:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(base).eval()
    return model if output is None else PeftModel.from_pretrained(model, output).eval()


class Trl:
    """Trainings that TRL is asked for, all in one process of its own."""

    def __init__(self, environments: Path, folder: Path) -> None:
        self._python = environments / "trl" / "bin" / "python"
        self._folder = folder
        self._asked: list[dict[str, Any]] = []

    def ask(self, ground: Ground, *, dropout: float = 0.0, **settings: Any) -> None:
        """The same training: its rows, and the adapter that ours begins with."""
        task, prepared = ground.loaded(lora_dropout=dropout)
        adapter = self._folder / f"adapter{len(self._asked)}"
        prepared.model.save_pretrained(adapter)
        if ground.packed.recipe.learns_pairs:
            self._ask_of_pairs(ground, adapter, **settings)
            return
        learned = [[int(one != -100) for one in row.targets] for row in task.stream.examples]
        data = [
            {"input_ids": list(row.ids), "completion_mask": mask}
            for row, mask in zip(task.stream.examples, learned, strict=True)
        ]
        parameters = ground.packed.recipe
        told = {"steps": parameters.steps, "learning_rate": parameters.rate, **settings}
        self._asked.append({"model": parameters.model, "adapter": str(adapter), "rows": data, "settings": told})

    def _ask_of_pairs(self, ground: Ground, adapter: Path, **settings: Any) -> None:
        """As text: which tokens are learned of it is TRL's to find out."""
        recipe = ground.packed.recipe
        told = {"steps": recipe.steps, "learning_rate": recipe.rate, "beta": recipe.beta, **settings}
        data = list(read.load(ground.code).train)
        self._asked.append({"model": recipe.model, "adapter": str(adapter), "rows": data, "settings": told})

    def told(self) -> list[dict[str, Any]] | None:
        """What came of them, in order; None where TRL is not there."""
        if not self._python.is_file():
            return None
        asked, told = self._folder / "asked.json", self._folder / "told.json"
        asked.write_text(json.dumps(self._asked))
        subprocess.run(
            [str(self._python), str(Path(__file__).with_name("recipe_trl.py")), str(asked), str(told)], check=True
        )
        found: list[dict[str, Any]] = json.loads(told.read_text())
        return found


def against_trl(
    environments: Path, folder: Path, names: list[str]
) -> tuple[dict[str, float] | None, tuple[float, float] | None]:
    """How far losses are off, by model and rows, and a layer's bytes as a share of TRL's with dropout and without."""
    trl = Trl(environments, folder)
    ours: dict[str, list[float]] = {}
    on_pairs = [(name, "pairs") for name in names[::EACH_ON_PAIRS]]
    for number, (name, kind) in enumerate([*((name, "sft") for name in names), *on_pairs]):
        place = folder / f"loss{number}"
        base = make(name, place / "base", dropout=False)
        data = short_pairs() if kind == "pairs" else rows(kind, 9)
        ground = Ground.of(place, base, data, {**SETTINGS, **AS_TRL})
        trl.ask(ground, bf16=False)
        points = ground.course(place / "course").run().points()
        ours[f"{name}, {kind}"] = [points[step]["loss"] for step in sorted(points)]
    own_bytes = []
    for layers in (1, 2):
        place = folder / f"bytes{layers}"
        base = make("HuggingFaceTB/SmolLM2-135M", place / "base", sizes={"num_hidden_layers": layers, **WIDE})
        text = [{"text": "x" * (254 - number)} for number in range(5)]
        settings = {
            **SETTINGS,
            **AS_TRL,
            "batch_size": 4,
            "micro_batch": 4,
            "steps": 1,
            "precision": "bf16",
            "lora_rank": 16,
        }
        ground = Ground.of(place, base, text, settings)
        own_bytes.append(kept(*ground.loaded()))
        for dropout in (TRLS_DROPOUT, 0.0):
            trl.ask(ground, dropout=dropout, bf16=True)
    told = trl.told()
    if told is None:
        return None, None
    off = {
        name: max(abs(one - other) / other for one, other in zip(losses, theirs["losses"], strict=True))
        for (name, losses), theirs in zip(ours.items(), told[: len(ours)], strict=True)
    }
    with_one, without_one, with_two, without_two = (one["kept_bytes"] for one in told[-4:])
    own = own_bytes[1] - own_bytes[0]
    return off, (own / (with_two - with_one), own / (without_two - without_one))


def short_pairs() -> list[dict[str, Any]]:
    """Of which losses can be compared in float32: that is exact to a share of an answer's log-likelihood, which grows
    with its length, and not to one of the loss, which does not."""
    return [{**row, "chosen": row["chosen"][:6], "rejected": row["rejected"][:6]} for row in rows("pairs", 9)]


def kept(task: Any, prepared: Any) -> int:
    """Bytes that the way back of the first micro-batch keeps, each storage once and none of the model's own."""
    import torch

    own = {one.untyped_storage().data_ptr() for one in prepared.model.parameters()}
    found: dict[int, Any] = {}

    def keep(one: Any) -> Any:
        found[one.untyped_storage().data_ptr()] = one.untyped_storage()
        return one

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda one: one), prepared.computing():
        loss = task.loss(prepared.model, task.micro_batches(1)[0])
    size: int = sum(one.nbytes() for place, one in found.items() if place not in own)
    del loss
    return size


def logits_by_chunks(folder: Path) -> tuple[int, int]:
    """The most bytes of logits at once: by chunks, and of all that is learned."""
    sizes = {"num_hidden_layers": 1, "vocab_size": 49152, **WIDE}
    base = make("HuggingFaceTB/SmolLM2-135M", folder / "base", sizes=sizes)
    text = [{"text": f"{number}" + "x" * 253} for number in range(9)]
    ground = Ground.of(folder, base, text, {**SETTINGS, **AS_TRL, "steps": 1})
    by_chunks, at_once = (most_logits(*ground.loaded(edition=edition)) for edition in (EDITION, _ALL_AT_ONCE))
    return by_chunks, at_once


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _tried(case: Case, folder: Path) -> dict[str, Any]:
    """A case that raises is one that does not count."""
    try:
        with _quietly():
            return measure(case, folder)
    except Exception as error:  # of whatever library
        return {"counts": False, "why": f"{type(error).__name__}: {error}"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="models with this in their name")
    parser.add_argument("--environments", type=Path, default=ENVIRONMENTS, help="where TRL's is")
    given = parser.parse_args()
    begun_s = time.monotonic()
    detail: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="allpass-bench-") as folder:
        for number, case in enumerate(one for one in cases() if given.only in one.model):
            detail[case.name] = _tried(case, Path(folder) / str(number))
            print(json.dumps({case.name: detail[case.name]}), flush=True)
        with _quietly():
            names = [name for name in CONFIGS if given.only in name]
            off, shares = against_trl(given.environments, Path(folder) / "trl", names)
            by_chunks, at_once = logits_by_chunks(Path(folder) / "logits")
    did = [told for told in detail.values() if "computed" in told]
    value = sum(told["counts"] for told in detail.values()) / max(1, len(detail))
    computed = sum(told["computed"] for told in did) / max(1, sum(told["learned"] for told in did))
    worst_off = None if off is None else max(off.values())
    told = {
        "name": "recipe", "value": value, "goal": GOAL, "unit": "share of cases", "cases": len(detail),
        "joined": sum(told["joined"] for told in did), "computed": computed,
        "computed_worst": max((told["computed"] / told["learned"] for told in did), default=None),
        "trl_loss_off": worst_off, "kept_of_trl": None if shares is None else shares[0],
        "kept_of_trl_without_dropout": None if shares is None else shares[1],
        "logits_of_at_once": by_chunks / at_once, "logits_bytes": by_chunks,
        "took_s": round(time.monotonic() - begun_s),
        "detail": {"cases": detail, "trl_loss_off": off},
    }  # fmt: skip
    print(json.dumps(told))
    is_equal = worst_off is not None and worst_off <= MOST_OFF and shares is not None and shares[0] <= MOST_KEPT
    is_small = by_chunks <= MOST_LOGITS * at_once
    return int(value < GOAL or computed > MOST_COMPUTED or not is_equal or not is_small)


if __name__ == "__main__":
    sys.exit(main())
