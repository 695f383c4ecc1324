"""All rows of a task as the model reads them: how long they are, which were cut, which have nothing left to learn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, Mapping, Optional, Sequence, Tuple

from allpass.recipe.encoding import Encoder, Example
from allpass.recipe.lengths import most_positions

MOST_LOST = 0.1  # of the training rows; more than one row in any case
_MOST_NAMED = 5


@dataclass(frozen=True)
class Limit:
    """How many tokens of a row are read: what the recipe says, or what the model can, which is `positions`."""

    sequence_length: int
    positions: Optional[int]

    @classmethod
    def of(cls, sequence_length: int, config: Optional[Mapping[str, Any]]) -> "Limit":
        return cls(sequence_length, None if config is None else most_positions(config))

    @property
    def tokens(self) -> int:
        return min(self.sequence_length, self.positions or self.sequence_length)

    @property
    def is_models(self) -> bool:
        """Whether the model's limit is the one that counts."""
        return self.tokens < self.sequence_length

    def words(self) -> str:
        return f"{self.tokens:,} tokens" + (" (the most that this model reads)" if self.is_models else "")


@dataclass(frozen=True)
class Encoded:
    """`rows`: those with anything to learn, each in one or more sequences. `lost`: where the others are, as "row 7";
    `lost_at`: which of all they are, from 0.
    `cut`: how many rows, of either, were longer than the limit. `tokens`: of `rows`, and how many of them are learned.
    `left_out`: what the model's chat template did not show. `pairs`: whether each row is two answers."""

    rows: Tuple[Tuple[Example, ...], ...]
    lost: Tuple[str, ...]
    cut: int
    tokens: int
    learned: int
    left_out: Mapping[str, int]
    pairs: bool = False
    lost_at: Tuple[int, ...] = ()

    def told(self, name: str, limit: Limit) -> List[str]:
        """What a person should know of it, a line each; `name` says which rows these are."""
        count = len(self.rows) + len(self.lost)
        lines = []
        if self.cut:
            lines.append(f"{self.cut:,} of {count:,} {name} rows are longer than {limit.words()} and were cut")
        if self.lost:
            which = _numbers(self.lost)
            what = "do not say two different answers" if self.pairs else "have no answer left then"
            lines.append(f"{len(self.lost):,} of {count:,} {name} rows {what}, and are not used: {which}")
        if (sequences := sum(map(len, self.rows))) > len(self.rows) and not self.pairs:
            how = "as the model's chat template does not show earlier answers as they were given"
            lines.append(f"{len(self.rows):,} {name} rows are {sequences:,} sequences, {how}")
        if self.left_out:
            what = ", ".join(f"{one} ({times:,} times)" for one, times in self.left_out.items())
            lines.append(f"the model's chat template does not show all of the {name} rows: {what}")
        return lines


def encode(
    encoder: Encoder,
    rows: Sequence[Mapping[str, Any]],
    name: str,
    limit: Limit,
    places: Optional[Sequence[str]] = None,
) -> Encoded:
    """`name` says which rows these are, and `places` where each of them is, if not by its number among them.

    Raises ValueError naming the row that cannot be encoded, or where no row has anything to learn."""
    before = dict(encoder.left_out)
    kept: List[Tuple[Example, ...]] = []
    lost: List[str] = []
    lost_at: List[int] = []
    cut = 0
    for number, row in enumerate(rows, 1):
        place = f"row {number}" if places is None else places[number - 1]
        examples = encoder.encode(row, f"{name} {place}" if places is None else place)
        learned = learned_of(encoder, examples)
        cut += any(one.is_cut for one in examples)
        if learned:
            kept.append(learned)
        else:
            lost.append(place)
            lost_at.append(number - 1)
    if rows and not kept:
        what = "two different answers" if encoder.has_pairs else "an answer"
        raise ValueError(f"no {name} row has {what} within the first {limit.words()}: {_mend(limit)}")
    left_out = {what: times - before.get(what, 0) for what, times in encoder.left_out.items()}
    return Encoded(
        rows=tuple(kept),
        lost=tuple(lost),
        cut=cut,
        tokens=sum(len(one.ids) for row in kept for one in row),
        learned=sum(one.counted for row in kept for one in row),
        left_out={what: times for what, times in left_out.items() if times},
        pairs=encoder.has_pairs,
        lost_at=tuple(lost_at),
    )


def learned_of(encoder: Encoder, examples: Sequence[Example]) -> Tuple[Example, ...]:
    """What of a row there is anything to learn of; nothing where the row is lost."""
    return _of_pair(examples) if encoder.has_pairs else tuple(one for one in examples if one.counted)


def _of_pair(examples: Sequence[Example]) -> Tuple[Example, ...]:
    """Both answers; none where one is cut away, or where they are the same: nothing is to be preferred then."""
    chosen, rejected = examples
    differ = chosen.ids != rejected.ids and chosen.counted and rejected.counted
    return (chosen, rejected) if differ else ()


def refuse_losses(found: Encoded, name: str, limit: Limit) -> None:
    """Raises ValueError where so many rows have nothing to learn that it would be another training than was meant."""
    count = len(found.rows) + len(found.lost)
    if len(found.lost) > max(1, MOST_LOST * count):
        what = "do not have two different answers" if found.pairs else "have no answer"
        raise ValueError(
            f"{len(found.lost):,} of {count:,} {name} rows {what} within the first {limit.words()} "
            f"({_numbers(found.lost)}): {_mend(limit)}, or leave them out"
        )


def _mend(limit: Limit) -> str:
    return "give shorter rows" if limit.is_models else "choose a larger sequence_length"


def _numbers(lost: Sequence[str]) -> str:
    named = ", ".join(one[len("row ") :] for one in lost[:_MOST_NAMED])
    more = f" and {len(lost) - _MOST_NAMED:,} more" if len(lost) > _MOST_NAMED else ""
    return f"row{'s' if len(lost) > 1 else ''} {named}{more}"
