"""A small pretrained model and tasks on it, made on the spot, between which there is transfer to be found.

Every task rewrites eight letters. The sixteen letters come in four groups, each of which can be rewritten in four
ways. A task is one way for each group, under a two-letter name in front. The base model has seen every way, in any
combination and under any other name, so that it has to be told which ones go with a new name. Tasks come in pairs
with three of their four ways in common; others have as many as it happens, and contradict each other in the rest.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.trainer.rows import FACTS_NAME, HELD_OUT_NAME, TRAIN_NAME

LETTERS = "abcdefghijklmnop"
GROUPS = 4
WAYS = 4
LENGTH = 8
PAIRED, UNPAIRED, UNSEEN = "paired", "unpaired", "unseen"
KINDS = (PAIRED, UNPAIRED, UNSEEN)
_NAMES = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_MARKS = ["<pad>", "<s>", "</s>", "="]


@dataclass(frozen=True)
class Base:
    """What the small model is pretrained on: `ways[way]` rewrites letter by letter, under any of `names`."""

    ways: tuple[dict[str, str], ...]
    names: tuple[str, ...]


@dataclass(frozen=True)
class Family:
    """What is fine-tuned: by a task's name, which of `ways` rewrites each group of letters."""

    ways: tuple[dict[str, str], ...]
    tasks: dict[str, tuple[int, ...]]


def families(seed: int, tasks: int) -> tuple[Base, dict[str, Family]]:
    """A base model and so many tasks of each kind, all under names that the base has not seen. The same seed, the same
    families."""
    drawn = random.Random(f"family {seed}")
    names = [one + other for one in _NAMES for other in _NAMES]
    drawn.shuffle(names)
    base = Base(tuple(_ways(drawn)), tuple(names[len(KINDS) * tasks :]))
    found = {}
    for place, kind in enumerate(KINDS):
        own, chosen = names[place * tasks : (place + 1) * tasks], random.Random(f"{kind} {seed}")
        wanted = _unpaired(chosen, tasks) if kind == UNPAIRED else _paired(chosen, tasks)
        ways = tuple(_ways(chosen)) if kind == UNSEEN else base.ways
        found[kind] = Family(ways, dict(zip(own, wanted, strict=True)))
    return base, found


def _paired(drawn: random.Random, tasks: int) -> list[tuple[int, ...]]:
    """Every other task is the one before with one of its ways changed."""
    found: list[tuple[int, ...]] = []
    for number in range(tasks):
        if number % 2 == 0:
            found.append(any_ways(drawn))
        else:
            place = drawn.randrange(GROUPS)
            found.append(tuple((way + (group == place)) % WAYS for group, way in enumerate(found[-1])))
    return found


def _unpaired(drawn: random.Random, tasks: int) -> list[tuple[int, ...]]:
    """Each is drawn by itself: two have a way in common as often as it happens."""
    return [any_ways(drawn) for _ in range(tasks)]


def _ways(drawn: random.Random) -> list[dict[str, str]]:
    """Rewritings of all letters, of which no two ever agree."""
    written = drawn.sample(LETTERS, len(LETTERS))
    shifts = drawn.sample(range(len(LETTERS)), WAYS)
    return [{one: written[(place + shift) % len(LETTERS)] for place, one in enumerate(LETTERS)} for shift in shifts]


def any_ways(drawn: random.Random) -> tuple[int, ...]:
    """One way for each group."""
    return tuple(drawn.randrange(WAYS) for _ in range(GROUPS))


def row(ways: Sequence[dict[str, str]], name: str, chosen: tuple[int, ...], drawn: random.Random) -> dict[str, str]:
    """One example: what is asked, and how it is rewritten."""
    letters = [drawn.choice(LETTERS) for _ in range(LENGTH)]
    written = [ways[chosen[LETTERS.index(one) * GROUPS // len(LETTERS)]][one] for one in letters]
    return {"prompt": name + "".join(letters) + "=", "completion": "".join(written)}


def write_rows(folder: Path, own: Family, name: str, train: int, held_out: int, seed: int) -> Path:
    """One task's rows, as a bundle of the built-in recipe has them."""
    drawn = random.Random(f"rows {name} {seed}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FACTS_NAME).write_text(json.dumps({"shape": "prompt", "labels": []}))
    for file, count in ((TRAIN_NAME, train), (HELD_OUT_NAME, held_out)):
        rows = [row(own.ways, name, own.tasks[name], drawn) for _ in range(count)]
        (folder / file).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def tokenizer() -> Any:
    """One token per character."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: number for number, token in enumerate([*_MARKS, *_NAMES, *LETTERS])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", bos_token="<s>", eos_token="</s>")


def pretrain(folder: Path, base: Base, *, steps: int, seed: int, hidden: int = 64, layers: int = 2) -> float:
    """Train a small Llama on all rewritings, whole, and save it. Its last loss (mean of the last tenth)."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    words = tokenizer()
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(words),
            hidden_size=hidden,
            intermediate_size=2 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=64,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    drawn = random.Random(f"pretrain {seed}")
    losses = []
    for _ in range(steps):
        rows = [row(base.ways, name, any_ways(drawn), drawn) for name in drawn.choices(base.names, k=64)]
        ids = torch.tensor([[*words(one["prompt"] + one["completion"])["input_ids"], 2] for one in rows])
        targets = ids.clone()
        targets[:, : LENGTH + 3] = -100
        loss = model(input_ids=ids, labels=targets).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(float(loss.detach()))
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    last = losses[-max(1, steps // 10) :]
    return sum(last) / len(last)
