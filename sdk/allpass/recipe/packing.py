"""From data and choices to what is sent: a bundle of rows with a script of a few lines, and the template."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

from allpass.archive import packed_size, tar_gz
from allpass.bundle import MAX_BUNDLE_BYTES, Bundle
from allpass.errors import InvalidData, InvalidInput, InvalidTemplate, Problem
from allpass.recipe import pairs
from allpass.recipe.adapters import read_adapter
from allpass.recipe.gpus import problems_of
from allpass.recipe.libraries import FEW_BITS, PACKAGES
from allpass.recipe.looking import MOST_ENCODED, MOST_LOOKED_AT, Looked, Placed, look
from allpass.recipe.reading import name_of, read
from allpass.recipe.rows import Checked, check
from allpass.recipe.settings import GOALS, Recipe
from allpass.recipe.shapes import shape_of
from allpass.recipe.splitting import numbers_held_out
from allpass.recipe.tracked_run import WANDB, WANDB_KEY
from allpass.recipe.travelling import ENCODED_NAME
from allpass.templates import check_template
from allpass.wire.template import Template

Dataset = Union[str, "os.PathLike[str]", Sequence[Mapping[str, Any]]]
Many = Sequence[Mapping[str, Any]]
SCRIPT_NAME = "finetune.py"
SCRIPT = '''"""A fine-tuning by Allpass's own recipe: its rows are beside this script, its settings are parameters."""

from pathlib import Path

from allpass import training  # noqa: F401 - first: from here on SIGTERM is a request, also while torch is loading

# isort: split
from peft import LoraConfig  # noqa: F401 - here, so that a machine that stands by has loaded it
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer  # noqa: F401 - as well


def main():
    from workers.trainer.main import main as train

    train(Path(__file__).resolve().parent)


if __name__ == "__main__":
    main()
