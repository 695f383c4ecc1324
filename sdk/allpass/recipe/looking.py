"""The rows as the model will read them, before anything is sent: how many tokens, what is cut, what is learned."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allpass.errors import InvalidData, Problem
from allpass.recipe.encoded import Encoded, Limit, encode, refuse_losses
from allpass.recipe.encoding import IGNORED, PAIR, Encoder, Example
from allpass.recipe.rows import Checked
from allpass.recipe.travelling import Bound, fingerprint, written

MOST_LOOKED_AT = 20_000  # some seconds' worth; of more rows as many are taken, evenly
MOST_ENCODED = 100_000  # of rows that are sent: else each machine would take that half minute
_LONGEST_SHOWN = 1_500


@dataclass(frozen=True)
class Placed:
    """Rows with where each of them is in its source."""

    rows: Sequence[Mapping[str, Any]]
    places: Sequence[str]


@dataclass(frozen=True)
class Looked:
    """What was found of the training rows and of those held out. `share`: how many of all were looked at. `travels`:
    all of them encoded, as a machine takes them."""

    tokenizer: Any
    labels: tuple[str, ...]
    train: Encoded
    held_out: Encoded
    limit: Limit
    share: float
    travels: bytes | None = None

    @property
    def tokens(self) -> int:
        """Of the training rows; an estimate where not all were looked at."""
        return round(self.train.tokens / self.share)

    @property
    def row_tokens(self) -> int:
        """Of a training row, on average; of each answer of a pair."""
        sequences = len(self.train.rows) * (2 if self.train.pairs else 1)
        return max(1, round(self.train.tokens / sequences))

    def told(self) -> str:
        """As `14,312 tokens, 2 too long`."""
        about = "" if self.share == 1 else "about "
        cut = round(self.train.cut / self.share)
        return f"{about}{self.tokens:,} tokens" + (f", {about}{cut:,} too long" if cut else "")

    def remarks(self) -> list[str]:
        """A line for each thing that a person should know."""
        return [*self.train.told("training", self.limit), *self.held_out.told("held-out", self.limit)]

    def examples(self, count: int) -> Iterator[str]:
        """The first training rows as the model reads them, with what is learned in brackets: ⟦ and ⟧."""
        for number, row in enumerate(self.train.rows[:count], 1):
            for place, one in enumerate(row):
                which = f", {PAIR[place]}" if self.train.pairs else ""
                learned = f"label {self.labels[one.targets[0]]!r}" if self.labels else f"{one.counted:,} learned"
                text = _shown(self.tokenizer, one, is_labelled=bool(self.labels))
                yield f"row {number}{which}: {len(one.ids):,} tokens, {learned}\n{text}"


def find_tokenizer(model: str, config: Mapping[str, Any] | None) -> tuple[Any, str | None]:
    """The model's tokenizer, or why there is none here: then rows are counted on the machine."""
    if config is None and not Path(model).is_dir():
        return None, f"nothing of {model} can be read here"
    if importlib.util.find_spec("transformers") is None:
        return None, "transformers is not installed here (pip install transformers)"
    from transformers import AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    try:
        return AutoTokenizer.from_pretrained(model, trust_remote_code=False), None
    except Exception as error:  # of whatever library reads it
        return None, f"the tokenizer of {model} cannot be read here ({type(error).__name__})"


def look(
    tokenizer: Any,
    source: Checked,
    train: Placed,
    held_out: Placed,
    sequence_length: int,
    config: Mapping[str, Any] | None,
    *,
    most: int = MOST_LOOKED_AT,
) -> Looked:
    """At `most` so many of either. Raises InvalidData naming the row that the model's chat template refuses, or where
    too many have nothing to learn."""
    limit = Limit.of(sequence_length, None if config is None else _filled(config))
    digest = fingerprint(tokenizer)  # before it is used
    part = _sample(train, most)
    try:
        encoder = Encoder(tokenizer, source.shape, source.labels, limit.tokens)
        found = encode(encoder, part.rows, "training", limit, part.places)
        aside = _sample(held_out, most)
        measured = encode(encoder, aside.rows, "held-out", limit, aside.places)
        refuse_losses(found, "training", limit)
    except ValueError as error:
        raise InvalidData(source.source, [Problem("", str(error))]) from error
    travels = None
    if digest is not None and part is train and aside is held_out:
        bound = Bound(digest, limit.tokens, len(source.labels), (len(train.rows), len(held_out.rows)))
        travels = written(bound, found, measured)
    return Looked(tokenizer, source.labels, found, measured, limit, len(part.rows) / len(train.rows), travels)


def _filled(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """With what goes without saying of such a model, as its machine knows it."""
    from transformers import AutoConfig

    try:
        told = {key: value for key, value in config.items() if key != "model_type"}
        filled: Mapping[str, Any] = AutoConfig.for_model(config["model_type"], **told).to_dict()
    except Exception:  # of whatever model: then what it says is all that is known
        return config
    return filled


def _sample(all_: Placed, most: int) -> Placed:
    count = len(all_.rows)
    if count <= most:
        return all_
    chosen = [number * count // most for number in range(most)]
    return Placed([all_.rows[number] for number in chosen], [all_.places[number] for number in chosen])


def _shown(tokenizer: Any, example: Example, *, is_labelled: bool) -> str:
    """Its text, the middle left out of a long one."""
    if is_labelled:
        return _shortened(tokenizer.decode(list(example.ids)))
    text = ""
    first = 0
    learned = [target != IGNORED for target in example.targets]
    for place in range(1, len(learned) + 1):
        if place == len(learned) or learned[place] != learned[first]:
            piece = _shortened(tokenizer.decode(list(example.ids[first:place])))
            text += f"⟦{piece}⟧" if learned[first] else piece
            first = place
    return text


def _shortened(text: str) -> str:
    half = _LONGEST_SHOWN // 2
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:half]} ... {text[-half:]}"
