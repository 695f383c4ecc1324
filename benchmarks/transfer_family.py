"""A small pretrained model and tasks on it, made on the spot, between which there is transfer to be found.

Every task rewrites eight letters. The sixteen letters come in four groups, each of which can be rewritten in four
ways. A task is one way for each group, under a two-letter name in front. The base model has seen every way, in any
combination and under any other name, so that it has to be told which ones go with a new name. Tasks come in pairs
with three of their four ways in common; others have as many as it happens, and contradict each other in the rest.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.trainer.rows import FACTS_NAME, HELD_OUT_NAME, TRAIN_NAME

LETTERS = "abcdefghijklmnop"
GROUPS = 4
WAYS = 4
LENGTH = 8
_NAMES = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_MARKS = ["<pad>", "<s>", "</s>", "="]


@dataclass(frozen=True)
class Family:
    """`rewrites[way]`: letter by letter. `names`: what the base model has seen; `tasks`: what is fine-tuned."""

    rewrites: tuple[dict[str, str], ...]
    names: tuple[str, ...]
    tasks: dict[str, tuple[int, ...]]

    def any_ways(self, drawn: random.Random) -> tuple[int, ...]:
        """One way for each group."""
        return tuple(drawn.randrange(WAYS) for _ in range(GROUPS))

    def row(self, name: str, ways: tuple[int, ...], drawn: random.Random) -> dict[str, str]:
        """One example: what is asked, and how it is rewritten."""
        letters = [drawn.choice(LETTERS) for _ in range(LENGTH)]
        written = [self.rewrites[ways[LETTERS.index(one) * GROUPS // len(LETTERS)]][one] for one in letters]
        return {"prompt": name + "".join(letters) + "=", "completion": "".join(written)}


def family(seed: int, tasks: int) -> Family:
    """The same seed, the same family. Every other task is the one before with one of its ways changed."""
    drawn = random.Random(f"family {seed}")
    names = [one + other for one in _NAMES for other in _NAMES]
    drawn.shuffle(names)
    wanted: dict[str, tuple[int, ...]] = {}
    centre: list[int] = []
    for number in range(tasks):
        if number % 2 == 0:
            centre = [drawn.randrange(WAYS) for _ in range(GROUPS)]
            wanted[names.pop()] = tuple(centre)
        else:
            place = drawn.randrange(GROUPS)
            other = (centre[place] + 1) % WAYS
            wanted[names.pop()] = tuple(other if group == place else way for group, way in enumerate(centre))
    return Family(tuple(_ways(drawn)), tuple(names), wanted)


def _ways(drawn: random.Random) -> list[dict[str, str]]:
    """Rewritings of all letters, of which no two ever agree."""
    written = drawn.sample(LETTERS, len(LETTERS))
    shifts = drawn.sample(range(len(LETTERS)), WAYS)
    return [{one: written[(place + shift) % len(LETTERS)] for place, one in enumerate(LETTERS)} for shift in shifts]


def write_rows(folder: Path, own: Family, name: str, train: int, held_out: int, seed: int) -> Path:
    """One task's rows, as a bundle of the built-in recipe has them."""
    drawn = random.Random(f"rows {name} {seed}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FACTS_NAME).write_text(json.dumps({"shape": "prompt", "labels": []}))
    for file, count in ((TRAIN_NAME, train), (HELD_OUT_NAME, held_out)):
        rows = [own.row(name, own.tasks[name], drawn) for _ in range(count)]
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


def pretrain(folder: Path, own: Family, *, steps: int, seed: int, hidden: int = 64, layers: int = 2) -> float:
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
        rows = [own.row(name, own.any_ways(drawn), drawn) for name in drawn.choices(own.names, k=64)]
        ids = torch.tensor([[*words(row["prompt"] + row["completion"])["input_ids"], 2] for row in rows])
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