'''
HUB_TOKEN = "HF_TOKEN"  # noqa: S105 - the name of one
_OWN_FIELDS = ("model", "dataset", "target")  # of a template: what the recipe fills in


@dataclass(frozen=True)
class Packed:
    """A fine-tuning that is ready to be sent. `looked`: its rows as the model reads them, where that is known here;
    then `train_rows` are those with anything to learn."""

    recipe: Recipe
    bundle: Bundle
    template: Template
    shape: str
    labels: tuple[str, ...]
    train_rows: int
    held_out_rows: int
    ignored: tuple[str, ...]
    looked: Looked | None = None

    @property
    def pip(self) -> list[str]:
        """What the machine's Python needs; nothing is installed where it is there."""
        return [
            *PACKAGES,
            *([FEW_BITS] if self._needs_few_bits else []),
            *([WANDB] if self.recipe.wandb is not None else []),
        ]

    @property
    def _needs_few_bits(self) -> bool:
        return self.recipe.method == "qlora" or self.recipe.has_narrow_states

    @property
    def parameters(self) -> dict[str, Any]:
        """The job's. The edition is with the rows: a trainer from before editions refuses settings that it does not
        know, and reads past what it does not know there."""
        return {name: value for name, value in self.recipe.parameters().items() if name != "edition"}

    @property
    def total_steps(self) -> int:
        return self.recipe.total_steps(self.train_rows)


def pack(
    settings: Mapping[str, Any],
    dataset: Dataset,
    *,
    held_out: float | Dataset = 0.1,
    template: Template | None = None,
    config: Mapping[str, Any] | None = None,
    tokenizer: Any = None,
    is_sent: bool = True,
) -> Packed:
    """Check all of it. `settings` are a Recipe's fields; the task follows from the rows where it is not said. `config`:
    the model's config.json, from which follows how much memory it needs; with its `tokenizer` rows are also encoded,
    and travel so; of many only a part, where nothing is to be sent.

    `held_out`: the share of rows to measure with, or rows of their own. Raises InvalidInput, InvalidData (row and
    field named), or InvalidTemplate for a field that the recipe fills in itself.
    """
    Recipe.new(settings)  # before a large file is read
    own = settings
    adapter = read_adapter(settings)
    if adapter is not None:
        settings = {**settings, **adapter.settings}
    rows, train, aside = _rows(settings, dataset, held_out)
    recipe = Recipe.new({**settings, "task": _task(rows)})
    _refuse_of_pairs(recipe, own)
    _refuse_coarse(recipe)
    _check_token(recipe, template or Template())
    measured = aside.rows
    if recipe.target is not None and not measured:
        raise InvalidInput("target: there are no held-out rows to measure it with", hint="held_out=0.1")
    if recipe.patience is not None and not measured:
        raise InvalidInput("patience: there are no held-out rows to evaluate", hint="held_out=0.1")
    most = MOST_ENCODED if is_sent and len(train.rows) <= MOST_ENCODED else MOST_LOOKED_AT
    looked = None
    if tokenizer is not None:
        looked = look(tokenizer, rows, train, aside, recipe.sequence_length, config, most=most)
    bundle = _bundle(recipe, rows, train.rows, measured, {} if adapter is None else adapter.files, looked)
    count = len(looked.train.rows) if looked is not None and looked.share == 1 else len(train.rows)
    known = {"row_tokens": looked.row_tokens if looked is not None and recipe.packs_rows else None}
    filled = _filled(_alone(recipe, template or Template()), recipe, rows, count, bundle, shape_of(config), known)
    return Packed(recipe, bundle, filled, rows.shape, rows.labels, count, len(measured), rows.ignored, looked)


def _task(rows: Checked) -> str:
    """What is learned of them."""
    if rows.shape in pairs.SHAPES:
        return "dpo"
    return "classification" if rows.shape == "labelled" else "sft"


def _refuse_of_pairs(recipe: Recipe, given: Mapping[str, Any]) -> None:
    """Settings that would do nothing. An adapter that is gone on from may have a dropout of its own."""
    if not recipe.learns_pairs and "beta" in given:
        hint = "rows with chosen and rejected, or leave it out"
        raise InvalidInput(f"beta: {given['beta']!r} is for pairs of answers, and task is {recipe.task!r}", hint=hint)
    if recipe.learns_pairs and given.get("lora_dropout"):
        what = "would have the model compared with its reference by chance: pairs are learned without dropout"
        raise InvalidInput(f"lora_dropout: {given['lora_dropout']!r} {what}", hint="leave it out")


def _refuse_coarse(recipe: Recipe) -> None:
    """Jobs that were taken before this was known still train as they were asked to."""
    if recipe.method == "full" and recipe.precision == "bf16":
        raise InvalidInput(
            "precision: 'bf16' rounds most steps of a full fine-tuning away: its weights have 8 bits, and a step "
            "smaller than a 256th of a weight leaves it as it was",
            hint='precision="autocast"',
        )


def _check_token(recipe: Recipe, template: Template) -> None:
    if recipe.push_to is not None and HUB_TOKEN not in {*template.secrets, *template.env}:
        hint = f"allpass secret set {HUB_TOKEN}, then --secret {HUB_TOKEN}"
        raise InvalidInput(
            f"push_to: the hub takes nothing without a token, and no secret {HUB_TOKEN} is named", hint=hint
        )
    if recipe.wandb is not None and WANDB_KEY not in {*template.secrets, *template.env}:
        hint = f"allpass secret set {WANDB_KEY}, then --secret {WANDB_KEY}"
        raise InvalidInput(f"wandb: W&B takes nothing without a key, and no secret {WANDB_KEY} is named", hint=hint)


def _alone(recipe: Recipe, template: Template) -> Template:
    """Steps that are told to a tracker are one job's own: two that are trained as one count them together."""
    return template if recipe.wandb is None else template.model_copy(update={"sharing": False})


def _rows(settings: Mapping[str, Any], dataset: Dataset, held_out: float | Dataset) -> tuple[Checked, Placed, Placed]:
    """All rows, those to train on, and those that are held out."""
    rows = check(read(dataset), name_of(dataset), task=settings.get("task"))
    if not isinstance(held_out, (int, float)):
        own = check(read(held_out), name_of(held_out), shape=rows.shape)
        _check_known(own, rows)
        return rows, Placed(rows.rows, rows.places), Placed(own.rows, own.places)
    if isinstance(held_out, bool) or not 0 <= held_out < 1:
        raise InvalidInput(f"held_out: {held_out!r} is no share from 0 to below 1", hint="held_out=0.1")
    aside = numbers_held_out(rows.rows, held_out, int(settings.get("seed", 0)))
    if held_out and not aside:
        message = f"no row can be held out: all {len(rows.rows)} rows say the same"
        raise InvalidData(rows.source, [Problem("", message, "held_out=0")])
    train = sorted(set(range(len(rows.rows))) - set(aside))
    return rows, _placed(rows, train), _placed(rows, aside)


def _placed(rows: Checked, numbers: Sequence[int]) -> Placed:
    return Placed([rows.rows[number] for number in numbers], [rows.places[number] for number in numbers])


def _check_known(own: Checked, rows: Checked) -> None:
    unknown = [
        Problem(f'{place}, field "label"', f"{row['label']!r} does not occur in {rows.source}")
        for place, row in zip(own.places, own.rows, strict=True)
        if rows.labels and row["label"] not in rows.labels
    ]
    if unknown:
        raise InvalidData(own.source, unknown[:1], len(unknown))


def _bundle(
    recipe: Recipe, rows: Checked, train: Many, held_out: Many, more: Mapping[str, bytes], looked: Looked | None
) -> Bundle:
    """The same rows give the same bytes: they are sent once, however many jobs train on them. Encoded they are sent
    where there is room: machines can encode them, too."""
    facts = {"shape": rows.shape, "labels": rows.labels, "edition": recipe.edition}
    files = {
        **more,
        SCRIPT_NAME: SCRIPT.encode(),
        "held_out.jsonl": _lines(held_out),
        "recipe.json": json.dumps(facts, ensure_ascii=False).encode(),
        "train.jsonl": _lines(train),
    }
    if looked is not None and looked.travels is not None:
        both = {**files, ENCODED_NAME: looked.travels}
        if packed_size((name, len(content)) for name, content in sorted(both.items())) <= MAX_BUNDLE_BYTES:
            files = both
    content = tar_gz(sorted(files.items()))
    if len(content) > MAX_BUNDLE_BYTES:
        size = f"{len(content) / 2**20:.1f} MiB, more than the {MAX_BUNDLE_BYTES // 2**20} MiB that can be sent"
        raise InvalidData(rows.source, [Problem("", f"its {len(rows.rows)} rows are {size}", "send fewer rows")])
    digest = hashlib.sha256(content).hexdigest()
    return Bundle(content=content, sha256=digest, entrypoint=SCRIPT_NAME, paths=tuple(files))


def _lines(rows: Many) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def _filled(
    template: Template,
    recipe: Recipe,
    rows: Checked,
    count: int,
    bundle: Bundle,
    shape: Mapping[str, Any] | None,
    known: Mapping[str, Any],
) -> Template:
    """The template with what is known of the training: how long it is, and what decides how much memory it needs."""
    _check_free(template, recipe)
    training = {
        "steps": recipe.total_steps(count),
        "batch_size": recipe.batch_size * recipe.sequences_per_row,
        "sequence_length": recipe.sequence_length,
        "learning_rate": recipe.rate,
        "method": recipe.method,
        "precision": recipe.numbers,
        "precision_by_gpu": recipe.follows_the_card or None,
        "optimizer": recipe.optimizer if recipe.has_narrow_states else None,
        "micro_batch": recipe.chosen_cut.get("micro_batch"),
        "checkpointing": recipe.chosen_cut.get("checkpointing"),
        "lora_rank": None if recipe.method == "full" else recipe.lora_rank,
        "lora_dropout": None if recipe.method == "full" or recipe.learns_pairs else recipe.lora_dropout or None,
        "narrow_adapters": recipe.has_narrow_adapters or None,
        "loss": "recomputed" if recipe.takes_chunks else None,
        **known,
        "reference_pass": recipe.learns_pairs or None,
        "sharded": recipe.sharded or None,
    }
    filled = {
        **template.model_dump(exclude_unset=True),
        "model": {"name": recipe.model, **({} if shape is None else {"config": shape})},
        "dataset": {"name": rows.source, "examples": count, "size_bytes": bundle.size_bytes},
        "training": {name: value for name, value in training.items() if value is not None},
    }
    if recipe.learns_pairs or recipe.adapter is not None or recipe.export != "adapter" or recipe.push_to is not None:
        filled["sharing"] = False  # a training in common begins, learns and ends as both jobs' does
    if template.gpu.count > 1 or template.gpu.is_range or template.nodes > 1:
        filled["sharing"] = False  # it is a single process's
    if recipe.target is not None:
        ((name, value),) = recipe.target.items()
        filled["target"] = {"name": name, "value": value, "goal": GOALS[name]}
    return check_template(filled, "template")


def _check_free(template: Template, recipe: Recipe) -> None:
    told = template.model_fields_set
    problems = [Problem(field, "is the recipe's to fill in", "leave it out") for field in _OWN_FIELDS if field in told]
    problems += [
        Problem(f"training.{field}", "is a setting of the recipe", f"leave it out, and say {field}=... instead")
        for field in sorted(template.training.model_fields_set)
    ]
    problems += problems_of(template, recipe)
    if problems:
        raise InvalidTemplate("template", problems)
