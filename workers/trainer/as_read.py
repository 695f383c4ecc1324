"""A job's rows as its model reads them: as they came, encoded where they were submitted, or encoded here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from allpass.recipe.encoded import Encoded, Limit, encode, learned_of
from allpass.recipe.encoding import Encoder, Example
from allpass.recipe.travelling import Bound, Unusable, fingerprint, read
from workers.trainer.rows import Data

if TYPE_CHECKING:
    from workers.trainer.model import Prepared

_COMPARED = 32  # rows that are encoded here as well


def as_read(data: Data, prepared: Prepared, limit: Limit) -> tuple[Encoded, Encoded]:
    """The training rows, and those held out. Raises ValueError naming a row that cannot be encoded, or where none has
    anything to learn."""
    digest = fingerprint(prepared.tokenizer) if data.encoded is not None else None  # before it is used
    encoder = Encoder(prepared.tokenizer, data.shape, data.labels, limit.tokens)
    if data.encoded is not None:
        bound = Bound(
            digest,
            limit.tokens,
            len(data.labels),
            (len(data.train), len(data.held_out)),
            tokens=_tokens_known(prepared),
            pairs=encoder.has_pairs,
        )
        try:
            train, held_out = read(data.encoded.read_bytes(), bound)
            _compare(encoder, data.train, train)
            _compare(encoder, data.held_out, held_out)
        except (Unusable, OSError) as error:
            print(f"training: the rows that came encoded are encoded again: {error}", flush=True)
            encoder = Encoder(prepared.tokenizer, data.shape, data.labels, limit.tokens)
        else:
            return train, held_out
    return encode(encoder, data.train, "training", limit), encode(encoder, data.held_out, "held-out", limit)


def _tokens_known(prepared: Prepared) -> int:
    """A number beyond these is an error that ends a GPU's process without a word of which row."""
    return int(prepared.model.get_input_embeddings().weight.shape[0])


def _compare(encoder: Encoder, rows: Sequence[Mapping[str, Any]], found: Encoded) -> None:
    """Some of them, evenly: libraries may differ in what no fingerprint tells."""
    lost = set(found.lost_at)
    kept = dict(zip((number for number in range(len(rows)) if number not in lost), found.rows, strict=True))
    for number in {place * len(rows) // _COMPARED for place in range(_COMPARED)} if rows else ():
        own = learned_of(encoder, encoder.encode(rows[number], f"row {number + 1}"))
        if _numbers(own) != _numbers(kept.get(number, ())):
            raise Unusable(f"row {number + 1} is read otherwise by this machine's libraries")


def _numbers(row: Sequence[Example]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [(one.ids, one.targets) for one in row]
